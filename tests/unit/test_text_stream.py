"""Streamed text is the whole text, in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from swarmctl.client.text import TextStream, decode

LETTERS = "ab ,.'é€語🙂👍🏽"


class Tokens:
    """A tokenizer whose ids are positions in a list of tokens; the decoders are those of real models."""

    def __init__(self, decoder: decoders.Decoder, tokens: Sequence[str], *, special: str = "</s>") -> None:
        self.decoder = decoder
        self.tokens = list(tokens)
        self.special = special

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return str(self.decoder.decode([self.tokens[i] for i in ids if self.tokens[i] != self.special]))


def llama(*tokens: str) -> Tokens:
    """As Llama 2 decodes: a bar is a space, the first space is dropped, unknown characters are bytes like `<0xE2>`."""
    replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
    return Tokens(decoders.Sequence([replace, decoders.ByteFallback(), fuse, decoders.Strip(" ", 1, 0)]), tokens)


def llama_tokens(text: str) -> list[str]:
    """Every letter a token; what is not ASCII becomes bytes."""
    tokens: list[str] = []
    for letter in text:
        tokens += [letter] if letter.isascii() else [f"<0x{byte:02X}>" for byte in letter.encode()]
    return [token.replace(" ", "▁") for token in tokens]


def byte_level(*tokens: str) -> Tokens:
    """As BLOOM and GPT-2 decode: every character of a token stands for a byte."""
    return Tokens(decoders.ByteLevel(), tokens)


def byte_level_tokens(text: str, sizes: Sequence[int] = (1,)) -> list[str]:
    """The text's bytes in pieces of these sizes, repeated."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = "".join(part for part, _ in alphabet.pre_tokenize_str(text))
    tokens, at, turn = [], 0, 0
    while at < len(spelled):
        size = sizes[turn % len(sizes)]
        tokens.append(spelled[at : at + size])
        at, turn = at + size, turn + 1
    return tokens


def streamed(tokenizer: Tokens, groups: Sequence[int] = (1,)) -> list[str]:
    """The pieces of all tokens in order, put in groups of these sizes."""
    pieces: list[str] = []
    stream = TextStream(tokenizer, pieces.append)
    at = turn = 0
    while at < len(tokenizer.tokens):
        size = groups[turn % len(groups)]
        stream.put(range(at, min(at + size, len(tokenizer.tokens))))
        at, turn = at + size, turn + 1
    stream.end()
    return pieces


def whole(tokenizer: Tokens) -> str:
    return decode(tokenizer, range(len(tokenizer.tokens)))


def test_a_word_comes_as_soon_as_its_token_is_there() -> None:
    assert streamed(llama("▁The", "▁capital", ",", "▁of")) == ["The", " capital", ",", " of"]


def test_a_character_of_several_tokens_comes_when_its_last_one_is_there() -> None:
    assert streamed(llama(*llama_tokens("a€b"))) == ["a", "€", "b"]


def test_text_before_half_a_character_is_not_lost() -> None:
    assert streamed(byte_level("ab" + byte_level_tokens("é")[0], byte_level_tokens("é")[1])) == ["abé"]


def test_many_characters_of_several_tokens_in_a_row_stay_whole_far_from_the_beginning() -> None:
    text = "a " + "語🙂é€" * 8 + " b"

    assert "".join(streamed(llama(*llama_tokens(text)))) == text


def test_special_tokens_give_no_text_and_do_not_disturb_their_neighbours() -> None:
    tokenizer = llama("▁one", "</s>", "</s>", "▁two", "</s>")

    assert streamed(tokenizer) == ["one", " two"]


def test_what_never_became_a_character_comes_at_the_end() -> None:
    assert streamed(byte_level("a", *byte_level_tokens("語")[:2])) == ["a", "\ufffd"]


def test_nothing_put_is_nothing_said() -> None:
    assert streamed(llama()) == []


def test_only_a_bounded_part_of_a_long_text_is_decoded_again() -> None:
    longest = 0

    class Measured(Tokens):
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return super().decode(
                ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=clean_up_tokenization_spaces
            )

    streamed(Measured(decoders.ByteLevel(), byte_level_tokens("word " * 100)))

    assert longest < 20


@pytest.mark.parametrize("text", ["it 's a do n't , is it ?", "  two  spaces ", "a\n\nb"])
def test_spaces_stay_as_they_are(text: str) -> None:
    assert "".join(streamed(byte_level(*byte_level_tokens(text)))) == text


@given(text=st.text(LETTERS, max_size=40), groups=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_pieces_of_a_llama_make_the_whole_text(text: str, groups: list[int]) -> None:
    tokenizer = llama(*llama_tokens(text))

    assert "".join(streamed(tokenizer, groups)) == whole(tokenizer) == text.removeprefix(" ")


@given(
    text=st.text(LETTERS, max_size=40),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    groups=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_pieces_of_a_byte_level_model_make_the_whole_text(text: str, sizes: list[int], groups: list[int]) -> None:
    tokenizer = byte_level(*byte_level_tokens(text, sizes))

    assert "".join(streamed(tokenizer, groups)) == whole(tokenizer) == text
