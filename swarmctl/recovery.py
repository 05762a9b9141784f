"""The decisions of a session that survives its servers: events in, one instruction out. No I/O, clock or tensor.

A session holds its blocks by *legs*, one a server, in block order. `fed` of a leg counts the positions that its
attention cache holds. One rule gives every recovery: **the earliest hole is repaired first**.

    hole          a range of blocks without a leg             → find servers for it
    hungry leg    fed < target (the step's end)               → feed it history[fed:target] of its first block
    no hole, nobody hungry                                    → commit: the step is done on all legs, or on none

A live leg is hungry by the step's new tokens only, a fresh one by the whole history: replay is no special case. The
history of a block boundary is what the leg before it has answered, so a lost leg may be replaced by several, and
each of them by others later. The driver (`upstream.session`) owns tensors, streams and time, and performs the
instructions; whatever happens to it comes back as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from typing_extensions import assert_never

from swarmctl.blocks import BlockRange, PeerId


class FailureKind(str, Enum):
    """Why a leg was given up; it decides where the next attempt goes.

    LOST: the connection ended, or could not be opened. SILENT: no answer in time. BUSY: the server is well and has
    no room. REFUSED: it does not serve these blocks. EXPIRED: a healthy server ended an old stream; the same server
    may be used again. BROKEN: it answered with an error that another server may not have.
    """

    LOST = "lost"
    SILENT = "silent"
    BUSY = "busy"
    REFUSED = "refused"
    EXPIRED = "expired"
    BROKEN = "broken"


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
class WaitOver:
    """The driver has waited and looked again; what was avoided may be tried again."""


@dataclass(frozen=True, kw_only=True)
class DeadlinePassed:
    """The time for a recovery is up. `need`: the blocks that were waited for; None stands for the first hole."""

    need: BlockRange | None = None


@dataclass(frozen=True, kw_only=True)
class StepAborted:
    """The step ends without an answer (an interrupt, an error of the caller); `in_flight`: the leg being fed."""

    in_flight: int | None = None


Happening = StepRequested | RouteFound | RouteMissing | Fed | LegFailed | WaitOver | DeadlinePassed | StepAborted


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

    `patient`: a server without room may be given time to make some; there was nobody else to ask.
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


@dataclass(frozen=True, kw_only=True)
class SessionState:
    """A session as values. Invariant between steps: every leg's `fed` is `committed`, or the leg is not there.

    `target` is None between steps. `failures` holds what happened to whom since the step began; `avoid` those of
    them that must not be asked again before a wait.
    """

    num_blocks: int
    committed: int = 0
    target: int | None = None
    legs: tuple[Leg, ...] = ()
    avoid: frozenset[PeerId] = frozenset()
    failures: tuple[tuple[PeerId, FailureKind], ...] = ()
    next_leg: int = 0
    waited: bool = False

    def leg(self, leg_id: int) -> Leg | None:
        """The leg with this id, or None if it is gone."""
        return next((leg for leg in self.legs if leg.id == leg_id), None)

    @property
    def boundaries(self) -> frozenset[int]:
        """The blocks at which a leg begins: where a history must be kept."""
        return frozenset(leg.blocks.start for leg in self.legs)


def advance(state: SessionState, event: Happening) -> tuple[SessionState, Instruction]:
    """The next state and the one thing to do now.

    Raises:
        ValueError: when the event cannot happen in this state; that is a bug of the driver.
    """
    match event:
        case StepRequested():
            return _next(_with_step(state, event.tokens))
        case RouteFound():
            return _next(_with_hops(state, event.hops))
        case RouteMissing():
            return _without_route(state, event.missing)
        case Fed():
            return _next(_with_fed(state, event))
        case LegFailed():
            return _next(_without_leg(state, event))
        case WaitOver():
            return _next(replace(state, avoid=frozenset(), waited=True))
        case DeadlinePassed():
            need = event.need or _first_hole(state) or BlockRange(0, state.num_blocks)
            return state, GiveUp(need=need, tried=_tried(state), hopeless=False)
        case StepAborted():
            return _aborted(state, event.in_flight), Idle()
        case _:
            assert_never(event)


def rolled_back(state: SessionState, position: int) -> SessionState:
    """The session cut to its first `position` positions; caches cannot be cut, so every leg is rebuilt.

    Raises:
        ValueError: when the session never was there, or a step is running.
    """
    if state.target is not None or not 0 <= position <= state.committed:
        raise ValueError(f"cannot go from position {state.committed} to {position}")
    return state if position == state.committed else replace(state, committed=position, legs=())


def _with_step(state: SessionState, tokens: int) -> SessionState:
    if state.target is not None:
        raise ValueError("a step is already running")
    if tokens < 1:
        raise ValueError(f"a step of {tokens} tokens is none")
    return replace(state, target=state.committed + tokens, waited=False)


def _next(state: SessionState) -> tuple[SessionState, Instruction]:
    if state.target is None:
        return state, Idle()
    hole = _first_hole(state)
    hungry = next((leg for leg in state.legs if leg.fed < state.target), None)
    if hungry is not None and (hole is None or hungry.blocks.start < hole.start):
        return state, Feed(leg=hungry, begin=hungry.fed, end=state.target, patient=state.waited)
    if hole is not None:
        return state, FindRoute(need=hole, avoid=state.avoid, waited=state.waited)
    done = replace(state, committed=state.target, target=None, avoid=frozenset(), failures=(), waited=False)
    return done, Commit(position=done.committed)


def _first_hole(state: SessionState) -> BlockRange | None:
    expected = 0
    for leg in state.legs:
        if leg.blocks.start > expected:
            return BlockRange(expected, leg.blocks.start)
        expected = leg.blocks.end
    return BlockRange(expected, state.num_blocks) if expected < state.num_blocks else None


def _with_hops(state: SessionState, hops: Sequence[tuple[PeerId, BlockRange]]) -> SessionState:
    hole = _first_hole(state)
    ends = [blocks.end for _, blocks in hops]
    starts = [blocks.start for _, blocks in hops]
    if hole is None or not hops or [*starts, hole.end] != [hole.start, *ends]:
        raise ValueError(f"the route {hops} does not tile {hole}")
    fresh = tuple(
        Leg(id=state.next_leg + offset, blocks=blocks, peer=peer) for offset, (peer, blocks) in enumerate(hops)
    )
    legs = sorted((*state.legs, *fresh), key=lambda leg: leg.blocks.start)
    return replace(state, legs=tuple(legs), next_leg=state.next_leg + len(fresh))


def _without_route(state: SessionState, missing: Sequence[BlockRange]) -> tuple[SessionState, Instruction]:
    hole = missing[0] if missing else _first_hole(state)
    if hole is None:
        raise ValueError("there is no hole to find a route for")
    kinds = {kind for _, kind in state.failures}
    if kinds and kinds <= {FailureKind.BROKEN}:
        # Every server of these blocks answered, with an error: asking again would give the same answer.
        return state, GiveUp(need=hole, tried=_tried(state), hopeless=True)
    return state, Wait(need=hole)


def _with_fed(state: SessionState, event: Fed) -> SessionState:
    leg = state.leg(event.leg)
    if leg is None or state.target is None or not leg.fed <= event.upto <= state.target:
        raise ValueError(f"leg {event.leg} cannot have been fed up to {event.upto}")
    fed = replace(leg, fed=event.upto)
    return replace(state, legs=tuple(fed if other.id == leg.id else other for other in state.legs))


def _without_leg(state: SessionState, event: LegFailed) -> SessionState:
    leg = state.leg(event.leg)
    if leg is None:
        raise ValueError(f"leg {event.leg} is not there")
    # A server that ended an old stream of its own accord is healthy; one that ends a new stream is not.
    again = event.kind is FailureKind.EXPIRED and leg.fed > 0
    return replace(
        state,
        legs=tuple(other for other in state.legs if other.id != leg.id),
        avoid=state.avoid if again else state.avoid | {leg.peer},
        failures=(*state.failures, (leg.peer, event.kind)),
    )


def _aborted(state: SessionState, in_flight: int | None) -> SessionState:
    kept = tuple(leg for leg in state.legs if leg.fed == state.committed and leg.id != in_flight)
    return replace(state, legs=kept, target=None, avoid=frozenset(), failures=(), waited=False)


def _tried(state: SessionState) -> tuple[PeerId, ...]:
    return tuple(dict.fromkeys(peer for peer, _ in state.failures))
