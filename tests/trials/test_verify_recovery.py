"""Cells of `verify recovery` on an ephemeral swarm: what is proved, what is kept, and that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.reaping import left_of_swarm, ports_of

from swarmctl.events import FaultInjected, PeerFailed, RecoveryDone, RecoveryGivenUp, StepDone
from swarmctl.matrix import Cell, Cover, Fault, Traffic, Victim
from swarmctl.operations.trials.run import verify
from swarmctl.operations.trials.saved import read_saved
from swarmctl.operations.trials.stage import Stage, local_stage
from swarmctl.trial import CellDone, CellStarting, Progress, StageStarting, Subject, Verdict, judge

pytestmark = [pytest.mark.swarm, pytest.mark.own, pytest.mark.timeout(590)]

KILLED = Cell(family="llama", victim=Victim.LAST)
WITHOUT_ANYBODY = Cell(family="llama", fault=Fault.PAUSE, victim=Victim.ALL)
NOBODY_IS_LONGER = Cell(family="llama", victim=Victim.FIRST, cover=Cover.LONGER)
WITHOUT_ROOM = Cell(family="llama", fault=Fault.FULL, victim=Victim.LAST)
IN_BATCHES = Cell(family="llama", fault=Fault.PAUSE, victim=Victim.LAST, traffic=Traffic.BATCHES)


def test_cells_prove_our_client_and_refute_the_stock_one_and_leave_nothing(tmp_path: Path):
    stages: list[Stage] = []
    ports: dict[str, int] = {}
    told: list[Progress] = []

    @contextmanager
    def observed(family: str) -> Iterator[Stage]:
        with local_stage(family) as stage:
            stages.append(stage)
            yield stage
            ports.update(ports_of(stage.site.layout))

    cells = (WITHOUT_ANYBODY, IN_BATCHES, NOBODY_IS_LONGER, KILLED, WITHOUT_ROOM)
    results = verify(observed, cells, subjects=(Subject.SWARMCTL, Subject.STOCK), progress=told.append, save=tmp_path)

    (stage,) = stages
    assert not left_of_swarm(stage.site.layout, ports.values())
    assert not stage.site.layout.state.exists()
    verdicts = {(result.cell, result.subject): result.verdict for result in results}
    reasons = [f"{result.cell} {result.subject.value}: {result.verdict.value}: {result.reason}" for result in results]
    for cell in (WITHOUT_ANYBODY, IN_BATCHES, KILLED, WITHOUT_ROOM):
        assert verdicts[cell, Subject.SWARMCTL] is Verdict.IDENTICAL, reasons
        assert verdicts[cell, Subject.STOCK] is Verdict.FAILED, reasons
    assert verdicts[NOBODY_IS_LONGER, Subject.SWARMCTL] is Verdict.NOT_HIT, reasons
    _told_in_order(told, cells)
    _kept(tmp_path)


def _told_in_order(told: list[Progress], cells: tuple[Cell, ...]) -> None:
    first, *rest = told
    assert isinstance(first, StageStarting)
    assert set(first.nodes) >= {"c", "d"}
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    wanted = [(cell, subject) for cell in cells for subject in (Subject.SWARMCTL, Subject.STOCK)]
    for number, ((starting, done), (cell, subject)) in enumerate(zip(pairs, wanted, strict=True)):
        assert isinstance(starting, CellStarting)
        assert isinstance(done, CellDone)
        assert (starting.index, done.index, starting.total, done.total) == (number, number, len(wanted), len(wanted))
        assert (starting.cell, starting.subject) == (cell, subject)
        assert (done.result.cell, done.result.subject) == (cell, subject)
        assert done.trial is not None
        assert judge(done.trial) == done.result


def _kept(folder: Path) -> None:
    trials = {(trial.cell, trial.subject): trial for trial in read_saved(folder).trials}
    assert len(trials) == 10

    (run,) = trials[KILLED, Subject.SWARMCTL].runs
    struck = next(at for at, event in enumerate(run.events) if isinstance(event, FaultInjected))
    failed = next(at for at, event in enumerate(run.events) if isinstance(event, PeerFailed))
    recovered = next(at for at, event in enumerate(run.events) if isinstance(event, RecoveryDone))
    assert struck < failed < recovered
    assert run.local == run.expected == run.ids
    steps = sum(isinstance(event, StepDone) for event in run.events)
    assert len(run.distances) == len(run.margins) == steps
    assert 0 < max(run.distances) < 1e-4
    assert all(margin > 0 for margin in run.margins)

    (run,) = trials[WITHOUT_ANYBODY, Subject.SWARMCTL].runs
    assert any(isinstance(event, RecoveryGivenUp) for event in run.events)

    assert [len(run.ids or ()) for run in trials[IN_BATCHES, Subject.SWARMCTL].runs] == [1, 2, 10]
    (run,) = trials[KILLED, Subject.STOCK].runs
    assert run.ids is None
    assert any(isinstance(event, FaultInjected) for event in run.events)
