"""Half-open ranges of transformer blocks: the currency of placement, coverage and routing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NewType

PeerId = NewType("PeerId", str)
"""A libp2p identity in base58, e.g. `QmT3…k3Vd`."""
NodeName = NewType("NodeName", str)
"""The name of one declared block server or bootstrap peer in the swarm file."""
HostName = NewType("HostName", str)
"""The name of a machine in the swarm file."""

_RANGE = re.compile(r"^\s*(\d+)\s*:\s*(\d+)\s*$")


@dataclass(frozen=True, slots=True, order=True)
class BlockRange:
    """Blocks `[start, end)`, never empty; written `0:8`.

    Raises:
        ValueError: when the range is empty or starts below zero.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"{self.start}:{self.end} starts below block 0")
        if self.end <= self.start:
            raise ValueError(f"{self.start}:{self.end} is empty; the end must be greater than the start")

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))

    def __contains__(self, block: object) -> bool:
        return isinstance(block, int) and self.start <= block < self.end

    def covers(self, other: BlockRange) -> bool:
        """True if every block of `other` is in this range."""
        return self.start <= other.start and other.end <= self.end

    def intersection(self, other: BlockRange) -> BlockRange | None:
        """The common blocks, or None if there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return BlockRange(start, end) if start < end else None


def parse_range(text: str) -> BlockRange:
    """`"0:8"` → `BlockRange(0, 8)`.

    Raises:
        ValueError: with a sentence an operator can act on.
    """
    found = _RANGE.match(text)
    if not found:
        raise ValueError(f"{text!r} is not a block range; write START:END, for example 0:8")
    return BlockRange(int(found[1]), int(found[2]))


def ranges_of(blocks: Iterable[int]) -> tuple[BlockRange, ...]:
    """Maximal runs of consecutive blocks: `{0, 1, 2, 5}` → `(0:3, 5:6)`."""
    runs: list[BlockRange] = []
    for block in sorted(set(blocks)):
        if runs and runs[-1].end == block:
            runs[-1] = BlockRange(runs[-1].start, block + 1)
        else:
            runs.append(BlockRange(block, block + 1))
    return tuple(runs)
