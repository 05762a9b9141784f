"""Token ids to text, piece by piece, without splitting a character that spans several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# How far back a piece is decoded with its context, at least: tokenizers look at a neighbour or two for spaces.
_CONTEXT_TOKENS = 8


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids` without special tokens; `tokenizer` is transformers'."""
    # Its clean-up takes spaces back that have been shown already ("do n't").
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


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
