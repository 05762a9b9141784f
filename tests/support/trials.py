"""Made-up trials of `verify recovery`, in the place of real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from support.outcomes import a_result, a_trial

from swarmctl.matrix import Cell
from swarmctl.trial import CellDone, CellStarting, Progress, StageStarting, Subject, Verdict
from swarmctl_cli.attempt import Attempt


@dataclass
class Trials:
    """Takes the place of real trials; every cell is identical unless `verdicts` says otherwise.

    `breaks`: what is raised after so many trials.
    """

    verdicts: dict[tuple[Cell, Subject], Verdict] = field(default_factory=dict)
    breaks: tuple[int, BaseException] | None = None
    asked: list[Attempt] = field(default_factory=list)

    def __call__(self, attempt: Attempt, tell: Callable[[Progress], None]) -> None:
        self.asked.append(attempt)
        todo = [(cell, subject) for cell in attempt.cells for subject in attempt.subjects]
        tell(StageStarting(family=todo[0][0].family, nodes=("a", "b", "c")))
        for index, (cell, subject) in enumerate(todo):
            if self.breaks is not None and index == self.breaks[0]:
                raise self.breaks[1]
            tell(CellStarting(cell=cell, subject=subject, index=index, total=len(todo)))
            verdict = self.verdicts.get((cell, subject), Verdict.IDENTICAL)
            reason = "" if verdict is Verdict.IDENTICAL else f"it was {verdict.value}"
            result = a_result(cell, verdict, subject=subject, reason=reason)
            tell(CellDone(result=result, index=index, total=len(todo), trial=a_trial(cell, subject=subject)))

    @property
    def attempt(self) -> Attempt:
        """The only one that was asked for."""
        (one,) = self.asked
        return one
