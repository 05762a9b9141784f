"""What can happen in a session's step, and what there is to do about it: plain values, no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarmctl.blocks import BlockRange, PeerId


class FailureKind(str, Enum):
    """Why a leg was given up; it decides where the next attempt goes.

    LOST: the connection ended, or could not be opened. SILENT: no answer in time. BUSY: the server is well and has
    no room. REFUSED: it does not serve these blocks. EXPIRED: a healthy server ended an old stream; the same server
    may be used again. BROKEN: it answered with an error that another server may not have. SLOW: another had the
    answer first; nothing is held against it but that. UNDIALLED: libp2p did not try, because a dial to it failed a
    while ago; it may be back since.
    """

    LOST = "lost"
    SILENT = "silent"
    BUSY = "busy"
    REFUSED = "refused"
    EXPIRED = "expired"
    BROKEN = "broken"
    SLOW = "slow"
    UNDIALLED = "undialled"


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One server's part of a session. `id` is unique in the session; `fed`: positions in its attention cache."""

    id: int
    blocks: BlockRange
    peer: PeerId
    fed: int = 0


# --- events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepRequested:
    """The model wants `tokens` new positions computed."""

    tokens: int


@dataclass(frozen=True, kw_only=True)
class RouteFound:
    """Servers for exactly the range that was asked for, in block order."""

    hops: tuple[tuple[PeerId, BlockRange], ...]


@dataclass(frozen=True, kw_only=True)
class RouteMissing:
    """No server outside `avoid` has these blocks."""

    missing: tuple[BlockRange, ...]


@dataclass(frozen=True, kw_only=True)
class Fed:
    """A leg has answered for all positions before `upto`."""

    leg: int
    upto: int


@dataclass(frozen=True, kw_only=True)
class LegFailed:
    """A leg could not be opened or did not answer; its cache is worth nothing any more."""

    leg: int
    kind: FailureKind


@dataclass(frozen=True, kw_only=True)
class Late:
    """A leg that is being fed has been silent for too long; its answer may still come."""

    leg: int


@dataclass(frozen=True, kw_only=True)
class WaitOver:
    """The driver has waited and looked again; what was avoided may be tried again."""


@dataclass(frozen=True, kw_only=True)
class DeadlinePassed:
    """The time for a recovery is up. `need`: the blocks that were waited for; None stands for the first hole."""

    need: BlockRange | None = None


@dataclass(frozen=True, kw_only=True)
class StepAborted:
    """The step ends without an answer (an interrupt, an error of the caller); `in_flight`: the legs being fed."""

    in_flight: frozenset[int] = frozenset()


Happening = StepRequested | RouteFound | RouteMissing | Fed | LegFailed | Late | WaitOver | DeadlinePassed | StepAborted


# --- instructions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FindRoute:
    """Find servers that tile `need`, none of `avoid`.

    `waited`: nobody was there a moment ago, so a server that failed is asked again only when its ban is over.
    """

    need: BlockRange
    avoid: frozenset[PeerId]
    waited: bool = False


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Send positions `[begin, end)` of the history at the leg's first block; open its stream if `opens`.

    For a leg that is being fed already: wait for it. What happens first is to be told, to whichever leg that is being
    fed. `patient`: a server without room may be given time to make some; there was nobody else to ask.
    """

    leg: Leg
    begin: int
    end: int
    patient: bool = False

    @property
    def opens(self) -> bool:
        """True for a leg whose cache is empty: its stream is new."""
        return self.begin == 0


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nobody can take `need`: wait a little, read the DHT again, then say `WaitOver` or `DeadlinePassed`."""

    need: BlockRange


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The step is done: every leg holds `position` positions."""

    position: int


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """No server takes `need`. `hopeless`: every one that was tried answered with an error of its own."""

    need: BlockRange
    tried: tuple[PeerId, ...]
    hopeless: bool


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Nothing to do until the next step."""


Instruction = FindRoute | Feed | Wait | Commit | GiveUp | Idle
