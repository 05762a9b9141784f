"""The sizes of a tiny checkpoint; `swarmctl.upstream.tiny` writes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swarmctl.errors import RequestInvalid

# StableBeluga2 has 64 query heads on 8 key-value heads.
HEADS_PER_KV_HEAD = 8
FAMILIES = ("llama", "bloom")

# 256 bytes and the padding token: any text can be spelled.
_LEAST = {"blocks": 1, "hidden_size": 8, "heads": 1, "inner_size": 1, "vocab_size": 257, "max_positions": 16}


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """The sizes of a tiny model. `intermediate_size` None: the family's ratio (Llama about 8/3, BLOOM always 4).

    Raises:
        RequestInvalid: when the sizes do not fit together.
    """

    family: str = "llama"
    blocks: int = 6
    hidden_size: int = 128
    heads: int = 16
    intermediate_size: int | None = None
    vocab_size: int = 512
    max_positions: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if faults := tuple(_faults(self)):
            raise RequestInvalid("a tiny model of this shape cannot be made", reasons=faults)

    @property
    def kv_heads(self) -> int:
        """Key-value heads: an eighth of the heads for Llama, all of them for BLOOM."""
        return self.heads // HEADS_PER_KV_HEAD if self.family == "llama" else self.heads

    @property
    def inner_size(self) -> int:
        """The width of the feed-forward layer."""
        if self.intermediate_size is not None:
            return self.intermediate_size
        return 4 * self.hidden_size if self.family == "bloom" else 8 * round(self.hidden_size / 3)


def _faults(shape: TinyShape) -> Iterator[str]:
    if shape.family not in FAMILIES:
        yield f"family {shape.family!r} is unknown; there are {' and '.join(FAMILIES)}"
    for name, least in _LEAST.items():
        if getattr(shape, name) < least:
            yield f"{name} is {getattr(shape, name)}; it must be at least {least}"
    if shape.heads >= 1:
        yield from _head_faults(shape)
    if shape.family == "bloom" and shape.inner_size != 4 * shape.hidden_size:
        yield f"intermediate_size is {shape.inner_size}; BLOOM's is always 4 × hidden_size = {4 * shape.hidden_size}"


def _head_faults(shape: TinyShape) -> Iterator[str]:
    width, rest = divmod(shape.hidden_size, shape.heads)
    if rest:
        yield f"hidden_size {shape.hidden_size} is not a multiple of the {shape.heads} heads"
    if shape.family != "llama":
        return
    if shape.heads % HEADS_PER_KV_HEAD:
        yield f"heads is {shape.heads}; it must be a multiple of {HEADS_PER_KV_HEAD}, which share a key-value head"
    if width % 2:
        yield f"a head is {width} wide; rotary positions need an even width"
