"""What a run's events amount to: its failovers, its speed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from swarmctl.events import (
    Event,
    FaultInjected,
    Hop,
    PeerFailed,
    RecoveryDone,
    ReplayDone,
    RouteChanged,
    StepDone,
)


@dataclass(frozen=True, kw_only=True)
class Failover:
    """One step that met failures and was completed.

    `position`: tokens cached before the step. `detect_ms`: from the injected fault where there was one, else from
    the request, to the moment the failure was known. `replay_ms`: all replays together. `pause_ms`: the whole step,
    which is what a reader waited between two tokens.
    """

    position: int
    lost: tuple[Hop, ...]
    taken_over_by: tuple[Hop, ...]
    kind: str
    reason: str
    in_flight: bool
    detect_ms: float
    replay_ms: float
    pause_ms: float
    replayed_tokens: int


@dataclass(frozen=True, kw_only=True)
class Story:
    """A run in numbers. `step_ms_median` is over the one-token steps without a failure, None if there was none."""

    failovers: tuple[Failover, ...]
    steps: int
    step_ms_median: float | None
    tokens_per_s: float | None


def tell(events: Iterable[Event]) -> Story:
    """The story of one run's events, in the order in which they happened."""
    failovers: list[Failover] = []
    durations: list[float] = []
    failed: list[PeerFailed] = []
    changed: list[RouteChanged] = []
    replay_ms = 0.0
    fault: FaultInjected | None = None
    recovered = False
    for event in events:
        match event:
            case FaultInjected():
                fault = event
            case PeerFailed():
                failed.append(event)
            case RouteChanged():
                changed.append(event)
            case ReplayDone():
                replay_ms += event.took_ms
            case RecoveryDone():
                failovers.append(_failover(failed, changed, event, replay_ms, fault))
                recovered, fault = True, None
            case StepDone():
                if not recovered and event.tokens == 1:
                    durations.append(event.took_ms)
                failed, changed, replay_ms, recovered = [], [], 0.0, False
    step_ms = median(durations) if durations else None
    return Story(
        failovers=tuple(failovers),
        steps=len(durations) + len(failovers),
        step_ms_median=step_ms,
        tokens_per_s=None if not step_ms else 1e3 / step_ms,
    )


def _failover(
    failed: list[PeerFailed],
    changed: list[RouteChanged],
    done: RecoveryDone,
    replay_ms: float,
    fault: FaultInjected | None,
) -> Failover:
    first = failed[0]
    lost = tuple(dict.fromkeys(event.hop for event in failed))
    given_up = {hop.peer for hop in lost}
    now = tuple(hop for event in changed for hop in event.now if hop.peer not in given_up)
    detect_ms = first.detect_ms if fault is None else max(0.0, (first.at_s - fault.at_s) * 1e3)
    return Failover(
        position=first.position,
        lost=lost,
        taken_over_by=now,
        kind=first.kind,
        reason=first.reason,
        in_flight=first.in_flight,
        detect_ms=detect_ms,
        replay_ms=replay_ms,
        pause_ms=done.step_ms,
        replayed_tokens=done.replayed_tokens,
    )
