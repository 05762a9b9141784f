"""What was sent to the blocks of one boundary, so that a lost attention cache can be rebuilt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch


class Mark(NamedTuple):
    """A moment of a history; see `History.mark`."""

    end: int
    chunks: int
    orders: int


class History:
    """The inputs at one block boundary, positions `[base, end)`, as the chunks in which they came.

    Appending is O(1) and copies nothing that is new (petals joins all of it at every step). Beam search reorders the
    sequences of a batch at each step; an order is kept beside the chunks it applies to and carried out only when read.
    """

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.end = base  # the first position that is not held
        self._chunks: list[torch.Tensor] = []
        # (number of chunks that it applies to, order): applies to all that was there when it was made
        self._orders: list[tuple[int, torch.Tensor]] = []

    def extend(self, begin: int, chunk: torch.Tensor) -> None:
        """Add `chunk: [batch, tokens, hidden_size]` for positions from `begin`; what is held already is left out.

        The chunk is kept, not copied, when it is on the CPU and all of it is new: it must not be changed afterwards.

        Raises:
            ValueError: when the chunk would leave a hole.
        """
        if begin > self.end:
            raise ValueError(f"positions {self.end}:{begin} are missing")
        fresh = chunk[:, self.end - begin :].detach().cpu()
        if fresh.shape[1]:
            # A part of a chunk would keep the memory of all of it.
            self._chunks.append(fresh if begin == self.end else fresh.clone())
            self.end += fresh.shape[1]

    def reorder(self, order: torch.Tensor) -> None:
        """From now on sequence i of what is held is what sequence `order[i]` was. `order: [batch], int64`."""
        if self._chunks:
            self._orders.append((len(self._chunks), order.cpu()))

    def mark(self) -> Mark:
        """This moment, to come back to with `restore` if the step that begins is not completed."""
        return Mark(end=self.end, chunks=len(self._chunks), orders=len(self._orders))

    def restore(self, mark: Mark) -> None:
        """Forget what `extend` and `reorder` have added since `mark` was taken, also if one was interrupted."""
        del self._chunks[mark.chunks :]
        del self._orders[mark.orders :]
        self.end = mark.end

    def truncate(self, end: int) -> None:
        """Forget positions from `end` on; the sequences of the others stay in their present order."""
        while self._chunks and self.end > end:
            surplus = self.end - end
            last = self._chunks.pop()
            kept = max(0, last.shape[1] - surplus)
            self.end -= last.shape[1] - kept
            if kept:
                self._chunks.append(last[:, :kept].clone())
        held = len(self._chunks)
        self._orders = [(min(count, held), order) for count, order in self._orders] if held else []

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Positions `[begin, end)`: `[batch, end - begin, hidden_size]`, sequences in their present order.

        Raises:
            ValueError: when they are not held.
        """
        if not self.base <= begin < end <= self.end:
            raise ValueError(f"positions {begin}:{end} are not held, only {self.base}:{self.end}")
        parts: list[torch.Tensor] = []
        order: torch.Tensor | None = None
        newer = len(self._orders)
        chunk_end = self.end
        for index in range(len(self._chunks) - 1, -1, -1):
            while newer and self._orders[newer - 1][0] > index:
                newer -= 1
                older = self._orders[newer][1]
                # cache[p1][p2] == cache[p1[p2]]: an older order is looked up by the newer ones
                order = older if order is None else older[order]
            chunk = self._chunks[index]
            chunk_begin = chunk_end - chunk.shape[1]
            low, high = max(begin, chunk_begin), min(end, chunk_end)
            if low < high:
                piece = chunk[:, low - chunk_begin : high - chunk_begin]
                parts.append(piece if order is None else piece[order])
            chunk_end = chunk_begin
            # What an ordinary step reads is at the end, and a session has thousands of chunks.
            if chunk_begin <= begin:
                break
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], dim=1)

    @property
    def size_bytes(self) -> int:
        """Memory held by the chunks."""
        return sum(chunk.numel() * chunk.element_size() for chunk in self._chunks)


class Histories:
    """The histories of a session, one at each block boundary where a leg begins, and one behind the last block."""

    def __init__(self, num_blocks: int) -> None:
        self._last = num_blocks
        self._at: dict[int, History] = {0: History()}

    def begin_step(self, position: int, inputs: torch.Tensor, order: torch.Tensor | None) -> None:
        """The step's `inputs: [batch, tokens, hidden_size]`; all that is held is put into the new `order` first."""
        for history in self._at.values():
            if order is not None:
                history.reorder(order)
        # A copy: the caller may use its buffer again.
        self._at[0].extend(position, inputs.detach().to("cpu", copy=True))
        self._at[self._last] = History(base=position)

    def read(self, at: int, begin: int, end: int) -> torch.Tensor:
        """Positions `[begin, end)` at the boundary before block `at`; see `History.read`."""
        return self._at[at].read(begin, end)

    def extend(self, at: int, begin: int, chunk: torch.Tensor) -> None:
        """What the leg that ends at `at` has answered; see `History.extend`."""
        self._at.setdefault(at, History()).extend(begin, chunk)

    def outputs(self, begin: int, end: int) -> torch.Tensor:
        """The running step's hidden states behind the last block."""
        return self._at[self._last].read(begin, end)

    def end_step(self, boundaries: Collection[int]) -> None:
        """Forget boundaries that no leg begins at: they would stop growing. A later leg there starts from 0."""
        self._at = {at: held for at, held in self._at.items() if at in boundaries or at == 0}

    def marks(self) -> Mapping[int, Mark]:
        """This moment, to come back to with `restore`."""
        return {at: history.mark() for at, history in self._at.items()}

    def restore(self, marks: Mapping[int, Mark]) -> None:
        """Back to `marks`. Boundaries made since are forgotten: their sequences are in a new order."""
        self._at = {at: history for at, history in self._at.items() if at in marks}
        for at, history in self._at.items():
            history.restore(marks[at])

    def truncate(self, position: int) -> None:
        """Forget positions from `position` on."""
        for history in self._at.values():
            history.truncate(position)

    def clear(self) -> None:
        """Forget everything, for good."""
        self._at.clear()

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(history.size_bytes for history in self._at.values())
