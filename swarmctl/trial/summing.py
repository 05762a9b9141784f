"""What the results of many cells amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from swarmctl.errors import ExitCode
from swarmctl.matrix import Cell, Fault, Victim
from swarmctl.trial.values import Result, Subject, Verdict

_PROVED = (Verdict.IDENTICAL, Verdict.WITHIN)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many cells of one client came out how."""

    subject: Subject
    identical: int = 0
    within: int = 0
    different: int = 0
    failed: int = 0
    not_hit: int = 0

    @property
    def total(self) -> int:
        """All cells that this client was tried in."""
        return self.identical + self.within + self.different + self.failed + self.not_hit


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Results in numbers. All but `tallies`, which has one entry for each client that was tried, is of our own client.

    `worst_pause_ms` was met in `worst_cell`. `pause_in_steps`: the median over the cells of the pause divided by a
    normal step of the same cell. Both are of cells in which somebody was left to go to, and None if there is none.
    `proved`: there were cells, and in each the session lost nothing.
    """

    tallies: tuple[Tally, ...]
    proved: bool
    exit_code: ExitCode
    worst_pause_ms: float | None = None
    worst_cell: Cell | None = None
    pause_in_steps: float | None = None


def summarise(results: Sequence[Result]) -> Summary:
    """The summary; the petals client is the control, and none of its verdicts counts against the proof."""
    ours = [result for result in results if result.subject is Subject.SWARMCTL]
    hit = [one for one in ours if one.verdict is not Verdict.NOT_HIT]
    paused = [(one.pause_ms, one) for one in hit if one.pause_ms is not None and not _waits(one.cell)]
    worst = max(paused, key=lambda pair: pair[0], default=None)
    ratios = [pause_ms / result.step_ms_median for pause_ms, result in paused if result.step_ms_median]
    return Summary(
        tallies=tuple(_tally(subject, results) for subject in Subject if _of(subject, results)),
        proved=bool(ours) and all(result.verdict in _PROVED for result in ours),
        exit_code=_exit_code({result.verdict for result in ours}),
        worst_pause_ms=None if worst is None else worst[0],
        worst_cell=None if worst is None else worst[1].cell,
        pause_in_steps=median(ratios) if ratios else None,
    )


def _waits(cell: Cell) -> bool:
    """In these cells the pause is as long as a server takes to come back, or to have room."""
    return cell.victim is Victim.ALL or cell.fault in (Fault.RESTART, Fault.FULL)


def _exit_code(verdicts: set[Verdict]) -> ExitCode:
    if verdicts & {Verdict.DIFFERENT, Verdict.FAILED}:
        return ExitCode.CHECK_NEGATIVE
    return ExitCode.UNKNOWN_VERDICT if Verdict.NOT_HIT in verdicts else ExitCode.OK


def _of(subject: Subject, results: Sequence[Result]) -> list[Verdict]:
    return [result.verdict for result in results if result.subject is subject]


def _tally(subject: Subject, results: Sequence[Result]) -> Tally:
    verdicts = _of(subject, results)
    return Tally(
        subject=subject,
        identical=verdicts.count(Verdict.IDENTICAL),
        within=verdicts.count(Verdict.WITHIN),
        different=verdicts.count(Verdict.DIFFERENT),
        failed=verdicts.count(Verdict.FAILED),
        not_hit=verdicts.count(Verdict.NOT_HIT),
    )
