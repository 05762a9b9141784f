"""Byte-level BPE tokenizers, written so that `AutoTokenizer` reads them without a hub.

A byte-level token is spelled in an alphabet of 256 printable characters, one a byte; a space is `Ġ`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from swarmctl.upstream.checkpoint import write_settings

SPACE = "Ġ"

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a byte-level BPE knows.

    `tokens` are in the order of their ids and spelled in the byte alphabet, but for `special` (never produced by
    text, left out by `skip_special_tokens`) and `literal` (whole words that are never split), which are plain
    text. `merges` are in the order in which they apply. With `split_digits` each digit is a token of its own;
    with `starts_with` a token stands before every text.
    """

    tokens: tuple[str, ...]
    merges: tuple[Pair, ...]
    special: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    split_digits: bool = False
    starts_with: str | None = None


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The tokens with a role, as text. None: the model has none, so nothing ends or pads its output."""

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None
    chat_template: str | None = None


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """A tokenizer whose `decode` gives back every text that `encode` took, byte for byte."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if vocabulary.split_digits else words
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in vocabulary.special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in vocabulary.literal])
    if vocabulary.starts_with is not None:
        first = vocabulary.starts_with
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, ids[first])]
        )
    return tokenizer


def write_tokenizer(folder: Path, vocabulary: Vocabulary, roles: Roles, *, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`; `max_length` is the model's limit in tokens."""
    build_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    named = {
        "bos_token": roles.bos,
        "eos_token": roles.eos,
        "pad_token": roles.pad,
        "unk_token": roles.unk,
        "chat_template": roles.chat_template,
    }
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # else it hands out token_type_ids too, which `generate` refuses for these models
        "model_input_names": ["input_ids", "attention_mask"],
        # else decoding closes the gaps before punctuation, and texts do not come back as they were
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        **{key: value for key, value in named.items() if value is not None},
    }
    write_settings(folder / "tokenizer_config.json", settings)


def byte_alphabet() -> tuple[str, ...]:
    """The 256 characters that stand for bytes, in the order of their code points."""
    return tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))


def learn_merges(text: str, limit: int) -> tuple[Pair, ...]:
    """At most `limit` merges for the ASCII words of `text`, most frequent first; the same for the same text."""
    words = Counter(tuple(word.replace(" ", SPACE)) for word in re.findall(r" ?[A-Za-z]+", text))
    merges: list[Pair] = []
    while len(merges) < limit:
        pairs: Counter[Pair] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    return tuple(merges)


def _merged(word: Sequence[str], pair: Pair) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)
