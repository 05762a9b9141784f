"""What happened in one generation, and what the product's checkers say of it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarmctl.blocks import NodeName
from swarmctl.checkers import Account, objections
from swarmctl.events import (
    Event,
    FaultInjected,
    Hop,
    PeerFailed,
    ReplayStarted,
    RouteChanged,
    RouteChosen,
    WaitingForPeers,
    encode,
)


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
    account = Account(events=tuple(history.events), num_blocks=num_blocks, ids=history.ids, error=history.error)
    found = objections(account)
    assert not found, "\n".join([*found, history.report()])
