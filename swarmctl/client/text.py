"""Between text and token ids: prompts and chats in, text out piece by piece, no character split over two pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swarmctl.errors import RequestInvalid

# How far back a piece is decoded with its context, at least: tokenizers look at a neighbour or two for spaces.
_CONTEXT_TOKENS = 8
# Stands for an answer while a chat template is filled in; templates strip spaces around a message and keep the rest.
_ANSWER = "\u2402answer\u2403"


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids` without special tokens; `tokenizer` is transformers'."""
    # Its clean-up takes spaces back that have been shown already ("do n't").
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A model's tokenizer, transformers', and what ends and fills its sequences. `source` is the model's name."""

    tokenizer: Any
    stops: frozenset[int]
    pad: int
    source: str

    def until_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids` up to the first stop token, that one included."""
        end = next((at + 1 for at, token in enumerate(ids) if token in self.stops), len(ids))
        return tuple(ids[:end])

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The ids of a text; with `special`, also those that a sequence begins with.

        Raises:
            RequestInvalid: when there is none.
        """
        ids = [int(token) for token in self.tokenizer(text, add_special_tokens=special).input_ids]
        if not ids:
            raise RequestInvalid("the prompt is empty", hints=["give at least one character"])
        return ids


class Chat:
    """The messages of a chat, in the words of the model's own template."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises RequestInvalid for a model that has no template."""
        if not vocabulary.tokenizer.chat_template:
            raise RequestInvalid(
                f"{vocabulary.source} has no chat template", hints=["leave --chat out to continue plain text"]
            )
        self._vocabulary = vocabulary
        self._messages: list[dict[str, str]] = []

    def encode(self, prompt: str, answered: Sequence[int] = ()) -> list[int]:
        """The ids of the user's next message, up to where the model answers; `answered` are those of its last answer.

        They begin where `answered` ends, so they first close that answer, unless the model has done so itself.
        """
        asked = {"role": "user", "content": prompt}
        if not self._messages:
            text = self._written([asked])
        else:
            answer = {"role": "assistant", "content": _ANSWER}
            text = self._written([*self._messages, answer, asked]).rpartition(_ANSWER)[2]
            if answered and answered[-1] in self._vocabulary.stops:
                text = text.removeprefix(self._vocabulary.tokenizer.decode([answered[-1]]))
        # A chat template writes the special tokens itself.
        return self._vocabulary.encode(text, special=False)

    def note(self, prompt: str, answered: Sequence[int] = ()) -> None:
        """What `encode` made of these was said."""
        if self._messages:
            content = decode(self._vocabulary.tokenizer, answered)
            self._messages.append({"role": "assistant", "content": content})
        self._messages.append({"role": "user", "content": prompt})

    def _written(self, messages: Sequence[dict[str, str]]) -> str:
        template = self._vocabulary.tokenizer.apply_chat_template
        return str(template(list(messages), add_generation_prompt=True, tokenize=False))


class TextStream:
    """Decodes a growing sequence; `emit` gets each piece once, in order. `tokenizer` is transformers'."""

    def __init__(self, tokenizer: Any, emit: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._emit = emit
        self._ids: list[int] = []
        # Where pieces ended, the newest last: between two characters. One that began in the middle of a character
        # would spoil its neighbours too, since some tokenizers decode adjacent bytes together or not at all.
        self._ends = [0]

    def put(self, ids: Sequence[int]) -> None:
        """Add tokens; emits what has become certain."""
        self._ids.extend(ids)
        piece = self._piece()
        # A character of several bytes shows as U+FFFD until its last token is there.
        if piece and not piece.endswith("\ufffd"):
            self._show(piece)

    def end(self) -> None:
        """Emit what is left."""
        piece = self._piece()
        if piece:
            self._show(piece)

    def _show(self, piece: str) -> None:
        self._ends.append(len(self._ids))
        while len(self._ends) > 1 and self._ends[1] <= self._ends[-1] - _CONTEXT_TOKENS:
            del self._ends[0]
        self._emit(piece)

    def _piece(self) -> str:
        begin, shown = self._ends[0], self._ends[-1]
        before = decode(self._tokenizer, self._ids[begin:shown])
        return decode(self._tokenizer, self._ids[begin:])[len(before) :]
