"""The recovery machine with a memory for its last instruction, and short words for what it says."""

from __future__ import annotations

import pytest

from swarmctl.blocks import BlockRange, PeerId, parse_range
from swarmctl.recovery import (
    Commit,
    FailureKind,
    Fed,
    Feed,
    FindRoute,
    GiveUp,
    Happening,
    Idle,
    Instruction,
    LegFailed,
    RouteFound,
    SessionState,
    StepRequested,
    Wait,
    advance,
)


def hops(*texts: str) -> tuple[tuple[PeerId, BlockRange], ...]:
    """`a=0:4` is peer a for blocks 0:4."""
    pairs = (text.split("=") for text in texts)
    return tuple((PeerId(peer), parse_range(blocks)) for peer, blocks in pairs)


class Machine:
    """A session of six blocks; remembers the last instruction."""

    def __init__(self, state: SessionState | None = None) -> None:
        self.state = state or SessionState(num_blocks=6)
        self.last: Instruction = Idle()

    def on(self, event: Happening) -> Instruction:
        self.state, self.last = advance(self.state, event)
        return self.last

    def leg_of(self, peer: str) -> int:
        return next(leg.id for leg in self.state.legs if leg.peer == peer)

    def route(self, *texts: str) -> Instruction:
        return self.on(RouteFound(hops=hops(*texts)))

    def answer(self) -> Instruction:
        """The leg that is to be fed answers for all of it."""
        assert isinstance(self.last, Feed)
        return self.on(Fed(leg=self.last.leg.id, upto=self.last.end))

    def fail(self, kind: FailureKind = FailureKind.LOST) -> Instruction:
        """The leg that is to be fed fails."""
        assert isinstance(self.last, Feed)
        return self.on(LegFailed(leg=self.last.leg.id, kind=kind))

    def finish(self) -> Instruction:
        """Every leg that is still hungry answers."""
        while isinstance(self.last, Feed):
            self.answer()
        return self.last


def told(instruction: Instruction) -> str:
    """The instruction in short: `feed a 0:5`, `find 2:4 avoid a,b`."""
    match instruction:
        case Feed():
            return f"feed {instruction.leg.peer} {instruction.begin}:{instruction.end}"
        case FindRoute():
            return f"find {instruction.need} avoid {','.join(sorted(instruction.avoid))}".removesuffix(" avoid ")
        case Commit():
            return f"commit {instruction.position}"
        case Wait():
            return f"wait {instruction.need}"
        case GiveUp():
            hopeless = " hopeless" if instruction.hopeless else ""
            return f"give up {instruction.need} tried {','.join(instruction.tried)}{hopeless}"
        case Idle():
            return "idle"


@pytest.fixture
def machine() -> Machine:
    """Five positions are committed on a=0:2, b=2:4, c=4:6."""
    machine = Machine()
    machine.on(StepRequested(tokens=5))
    machine.route("a=0:2", "b=2:4", "c=4:6")
    assert machine.finish() == Commit(position=5)
    return machine
