"""Token ids to text, piece by piece, without splitting a character that spans several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# How far back a piece is decoded with its context: tokenizers look at a neighbour or two for spaces.
_CONTEXT_TOKENS = 8


class TextStream:
    """Decodes a growing sequence; `emit` gets each piece once, in order. `tokenizer` is transformers'."""

    def __init__(self, tokenizer: Any, emit: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._emit = emit
        self._ids: list[int] = []
        self._emitted = 0  # ids whose text has been emitted

    def put(self, ids: Sequence[int]) -> None:
        """Add tokens; emits what has become certain."""
        self._ids.extend(ids)
        piece = self._piece()
        # A character of several bytes shows as U+FFFD until its last token is there.
        if piece and not piece.endswith("\ufffd"):
            self._emitted = len(self._ids)
            self._emit(piece)

    def end(self) -> None:
        """Emit what is left."""
        piece = self._piece()
        self._emitted = len(self._ids)
        if piece:
            self._emit(piece)

    def _piece(self) -> str:
        begin = max(0, self._emitted - _CONTEXT_TOKENS)
        before = self._decode(self._ids[begin : self._emitted])
        return self._decode(self._ids[begin:])[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
