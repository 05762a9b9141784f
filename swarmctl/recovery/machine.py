"""The decisions of a session that survives its servers: events in, one instruction out. No I/O, clock or tensor.

A session holds its blocks by *legs*, one a server, in block order. `fed` of a leg counts the positions that its
attention cache holds. One rule gives every recovery: **the earliest hole is repaired first**.

    hole          a range of blocks without a leg             → find servers for it
    hungry leg    fed < target (the step's end)               → feed it history[fed:target] of its first block
    no hole, nobody hungry                                    → commit: the step is done on all legs, or on none

A live leg is hungry by the step's new tokens only, a fresh one by the whole history: replay is no special case. The
history of a block boundary is what the leg before it has answered, so a lost leg may be replaced by several, and
each of them by others later.

A leg whose answer is *late* is a suspect, and not dead. Beside it a *hedge* is built: other legs over the same
blocks, found and fed by the same rule. Whichever is complete first stays, the other is let go.

The driver (`upstream.session`) owns tensors, streams and time, and performs the instructions; whatever happens to it
comes back as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import assert_never

from swarmctl.blocks import BlockRange, PeerId
from swarmctl.recovery.values import (
    Commit,
    DeadlinePassed,
    FailureKind,
    Fed,
    Feed,
    FindRoute,
    GiveUp,
    Happening,
    Idle,
    Instruction,
    Late,
    Leg,
    LegFailed,
    RouteFound,
    RouteMissing,
    StepAborted,
    StepRequested,
    Wait,
    WaitOver,
)


@dataclass(frozen=True, kw_only=True)
class SessionState:
    """A session as values. Invariant between steps: every leg's `fed` is `committed`, or the leg is not there.

    `target` is None between steps. `failures` holds what happened to whom since the step began; `avoid` those of
    them that must not be asked again before a wait. `suspect`: the leg that is late; `hedge`: the legs that may
    replace it, within its blocks; `alone`: there is nobody to hedge it with.
    """

    num_blocks: int
    committed: int = 0
    target: int | None = None
    legs: tuple[Leg, ...] = ()
    avoid: frozenset[PeerId] = frozenset()
    failures: tuple[tuple[PeerId, FailureKind], ...] = ()
    next_leg: int = 0
    waited: bool = False
    suspect: int | None = None
    hedge: tuple[Leg, ...] = ()
    alone: bool = False

    @property
    def open_legs(self) -> tuple[Leg, ...]:
        """The legs whose streams are wanted: those in use, and the hedge."""
        return (*self.legs, *self.hedge)

    def leg(self, leg_id: int | None) -> Leg | None:
        """The leg with this id, of the hedge too, or None if it is gone."""
        return next((leg for leg in self.open_legs if leg.id == leg_id), None)

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
        case Late():
            return _next(_with_suspect(state, event.leg))
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
    suspect = state.leg(state.suspect)
    if suspect is not None:
        return _hedging(state, suspect)
    hole, hungry = _first_hole(state), _hungry(state.legs, state.target)
    if hungry is not None and (hole is None or hungry.blocks.start < hole.start):
        return state, Feed(leg=hungry, begin=hungry.fed, end=state.target, patient=state.waited)
    if hole is not None:
        return state, FindRoute(need=hole, avoid=state.avoid, waited=state.waited)
    return _settled(replace(state, committed=state.target, target=None)), Commit(position=state.target)


def _hedging(state: SessionState, suspect: Leg) -> tuple[SessionState, Instruction]:
    end = state.target or 0
    hole, hungry = _hole_in(state.hedge, suspect.blocks), _hungry(state.hedge, end)
    if hungry is not None and (hole is None or hungry.blocks.start < hole.start):
        return state, Feed(leg=hungry, begin=hungry.fed, end=end)
    if hole is None:
        return _next(_replaced(state, suspect, FailureKind.SLOW))
    if state.alone:
        return state, Feed(leg=suspect, begin=suspect.fed, end=end, patient=state.waited)
    return state, FindRoute(need=hole, avoid=state.avoid | {suspect.peer}, waited=state.waited)


def _hungry(legs: Sequence[Leg], target: int) -> Leg | None:
    return next((leg for leg in legs if leg.fed < target), None)


def _first_hole(state: SessionState) -> BlockRange | None:
    return _hole_in(state.legs, BlockRange(0, state.num_blocks))


def _hole_in(legs: Sequence[Leg], whole: BlockRange) -> BlockRange | None:
    expected = whole.start
    for leg in legs:
        if leg.blocks.start > expected:
            return BlockRange(expected, leg.blocks.start)
        expected = leg.blocks.end
    return BlockRange(expected, whole.end) if expected < whole.end else None


def _wanted_hole(state: SessionState) -> BlockRange | None:
    suspect = state.leg(state.suspect)
    return _first_hole(state) if suspect is None else _hole_in(state.hedge, suspect.blocks)


def _settled(state: SessionState) -> SessionState:
    """Without what is only known, and only open, within a step."""
    return replace(state, avoid=frozenset(), failures=(), waited=False, suspect=None, hedge=(), alone=False)


def _with_hops(state: SessionState, hops: Sequence[tuple[PeerId, BlockRange]]) -> SessionState:
    hole = _wanted_hole(state)
    ends = [blocks.end for _, blocks in hops]
    starts = [blocks.start for _, blocks in hops]
    if hole is None or not hops or [*starts, hole.end] != [hole.start, *ends]:
        raise ValueError(f"the route {hops} does not tile {hole}")
    fresh = tuple(
        Leg(id=state.next_leg + offset, blocks=blocks, peer=peer) for offset, (peer, blocks) in enumerate(hops)
    )
    state = replace(state, next_leg=state.next_leg + len(fresh))
    if state.suspect is not None:
        return replace(state, hedge=_in_order(state.hedge, fresh))
    return replace(state, legs=_in_order(state.legs, fresh))


def _in_order(legs: Sequence[Leg], more: Sequence[Leg]) -> tuple[Leg, ...]:
    return tuple(sorted((*legs, *more), key=lambda leg: leg.blocks.start))


def _without_route(state: SessionState, missing: Sequence[BlockRange]) -> tuple[SessionState, Instruction]:
    if state.suspect is not None:
        return _next(replace(state, hedge=(), alone=True))
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

    def with_it(legs: Sequence[Leg]) -> tuple[Leg, ...]:
        return tuple(fed if other.id == leg.id else other for other in legs)

    if leg.id == state.suspect:
        return replace(state, legs=with_it(state.legs), suspect=None, hedge=(), alone=False)
    return replace(state, legs=with_it(state.legs), hedge=with_it(state.hedge))


def _with_suspect(state: SessionState, leg_id: int) -> SessionState:
    if state.target is None or state.suspect is not None or leg_id not in {leg.id for leg in state.legs}:
        raise ValueError(f"leg {leg_id} cannot be late now")
    return replace(state, suspect=leg_id, hedge=(), alone=False)


def _without_leg(state: SessionState, event: LegFailed) -> SessionState:
    leg = state.leg(event.leg)
    if leg is None:
        raise ValueError(f"leg {event.leg} is not there")
    if leg.id == state.suspect:
        return _replaced(state, leg, event.kind)
    # No route is asked for: it might lead to another server now, and there is nothing against this one.
    again = _may_go_on(leg, event.kind) and leg in state.legs
    fresh = (Leg(id=state.next_leg, blocks=leg.blocks, peer=leg.peer),) if again else ()
    return replace(
        state,
        legs=_in_order([other for other in state.legs if other.id != leg.id], fresh),
        hedge=tuple(other for other in state.hedge if other.id != leg.id),
        avoid=_avoid(state, leg, event.kind),
        failures=(*state.failures, (leg.peer, event.kind)),
        next_leg=state.next_leg + len(fresh),
    )


def _replaced(state: SessionState, suspect: Leg, kind: FailureKind) -> SessionState:
    """The hedge in place of the suspect, as far as it has come."""
    return replace(
        state,
        legs=_in_order([leg for leg in state.legs if leg.id != suspect.id], state.hedge),
        avoid=_avoid(state, suspect, kind),
        failures=(*state.failures, (suspect.peer, kind)),
        suspect=None,
        hedge=(),
        alone=False,
    )


def _may_go_on(leg: Leg, kind: FailureKind) -> bool:
    # A server that ended an old stream of its own accord is healthy; one that ends a new stream is not.
    return kind is FailureKind.EXPIRED and leg.fed > 0


def _avoid(state: SessionState, leg: Leg, kind: FailureKind) -> frozenset[PeerId]:
    return state.avoid if _may_go_on(leg, kind) else state.avoid | {leg.peer}


def _aborted(state: SessionState, in_flight: frozenset[int]) -> SessionState:
    kept = tuple(leg for leg in state.legs if leg.fed == state.committed and leg.id not in in_flight)
    return _settled(replace(state, legs=kept, target=None))


def _tried(state: SessionState) -> tuple[PeerId, ...]:
    return tuple(dict.fromkeys(peer for peer, _ in state.failures))
