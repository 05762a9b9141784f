"""What happened in one generation, and checkers that read it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from swarmctl.blocks import NodeName, PeerId
from swarmctl.events import (
    Event,
    FaultInjected,
    Hop,
    PeerFailed,
    RecoveryDone,
    RecoveryGivenUp,
    ReplayStarted,
    RouteChanged,
    RouteChosen,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
    encode,
)

RECOVERY_BUDGET_S = 5.0
"""From the moment a failure is noticed to the end of the step that met it; a quiet machine needs 0.1 s."""


@dataclass
class History:
    """One generation: what was asked, what came, what happened on the way; events in the order in which they did.

    `ids` holds the new tokens of each prompt; None until the generation is over, and for ever if it failed.
    """

    about: str
    events: list[Event] = field(default_factory=list)
    ids: tuple[tuple[int, ...], ...] | None = None
    error: str | None = None

    def of(self, kind: type[Event]) -> list:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def failed(self) -> tuple[NodeName | None, ...]:
        """The nodes that were given up, in that order."""
        return tuple(event.hop.node for event in self.of(PeerFailed))

    @property
    def waited(self) -> bool:
        """True if at some time there was no server for some blocks."""
        return bool(self.of(WaitingForPeers))

    @property
    def replays(self) -> tuple[tuple[NodeName | None, int, int], ...]:
        """(node, tokens, chunks) of each replay."""
        return tuple((event.hop.node, event.tokens, event.chunks) for event in self.of(ReplayStarted))

    @property
    def routes(self) -> tuple[tuple[str, ...], ...]:
        """Every route that was taken, each as `a 0:3`, hop by hop."""
        return tuple(written(event.route) for event in self.events if isinstance(event, (RouteChosen, RouteChanged)))

    @property
    def killed(self) -> tuple[NodeName, ...]:
        """The nodes that drills have killed."""
        return tuple(event.node for event in self.of(FaultInjected))

    def report(self) -> str:
        """All of it, as JSON lines under a headline."""
        lines = [f"{self.about}: {self.error or self.ids}", *(encode(event) for event in self.events)]
        return "\n".join(lines)


def written(route: Sequence[Hop]) -> tuple[str, ...]:
    """A route in words."""
    return tuple(f"{hop.label} {hop.blocks}" for hop in route)


def check(history: History, *, num_blocks: int) -> None:
    """Run all checkers.

    Raises:
        AssertionError: with everything that any of them found, not the first.
    """
    found = [line for checker in CHECKERS for line in checker(history, num_blocks)]
    assert not found, "\n".join([*found, history.report()])


def _sessions(history: History) -> Iterator[list[Event]]:
    # Prompts of different lengths have sessions of their own, one after the other.
    starts = [at for at, event in enumerate(history.events) if isinstance(event, RouteChosen)]
    for start, end in zip(starts, [*starts[1:], len(history.events)], strict=True):
        yield history.events[start:end]


def positions_grow_by_the_step(history: History, _num_blocks: int) -> Iterator[str]:
    """No position is lost and none is computed twice, whatever happened within the step."""
    for session in _sessions(history):
        position = 0
        for step, done in enumerate((event for event in session if isinstance(event, StepDone)), start=1):
            if (done.step, done.position) != (step, position + done.tokens):
                yield f"step {done.step} of {done.tokens} tokens went from position {position} to {done.position}"
            position = done.position


def tokens_come_once_and_in_order(history: History, _num_blocks: int) -> Iterator[str]:
    """What was streamed is what was returned: nothing lost, nothing doubled."""
    streamed: list[tuple[int, ...]] = []
    for session in _sessions(history):
        emitted = [event for event in session if isinstance(event, TokensEmitted)]
        if [event.index for event in emitted] != list(range(len(emitted))):
            yield f"tokens were numbered {[event.index for event in emitted]}"
        streamed += list(zip(*(event.ids for event in emitted), strict=True))
    if streamed and history.ids is not None and sorted(streamed) != sorted(history.ids):
        yield f"streamed {streamed}, returned {history.ids}"


def failures_end_in_recovery_or_in_an_error(history: History, _num_blocks: int) -> Iterator[str]:
    """No step is done over a failure that nobody has recovered, and no failure is forgotten."""
    pending: set[PeerId] = set()
    for event in history.events:
        match event:
            case PeerFailed():
                pending.add(event.hop.peer)
            case RecoveryDone():
                pending -= set(event.failed)
            case RecoveryGivenUp():
                pending.clear()
            case StepDone() if pending:
                yield f"step {event.step} was done and {pending} were never recovered"
    if pending and history.error is None:
        yield f"{pending} were never recovered"


def recovery_is_quick(history: History, _num_blocks: int) -> Iterator[str]:
    """Each recovery that had a server to go to keeps the budget."""
    if history.waited:
        return
    for event in history.of(RecoveryDone):
        if event.pause_ms > RECOVERY_BUDGET_S * 1e3:
            yield f"a recovery took {event.pause_ms:.0f} ms"


def new_routes_leave_the_failed_out(history: History, _num_blocks: int) -> Iterator[str]:
    """A peer that failed in a step is in no route that is made later in that step."""
    out: set[PeerId] = set()
    for event in history.events:
        match event:
            case PeerFailed() if event.kind != "expired":
                out.add(event.hop.peer)
            case RouteChanged():
                if back := out & {hop.peer for hop in (*event.now, *event.route)}:
                    yield f"{back} failed, and the new route is {written(event.route)}"
            case StepDone() | WaitingForPeers():
                out.clear()


def routes_hold_each_block_once(history: History, num_blocks: int) -> Iterator[str]:
    """The first route tiles the model; a changed one has no block twice."""
    for event in history.events:
        if isinstance(event, (RouteChosen, RouteChanged)):
            blocks = [block for hop in event.route for block in hop.blocks]
            whole = isinstance(event, RouteChosen)
            if blocks != sorted(set(blocks)) or (whole and blocks != list(range(num_blocks))):
                yield f"the route {written(event.route)} serves blocks {blocks}"


CHECKERS: tuple[Callable[[History, int], Iterator[str]], ...] = (
    positions_grow_by_the_step,
    tokens_come_once_and_in_order,
    failures_end_in_recovery_or_in_an_error,
    recovery_is_quick,
    new_routes_leave_the_failed_out,
    routes_hold_each_block_once,
)
