"""A failover on one axis of time: the steps around it, each server's part in it, and where the fault fell. Pure.

`failovers` cuts a run's events into the stretches where something happened, with a few quiet steps before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmctl import events as ev
from swarmctl.events import Event, Hop
from swarmctl_cli.views import measure
from swarmctl_cli.views.lanes import Lane, lanes_of

_CONTEXT = 3
"""Quiet steps that are shown before and after; so many also part one failover from the next."""
_LEAST_S = 0.25
"""A step that takes no longer than this may stand before the trouble, however short that was."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the session. `disturbed`: it met a failure, or a suspicion. `done` is False for one that failed."""

    start_s: float
    end_s: float
    tokens: int
    disturbed: bool
    done: bool = True


@dataclass(frozen=True, kw_only=True)
class Failover:
    """What is drawn. `zero_s`: the moment that times are told from: the fault, or the beginning of the step it met.

    `faults`: moment and words; one that fell long before is told at `start_s`.
    """

    start_s: float
    end_s: float
    zero_s: float
    steps: tuple[Step, ...]
    lanes: tuple[Lane, ...]
    faults: tuple[tuple[float, str], ...]


_TROUBLE = (
    ev.FaultInjected,
    ev.PeerSuspected,
    ev.HedgeStarted,
    ev.HedgeDropped,
    ev.PeerOvertaken,
    ev.PeerFailed,
    ev.RouteChanged,
    ev.WaitingForPeers,
    ev.ReplayStarted,
    ev.ReplayDone,
    ev.RecoveryDone,
    ev.RecoveryGivenUp,
)


def failovers(events: Sequence[Event], *, answered: bool = True) -> tuple[Failover, ...]:
    """The failovers of one session in order; none for a run in which nothing happened.

    `answered`: False for a session that ended without an answer, so that its last step is one that failed.
    """
    stretches = _stretches(events)
    found = []
    for first, last in stretches:
        begin = _steps_before(events, first)
        route = _route_before(events, first)
        steps = _steps(events[begin : last + 1])
        if not answered and last == stretches[-1][1]:
            steps += _unanswered(events[first : last + 1])
        found.append(_draw(steps, events[first : last + 1], route))
    return tuple(found)


def _stretches(events: Sequence[Event]) -> list[tuple[int, int]]:
    """First and last index of each stretch of trouble, with the quiet steps that follow it."""
    stretches: list[tuple[int, int]] = []
    first, quiet = None, 0
    for index, event in enumerate(events):
        if isinstance(event, _TROUBLE):
            first, quiet = index if first is None else first, 0
        elif isinstance(event, ev.StepDone) and first is not None:
            quiet += 1
            # The first step is the one that ends the trouble.
            if quiet == _CONTEXT + 1:
                stretches.append((first, index))
                first = None
    if first is not None:
        stretches.append((first, len(events) - 1))
    return stretches


def _steps_before(events: Sequence[Event], first: int) -> int:
    steps = [index for index in range(first) if isinstance(events[index], ev.StepDone)]
    return steps[-_CONTEXT] if len(steps) >= _CONTEXT else (steps[0] if steps else first)


def _route_before(events: Sequence[Event], first: int) -> tuple[Hop, ...]:
    for event in reversed(events[:first]):
        if isinstance(event, (ev.RouteChosen, ev.RouteChanged)):
            return event.route
    return next((event.route for event in events[first:] if isinstance(event, ev.RouteChosen)), ())


def _draw(steps: list[Step], trouble: Sequence[Event], route: Sequence[Hop]) -> Failover:
    faults = [event for event in trouble if isinstance(event, ev.FaultInjected)]
    met = [step for step in steps if step.disturbed]
    others = [event.at_s for event in trouble if isinstance(event, _TROUBLE) and not _is_early(event)]
    began = min([*(step.start_s for step in met), *others], default=trouble[0].at_s)
    ended = max([*(step.end_s for step in met), *others], default=trouble[-1].at_s)
    room = max(_LEAST_S, ended - began)
    near = [fault.at_s for fault in faults if fault.at_s >= began - room]
    start = min([began, *near])
    # A pause between two calls may lie there, which would leave no room for what is to be seen.
    steps = [step for step in steps if step.start_s >= start - room and step.start_s <= ended + room]
    start = min([start, *(step.start_s for step in steps)])
    end = max([ended, *(step.end_s for step in steps)])
    return Failover(
        start_s=start,
        end_s=max(end, start + 1e-3),
        zero_s=near[0] if near else began,
        steps=tuple(steps),
        lanes=lanes_of(trouble, route, start, end),
        faults=tuple((max(start, fault.at_s), _told(fault, began, start)) for fault in faults),
    )


def _is_early(event: Event) -> bool:
    """A fault between two steps is met by the next one, perhaps much later."""
    return isinstance(event, ev.FaultInjected) and not event.in_flight


def _told(fault: ev.FaultInjected, began: float, start: float) -> str:
    before = f", {measure.age(began - fault.at_s)} before" if fault.at_s < start else ""
    return f"{fault.fault} {fault.node}{before}"


def _steps(shown: Sequence[Event]) -> list[Step]:
    steps: list[Step] = []
    since: list[float] = []
    for event in shown:
        match event:
            case ev.StepDone(at_s=at_s, tokens=tokens, took_ms=took_ms):
                steps.append(
                    Step(start_s=at_s - took_ms / 1e3, end_s=at_s, tokens=tokens, disturbed=bool(since)),
                )
                since = []
            case ev.RecoveryGivenUp(at_s=at_s):
                begun = min([at_s, *since])
                steps.append(Step(start_s=begun, end_s=at_s, tokens=0, disturbed=True, done=False))
                since = []
            case ev.PeerFailed(at_s=at_s, detect_ms=waited_ms):
                since.append(at_s - waited_ms / 1e3)
            case ev.PeerSuspected(at_s=at_s, silent_ms=waited_ms) | ev.PeerOvertaken(at_s=at_s, silent_ms=waited_ms):
                since.append(at_s - waited_ms / 1e3)
            case _:
                pass
    return steps


def _unanswered(trouble: Sequence[Event]) -> list[Step]:
    """The step that had no answer, if it was not told as one that was given up."""
    ends = [event.at_s for event in trouble if isinstance(event, (ev.StepDone, ev.RecoveryGivenUp))]
    begun, ended = max(ends or [trouble[0].at_s]), trouble[-1].at_s
    return [Step(start_s=begun, end_s=ended, tokens=0, disturbed=True, done=False)] if ended > begun else []
