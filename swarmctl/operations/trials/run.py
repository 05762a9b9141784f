"""Many cells, one after another, each on the stage of its family; one that goes wrong does not stop the next.

results = verify(local_stages(), QUICK, progress=show)                     # ephemeral swarms
results = verify(own_stages(site), cells, progress=show, save=folder)      # the operator's own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from typing_extensions import assert_never

from swarmctl.blocks import NodeName
from swarmctl.errors import SwarmctlError
from swarmctl.events import EventSink
from swarmctl.matrix import Cell
from swarmctl.operations.site import Site
from swarmctl.operations.trials.casting import Cast, assign
from swarmctl.operations.trials.client import TrialClient, connected
from swarmctl.operations.trials.ours import try_ours
from swarmctl.operations.trials.saved import SUFFIX
from swarmctl.operations.trials.stage import Stage, local_stage, own_stage
from swarmctl.operations.trials.stock import try_stock
from swarmctl.trial import (
    CellDone,
    CellStarting,
    Progress,
    Result,
    StageStarting,
    Subject,
    Trial,
    Verdict,
    encode_trial,
    judge,
)

Stages = Callable[[str], AbstractContextManager[Stage]]
"""Sets the stage for the cells of a family."""

# A fault that did not bite is tried once more: a server may be quick enough to answer before it dies.
_TRIES = 2


def local_stages(*, sink: EventSink = lambda _event: None) -> Stages:
    """An ephemeral swarm of a tiny checkpoint for each family; nothing is left of it."""
    return lambda family: local_stage(family, sink=sink)


def own_stages(site: Site, *, sink: EventSink = lambda _event: None) -> Stages:
    """The operator's running swarm, whatever its family is called; who was struck is started again."""
    return lambda _family: own_stage(site, sink=sink)


def verify(
    stages: Stages,
    cells: Sequence[Cell],
    *,
    subjects: Sequence[Subject] = (Subject.SWARMCTL,),
    progress: Callable[[Progress], None] = lambda _progress: None,
    save: Path | None = None,
) -> tuple[Result, ...]:
    """Play every cell with every subject, and judge it; `save`: a folder that gets the history of each trial.

    What goes wrong in a cell is its result. Ctrl-C undoes what was done to the servers, and is raised.

    Raises:
        SwarmctlError: the stage cannot be set, or not be taken down: see `local_stage` and `own_stage`.
    """
    series = _Series(total=len(cells) * len(subjects), progress=progress, save=save)
    for family in dict.fromkeys(cell.family for cell in cells):
        mine = [cell for cell in cells if cell.family == family]
        with stages(family) as stage, _Company(stage) as company:
            first = company.first_needed(mine)
            progress(StageStarting(family=family, nodes=tuple(map(str, first))))
            stage.ready(first)
            for cell in mine:
                for subject in subjects:
                    series.play(company, cell, subject)
    return tuple(series.results)


def try_cell(client: TrialClient, cell: Cell, subject: Subject) -> Trial:
    """Play one cell once.

    Raises:
        NodeFailed, DeadlineExceeded: the servers that it needs do not come up.
        CheckFailed: the undisturbed run fails, so that there is nothing to compare with.
    """
    match subject:
        case Subject.SWARMCTL:
            return try_ours(client, cell)
        case Subject.STOCK:
            return try_stock(client, cell)
        case _:
            assert_never(subject)


class _Company:
    """The stage of one family and our client of it, which is replaced when a session of it does not end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stack = ExitStack()
        self._client: TrialClient | None = None

    def __enter__(self) -> _Company:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def client(self) -> TrialClient:
        """A client that works; something of the swarm must run."""
        if self._client is not None and self._client.spoiled:
            self._stack.close()
            self._client = None
        if self._client is None:
            self._client = self._stack.enter_context(connected(self._stage))
        return self._client

    def first_needed(self, cells: Sequence[Cell]) -> tuple[NodeName, ...]:
        """Everybody who is needed if nobody ever has to come back: started together, that takes least time."""
        needed: dict[NodeName, None] = {}
        for cell in cells:
            nodes = self._stage.nodes_for(cell.fault)
            cast = None if self._stage.can(cell.fault) else assign(cell, nodes, self._stage.num_blocks, alive=needed)
            if isinstance(cast, Cast):
                needed |= dict.fromkeys(cast.needed)
        return tuple(needed)


class _Series:
    """The trials so far, numbered and told."""

    def __init__(self, *, total: int, progress: Callable[[Progress], None], save: Path | None) -> None:
        self.results: list[Result] = []
        self._total = total
        self._progress = progress
        self._save = save

    def play(self, company: _Company, cell: Cell, subject: Subject) -> None:
        """Play a cell, and once more if its fault did not bite."""
        index = len(self.results)
        self._progress(CellStarting(cell=cell, subject=subject, index=index, total=self._total))
        trial, result = self._play_until_hit(company, cell, subject)
        self.results.append(result)
        if trial is not None and self._save is not None:
            name = f"{str(cell).replace('/', '-')}.{subject.value}{SUFFIX}"
            (self._save / name).write_text(encode_trial(trial), encoding="utf-8")
        self._progress(CellDone(result=result, index=index, total=self._total, trial=trial))

    def _play_until_hit(self, company: _Company, cell: Cell, subject: Subject) -> tuple[Trial | None, Result]:
        try:
            trial = try_cell(company.client, cell, subject)
            for _ in range(1, _TRIES):
                if judge(trial).verdict is Verdict.NOT_HIT and trial.runs:
                    trial = try_cell(company.client, cell, subject)
        except SwarmctlError as error:
            return None, _failed(cell, subject, "; ".join((error.message, *error.reasons)))
        except Exception as error:  # noqa: BLE001 - a cell's own, which shall not stop the others
            return None, _failed(cell, subject, f"{type(error).__name__}: {error}")
        return trial, judge(trial)


def _failed(cell: Cell, subject: Subject, reason: str) -> Result:
    return Result(cell=cell, subject=subject, verdict=Verdict.FAILED, reason=reason)
