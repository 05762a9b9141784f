"""Results and trials of `verify recovery`, as values: a killed server in mid-step unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from support.builders import peer_of

from swarmctl import events as ev
from swarmctl.blocks import NodeName, parse_range
from swarmctl.matrix import Cell, Cover, Fault, Moment, Traffic, Victim
from swarmctl.trial import Result, Run, Subject, Trial, Verdict
from swarmctl_cli.views.recovery import Outcome

KILL = A_KILL = Cell(family="llama")
REPLAY = Cell(family="llama", moment=Moment.REPLAY, victim=Victim.HEIR, cover=Cover.SPLIT)
PAUSE = Cell(family="llama", fault=Fault.PAUSE, traffic=Traffic.BEAMS)
CHAT = Cell(family="bloom", fault=Fault.EXPIRE, moment=Moment.IDLE, traffic=Traffic.CHAT)
BATCHES = Cell(family="bloom", traffic=Traffic.BATCHES)


def hop(name: str, blocks: str) -> ev.Hop:
    """A span of the node of this name."""
    return ev.Hop(blocks=parse_range(blocks), peer=peer_of(name), node=NodeName(name))


A, B1, B2, C, D = hop("a", "0:3"), hop("b1", "0:2"), hop("b2", "2:3"), hop("c", "3:6"), hop("d", "0:3")


def steps(first: int, count: int, *, at_s: float, every_s: float = 0.04) -> tuple[ev.Event, ...]:
    """Quiet steps of one token, the first of which ends at `at_s`."""
    return tuple(
        ev.StepDone(
            at_s=at_s + index * every_s,
            step=first + index,
            position=12 + first + index,
            tokens=1,
            batch=1,
            took_ms=every_s * 1e3,
        )
        for index in range(count)
    )


KILLED: tuple[ev.Event, ...] = (
    ev.RouteChosen(at_s=0.02, route=(A, C), took_ms=3.6),
    ev.StepDone(at_s=0.10, step=0, position=12, tokens=12, batch=1, took_ms=80.0),
    *steps(1, 5, at_s=0.14),
    ev.FaultInjected(at_s=0.31, fault="kill", node=NodeName("a"), token=5, in_flight=True),
    ev.PeerFailed(
        at_s=0.326, hop=A, kind="lost", reason="connection closed", position=17, in_flight=True, detect_ms=22.0
    ),
    ev.RouteChanged(at_s=0.33, was=A, now=(B1, B2), route=(B1, B2, C), took_ms=4.0),
    ev.ReplayStarted(at_s=0.33, hop=B1, tokens=17, chunks=1),
    ev.ReplayDone(at_s=0.37, hop=B1, tokens=17, took_ms=40.0),
    ev.ReplayStarted(at_s=0.37, hop=B2, tokens=17, chunks=1),
    ev.ReplayDone(at_s=0.42, hop=B2, tokens=17, took_ms=50.0),
    ev.RecoveryDone(at_s=0.46, position=18, failed=(A.peer,), replayed_tokens=34, pause_ms=134.0, step_ms=156.0),
    ev.StepDone(at_s=0.46, step=6, position=18, tokens=1, batch=1, took_ms=156.0),
    *steps(7, 8, at_s=0.50),
)
"""A server is killed in mid-step and replaced by two."""

LATE: tuple[ev.Event, ...] = (
    ev.RouteChosen(at_s=0.02, route=(A, C), took_ms=3.6),
    *steps(1, 5, at_s=0.10),
    ev.PeerSuspected(at_s=0.62, hop=A, silent_ms=360.0),
    ev.HedgeStarted(at_s=0.63, hop=A, now=(D,)),
    ev.ReplayStarted(at_s=0.64, hop=D, tokens=17, chunks=1),
    ev.HedgeDropped(at_s=0.70, hop=A, dropped=(D,), waited_ms=440.0),
    ev.StepDone(at_s=0.72, step=6, position=18, tokens=1, batch=1, took_ms=460.0),
    *steps(7, 4, at_s=0.76),
)
"""A server is late, and answers before the one that was fed beside it."""


def a_run(events: Sequence[ev.Event] = KILLED, *, error: str | None = None) -> Run:
    """A session that gave the tokens it should, or ended with `error`."""
    ids = ((1, 2, 3),)
    return Run(events=tuple(events), expected=ids, local=ids, ids=None if error else ids, error=error)


def a_trial(cell: Cell = KILL, *runs: Run, subject: Subject = Subject.SWARMCTL, missed: str | None = None) -> Trial:
    """A trial of two and a half seconds."""
    return Trial(cell=cell, subject=subject, num_blocks=6, runs=runs or (a_run(),), took_s=2.5, missed=missed)


def a_result(
    cell: Cell = KILL,
    verdict: Verdict = Verdict.IDENTICAL,
    *,
    subject: Subject = Subject.SWARMCTL,
    pause_ms: float | None = 156.0,
    reason: str = "",
) -> Result:
    """A judgement; what was measured is missing where there was no pause."""
    measured = pause_ms is not None
    return Result(
        cell=cell,
        subject=subject,
        verdict=verdict,
        detect_ms=22.0 if measured else None,
        replay_ms=90.0 if measured else None,
        pause_ms=pause_ms,
        step_ms_median=40.0 if measured else None,
        replayed_tokens=34 if measured else 0,
        tokens_lost=0,
        reason=reason,
    )


def an_outcome(cell: Cell = KILL, verdict: Verdict = Verdict.IDENTICAL, **about: object) -> Outcome:
    """A result with its trial."""
    result = a_result(cell, verdict, **about)  # type: ignore[arg-type]
    missed = result.reason if verdict is Verdict.NOT_HIT else None
    return Outcome(result=result, trial=a_trial(cell, subject=result.subject, missed=missed))


def stock(cell: Cell = KILL, verdict: Verdict = Verdict.FAILED, reason: str = "Broken input cache") -> Outcome:
    """What petals' own client made of the cell; it tells no events."""
    result = a_result(cell, verdict, subject=Subject.STOCK, pause_ms=None, reason=reason)
    return Outcome(result=result, trial=a_trial(cell, a_run((), error=reason), subject=Subject.STOCK))


MIXED: tuple[Outcome, ...] = (
    an_outcome(KILL),
    an_outcome(REPLAY, pause_ms=412.0),
    an_outcome(PAUSE, Verdict.FAILED, reason="no answer within 15 s"),
    an_outcome(BATCHES, Verdict.WITHIN, reason="step 9: margin 0.0004, distance 0.0002"),
    an_outcome(CHAT, Verdict.NOT_HIT, pause_ms=None, reason="the session was never idle for 4 s"),
)
"""One of each that a run may bring, over two families."""
