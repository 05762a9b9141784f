"""How much memory the blocks of a node take, as far as that can be known beforehand. Pure.

Weights come from the checkpoint's own headers where it is a folder, else from the shape of a well-known family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmctl.models.profile import ModelProfile
from swarmctl.spec import NodeSpec

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# As petals counts them: nf4 keeps a scale for every 64 weights.
_QUANTISED_BYTES = {"int8": 1.0, "nf4": 4.25 / 8}
_LLAMA_INNER = {8192: 28672}
# petals' defaults, with grouped-query attention and without.
_CACHE_TOKENS = (16384, 4096)


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that a node will hold: its weights, and its attention cache when that is full."""

    weights: int
    cache: int

    @property
    def total(self) -> int:
        """Both."""
        return self.weights + self.cache


def params_of_block(profile: ModelProfile) -> int | None:
    """Weights of one block; None where the shape that is known does not tell."""
    hidden, keys = profile.hidden_size, profile.hidden_size // profile.num_heads * profile.num_kv_heads
    if profile.family == "bloom":
        return 12 * hidden * hidden + 13 * hidden
    if profile.family == "falcon":
        return 10 * hidden * hidden + 2 * hidden * keys
    if profile.family == "llama" and hidden in _LLAMA_INNER:
        return 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * _LLAMA_INNER[hidden]
    return None


def stored_bytes(profile: ModelProfile, blocks: int) -> int | None:
    """What so many blocks take on a disk; None if unknown."""
    params = params_of_block(profile)
    return None if params is None else int(blocks * params * _BYTES.get(profile.torch_dtype or "", 2.0))


def need_of(node: NodeSpec, profile: ModelProfile, block_bytes: Mapping[int, int]) -> Need | None:
    """What a node needs; None if unknown. `block_bytes`: bytes of each block as stored, see `ModelFound`."""
    stored = _BYTES.get(profile.torch_dtype or "", 2.0)
    wanted = node.settings.torch_dtype
    if wanted == "auto":
        # petals turns float32 into bfloat16 unless it is asked for.
        wanted = "bfloat16" if profile.torch_dtype in (None, "float32") else profile.torch_dtype or ""
    width = _BYTES.get(wanted, 2.0)
    blocks = range(node.blocks.start, node.blocks.end)
    if all(block in block_bytes for block in blocks):
        params = sum(block_bytes[block] for block in blocks) / stored
    elif (known := params_of_block(profile)) is not None:
        params = float(known * len(blocks))
    else:
        return None
    tokens = node.settings.attn_cache_tokens
    if tokens is None:
        tokens = _CACHE_TOKENS[0] if profile.num_kv_heads < profile.num_heads else _CACHE_TOKENS[1]
    keys = profile.hidden_size // profile.num_heads * profile.num_kv_heads
    return Need(
        weights=int(params * _QUANTISED_BYTES.get(node.settings.quant, width)),
        cache=int(2 * keys * tokens * len(blocks) * width),
    )
