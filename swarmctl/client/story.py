"""What a run's events amount to: its failovers, its speed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from swarmctl.blocks import NodeName
from swarmctl.events import (
    Event,
    FaultInjected,
    Hop,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    ReplayDone,
    RouteChanged,
    StepDone,
)


@dataclass(frozen=True, kw_only=True)
class Failover:
    """One step that met failures and was completed.

    `position`: tokens cached before the step. `detect_ms`: from the injected fault where there was one, else from
    the request, to the moment the failure was known, or suspected if the server was overtaken (`kind` "overtaken").
    `replay_ms`: all replays together. `pause_ms`: the whole step, which is what a reader waited between two tokens.
    `taken_over_by`: who serves the lost spans at the end of it, which is the same server again if it had only ended
    an old stream.
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


@dataclass
class _Step:
    """What has happened in the step that is running."""

    failed: list[PeerFailed | PeerOvertaken] = field(default_factory=list)
    suspected: PeerSuspected | None = None
    heirs: list[Hop] = field(default_factory=list)
    replay_ms: float = 0.0
    recovered: bool = False

    def note(self, event: Event) -> None:
        """An event of this step."""
        match event:
            case PeerSuspected():
                self.suspected = event
            case PeerFailed() | PeerOvertaken():
                # Perhaps of a span that had just been taken over.
                self.failed.append(event)
                self.heirs = [hop for hop in self.heirs if hop != event.hop]
            case RouteChanged():
                self.heirs.extend(event.now)
            case ReplayDone():
                self.replay_ms += event.took_ms


def tell(events: Iterable[Event]) -> Story:
    """The story of one run's events, in the order in which they happened."""
    failovers: list[Failover] = []
    durations: list[float] = []
    faults: dict[NodeName, FaultInjected] = {}
    steps, step = 0, _Step()
    for event in events:
        match event:
            case FaultInjected():
                faults[event.node] = event
            case RecoveryDone():
                failovers.append(_failover(step, event, faults))
                step.recovered = True
                faults.clear()
            case RecoveryGivenUp():
                step = _Step()
            case StepDone():
                steps += 1
                if event.tokens == 1 and not step.recovered:
                    durations.append(event.took_ms)
                step = _Step()
            case _:
                step.note(event)
    step_ms = median(durations) if durations else None
    return Story(
        failovers=tuple(failovers),
        steps=steps,
        step_ms_median=step_ms,
        tokens_per_s=None if not step_ms else 1e3 / step_ms,
    )


def _failover(step: _Step, done: RecoveryDone, faults: Mapping[NodeName, FaultInjected]) -> Failover:
    first = step.failed[0]
    known_at, known_ms, kind, reason = first.at_s, 0.0, "overtaken", ""
    if isinstance(first, PeerFailed):
        known_ms, kind, reason = first.detect_ms, first.kind, first.reason
    else:
        reason = f"no answer for {first.silent_ms / 1e3:.1f} s, and another server had it"
        if step.suspected is not None:
            known_at, known_ms = step.suspected.at_s, step.suspected.silent_ms
    fault = None if first.hop.node is None else faults.get(first.hop.node)
    return Failover(
        position=first.position,
        lost=tuple(dict.fromkeys(event.hop for event in step.failed)),
        taken_over_by=tuple(step.heirs),
        kind=kind,
        reason=reason,
        in_flight=first.in_flight if isinstance(first, PeerFailed) else True,
        detect_ms=known_ms if fault is None else max(0.0, (known_at - fault.at_s) * 1e3),
        replay_ms=step.replay_ms,
        pause_ms=done.step_ms,
        replayed_tokens=done.replayed_tokens,
    )
