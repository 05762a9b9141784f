"""The header of a GGUF file as values: the model's sizes, its vocabulary and the roles of its tokens.

Only what a Hugging Face Llama checkpoint of transformers 4.34 can express is accepted; the rest is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarmctl.errors import SwarmctlError
from swarmctl.upstream.tokenizer import Roles, Vocabulary

# How llama.cpp's names for the splitting of text translate: is each digit a token of its own?
_SPLITS_DIGITS = {"smollm": True, "starcoder": True, "refact": True, "command-r": True, "gpt-2": False}
_CONTROL, _USER_DEFINED = 3, 4
_TURN_END = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class LlamaSizes:
    """The sizes of a Llama model. `rope_factor` None: positions are not scaled."""

    blocks: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    max_positions: int
    norm_eps: float
    rope_base: float
    rope_factor: float | None

    @property
    def head_width(self) -> int:
        """Numbers in one head."""
        return self.hidden_size // self.heads


class Header:
    """Typed access to the metadata of a `GgufFile`; a value of another type than asked for counts as absent."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def text(self, key: str) -> str | None:
        """The string at `key`, None if there is none."""
        value = self._fields.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        """The number at `key`, None if there is none."""
        value = self._fields.get(key)
        return value if isinstance(value, int | float) else None

    def texts(self, key: str) -> tuple[str, ...]:
        """The array of strings at `key`, empty if there is none."""
        value = self._fields.get(key)
        return value if isinstance(value, tuple) else ()

    def numbers(self, key: str) -> tuple[int, ...]:
        """The array of integers at `key`, empty if there is none."""
        value = self._fields.get(key)
        return value if isinstance(value, tuple) else ()

    def count(self, key: str, default: int | None = None) -> int:
        """The integer at `key`.

        Raises:
            SwarmctlError: when there is none and no default.
        """
        value = self.number(key)
        if value is None:
            value = default
        if value is None:
            raise SwarmctlError(f"the GGUF file has no {key}, so it is incomplete or holds no Llama model")
        return int(value)


def parse_sizes(header: Header) -> LlamaSizes:
    """The model's sizes.

    Raises:
        SwarmctlError: when it is no Llama model, or one that transformers 4.34 cannot express.
    """
    if (architecture := header.text("general.architecture")) != "llama":
        raise SwarmctlError(f"only Llama models can be imported; this file holds {architecture or 'an unnamed one'}")
    heads = header.count("llama.attention.head_count")
    eps, base = header.number("llama.attention.layer_norm_rms_epsilon"), header.number("llama.rope.freq_base")
    sizes = LlamaSizes(
        blocks=header.count("llama.block_count"),
        hidden_size=header.count("llama.embedding_length"),
        inner_size=header.count("llama.feed_forward_length"),
        heads=heads,
        kv_heads=header.count("llama.attention.head_count_kv", heads),
        max_positions=header.count("llama.context_length"),
        norm_eps=_shortest(1e-5 if eps is None else eps),
        rope_base=_shortest(10000.0 if base is None else base),
        rope_factor=_rope_factor(header),
    )
    if sizes.hidden_size % sizes.heads or sizes.heads % sizes.kv_heads:
        raise SwarmctlError(
            f"hidden size {sizes.hidden_size}, {sizes.heads} heads and {sizes.kv_heads} key-value heads do not fit"
        )
    for key in ("llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count"):
        if (width := header.count(key, sizes.head_width)) != sizes.head_width:
            raise SwarmctlError(f"{key} is {width}; only {sizes.head_width}, hidden size / heads, can be expressed")
    return sizes


def parse_vocabulary(header: Header) -> Vocabulary:
    """The tokens and merges of a byte-level BPE.

    Raises:
        SwarmctlError: when the file holds another kind of tokenizer.
    """
    model, splitting = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre") or "gpt-2"
    if model != "gpt2" or splitting not in _SPLITS_DIGITS:
        raise SwarmctlError(
            f"the tokenizer {model} ({splitting}) cannot be imported",
            reasons=(f"byte-level BPE can (gpt2), with one of {', '.join(_SPLITS_DIGITS)}",),
        )
    tokens, kinds = header.texts("tokenizer.ggml.tokens"), header.numbers("tokenizer.ggml.token_type")
    begins = bool(header.number("tokenizer.ggml.add_bos_token"))
    merges = (merge.split(" ", 1) for merge in header.texts("tokenizer.ggml.merges"))
    return Vocabulary(
        tokens=tokens,
        merges=tuple((left, right) for left, right in merges),
        special=_of_kind(tokens, kinds, _CONTROL),
        literal=_of_kind(tokens, kinds, _USER_DEFINED),
        split_digits=_SPLITS_DIGITS[splitting],
        starts_with=tokens[header.count("tokenizer.ggml.bos_token_id")] if begins else None,
    )


def parse_roles(header: Header, vocabulary: Vocabulary) -> Roles:
    """Which token begins, ends and pads a text.

    A chat ends where a turn ends. The file's own padding token is often the one that ends a turn, which stands in
    every chat prompt; padding in a prompt is hidden from the model, so another control token is taken.
    """

    def named(role: str) -> str | None:
        number = header.number(f"tokenizer.ggml.{role}_token_id")
        return None if number is None else vocabulary.tokens[int(number)]

    template = header.text("tokenizer.chat_template")
    eos = named("eot") or named("eos")
    if template and _TURN_END in template and _TURN_END in vocabulary.special:
        eos = _TURN_END
    in_use = {named("bos"), named("unknown"), eos}
    spare = [token for token in vocabulary.special if token not in in_use and token not in (template or "")]
    pad = spare[-1] if spare else named("padding")
    return Roles(bos=named("bos"), eos=eos, pad=pad or eos, unk=named("unknown"), chat_template=template)


def _rope_factor(header: Header) -> float | None:
    kind = header.text("llama.rope.scaling.type") or "none"
    if kind == "none":
        return None
    factor = header.number("llama.rope.scaling.factor")
    if kind != "linear" or factor is None:
        raise SwarmctlError(f"rope scaling {kind!r} (factor {factor}) cannot be expressed; linear scaling can")
    return _shortest(factor)


def _of_kind(tokens: tuple[str, ...], kinds: tuple[int, ...], kind: int) -> tuple[str, ...]:
    return tuple(token for token, its_kind in zip(tokens, kinds, strict=False) if its_kind == kind)


def _shortest(value: float) -> float:
    """A number that was stored as float32, as it was meant: 9.9999997e-06 → 1e-05."""
    return float(f"{value:.6g}")
