"""What has come out since something was said, told once each: tokens as events, text in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarmctl.client.request import Sampling
from swarmctl.client.text import TextStream, Vocabulary
from swarmctl.events import EventSink, TokensEmitted

Column = tuple[int, ...]
"""One token for each sequence of a batch, at one place."""


class Answer:
    """The columns from `begin` on of a conversation's tokens, which a call writes and those that finish it.

    `wanted`: how many there shall be. A token that the sink or the text's listener refuses, by an exception, counts as
    told; those that it kept others from being told are made up for.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        sampling: Sampling,
        *,
        begin: int,
        sink: EventSink,
        texts: Sequence[Callable[[str], None]],
    ) -> None:
        self.sampling = sampling
        self.begin = begin
        self.wanted = sampling.max_new_tokens
        self._stops = vocabulary.stops
        self._sink = sink
        self._texts = [TextStream(vocabulary.tokenizer, emit) for emit in texts]
        self._emitted = 0
        self._shown = [0] * len(texts)
        self._ended = [False] * len(texts)

    def ended(self, columns: Sequence[Column]) -> tuple[bool, ...]:
        """Which sequences hold a stop token; `columns` are those of the answer."""
        return tuple(any(column[row] in self._stops for column in columns) for row in range(len(self._texts)))

    def tell(self, columns: Sequence[Column], at_s: float) -> None:
        """Emit what is new among the answer's `columns`, and show its text."""
        while self._emitted < len(columns):
            index = self._emitted
            self._emitted += 1
            self._sink(TokensEmitted(at_s=at_s, index=index, ids=columns[index]))
        self.show(columns)

    def show(self, columns: Sequence[Column]) -> None:
        """Show the text that is new; that of a sequence ends with its stop."""
        for row, text in enumerate(self._texts):
            while self._shown[row] < len(columns):
                token = columns[self._shown[row]][row]
                self._shown[row] += 1
                if not self._ended[row]:
                    self._ended[row] = token in self._stops
                    text.put([token])

    def end(self) -> None:
        """Show what was held back because a character might not be complete."""
        for text in self._texts:
            text.end()
