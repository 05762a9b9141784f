"""The judgement of a trial: its verdict, the reason for it, and what its events measure. Pure.

    wrong tokens        different, unless arithmetic alone decides there (within-tolerance)
    no answer           failed
    an objection        failed: of a checker (`swarmctl.checkers`), or of what this cell asks besides (`demands`)
    no trace of it      not-hit: the events do not show that the fault bit

The worst of these over all sessions is the verdict; the reason has all of them, the worst first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

from swarmctl import checkers
from swarmctl.checkers import kind_of, steps_of
from swarmctl.events import PeerFailed, RecoveryDone, ReplayDone, TokensEmitted
from swarmctl.trial import demands
from swarmctl.trial.comparing import compare
from swarmctl.trial.values import Result, Run, Subject, Trial, Verdict

_WORST_FIRST = (Verdict.DIFFERENT, Verdict.FAILED, Verdict.NOT_HIT, Verdict.WITHIN)

_Finding = tuple[Verdict, str]


def judge(trial: Trial) -> Result:
    """The result of a trial, from what was recorded and nothing else: the same today and from a saved file."""
    findings = [(Verdict.NOT_HIT, trial.missed)] if trial.missed is not None else list(_findings(trial))
    findings.sort(key=lambda finding: _WORST_FIRST.index(finding[0]))
    recoveries = [event for run in trial.runs for event in run.events if isinstance(event, RecoveryDone)]
    return Result(
        cell=trial.cell,
        subject=trial.subject,
        verdict=findings[0][0] if findings else Verdict.IDENTICAL,
        detect_ms=max(chain.from_iterable(map(_detections_ms, trial.runs)), default=None),
        replay_ms=max(chain.from_iterable(map(_replay_ms, trial.runs)), default=None),
        pause_ms=max((event.step_ms for event in recoveries), default=None),
        step_ms_median=_step_ms_median(trial.runs),
        replayed_tokens=sum(event.replayed_tokens for event in recoveries),
        tokens_lost=sum(map(_tokens_lost, trial.runs)),
        reason="; ".join(dict.fromkeys(reason for _, reason in findings)),
    )


def _findings(trial: Trial) -> Iterator[_Finding]:
    for number, run in enumerate(trial.runs, start=1):
        whose = f"session {number}: " if len(trial.runs) > 1 else ""
        yield from ((verdict, whose + reason) for verdict, reason in _of_run(trial, run))
    if not trial.runs:
        yield Verdict.FAILED, "no session was tried"
    elif trial.subject is Subject.SWARMCTL:
        doubt = demands.doubt(trial)
        if doubt is not None:
            yield Verdict.NOT_HIT, doubt


def _of_run(trial: Trial, run: Run) -> Iterator[_Finding]:
    if run.error is not None:
        yield Verdict.FAILED, run.error or "the session ended with an error without a text"
    elif run.ids is None:
        yield Verdict.FAILED, "the session ended with neither an answer nor an error"
    else:
        other = compare(run)
        if other is not None:
            yield other
    account = checkers.Account(
        events=run.events, num_blocks=trial.num_blocks, ids=run.ids, error=run.error, budget_s=trial.budget_s
    )
    for checker in checkers.CHECKERS:
        verdict = Verdict.DIFFERENT if checker is checkers.tokens_come_once_and_in_order else Verdict.FAILED
        yield from ((verdict, objection) for objection in checker(account))
    if trial.subject is Subject.SWARMCTL:
        yield from ((Verdict.FAILED, objection) for objection in demands.objections(trial.cell, run))


def _detections_ms(run: Run) -> Iterator[float]:
    for step in steps_of(run.events):
        for loss in step.losses:
            # One without room was asked and not struck, and one that was not dialled was not even asked.
            if kind_of(loss) not in ("busy", "undialled"):
                yield loss.detect_ms if isinstance(loss, PeerFailed) else loss.silent_ms


def _replay_ms(run: Run) -> Iterator[float]:
    """All replays of a run's failovers together; nothing if there was none."""
    failovers = [step for step in steps_of(run.events) if step.losses]
    took = [event.took_ms for step in failovers for event in step.events if isinstance(event, ReplayDone)]
    if took:
        yield sum(took)


def _step_ms_median(runs: Sequence[Run]) -> float | None:
    """Of the steps of one token in which no server was lost."""
    quiet = [step.done for run in runs for step in steps_of(run.events) if step.done is not None and not step.losses]
    took = [done.took_ms for done in quiet if done.tokens == 1]
    return median(took) if took else None


def _tokens_lost(run: Run) -> int:
    """How many tokens of the undisturbed run the user was never given, whatever came in their place."""
    streamed = sum(isinstance(event, TokensEmitted) for event in run.events)
    given = [streamed] * len(run.expected) if run.ids is None else [len(row) for row in run.ids]
    given += [0] * (len(run.expected) - len(given))
    return sum(max(0, len(row) - count) for row, count in zip(run.expected, given, strict=False))
