"""A series of cells on stages that come to nothing: every cell has its result, and every stage is left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.builders import a_server
from support.clock import FakeClock

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import NodeFailed
from swarmctl.matrix import Cell, Fault, Victim
from swarmctl.operations.site import Site
from swarmctl.operations.trials.run import verify
from swarmctl.operations.trials.stage import Stage
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.fake import FakeTransport
from swarmctl.trial import CellDone, CellStarting, Progress, StageStarting, Subject, Verdict

HERE = HostName("here")
NODES = {
    NodeName(name): a_server(name, blocks, host="here") for name, blocks in (("a", "0:4"), ("b", "4:8"), ("c", "4:8"))
}
LAST = Cell(family="llama", victim=Victim.LAST)
PAUSED = Cell(family="llama", fault=Fault.PAUSE, victim=Victim.LAST)
OTHER = Cell(family="bloom", victim=Victim.LAST)


class NothingRuns(Stage):
    """Nobody comes up; whoever asks for a way into the swarm learns it."""

    def ready(self, names: Collection[str], *, deadline_s: float = 0.0) -> None:
        return


class Theatre:
    """Sets stages, and notes when each is set and left."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self._folder = folder

    @contextmanager
    def __call__(self, family: str) -> Iterator[Stage]:
        self.log.append(f"{family} set")
        clock = FakeClock()
        layout = Layout(state=self._folder, run=self._folder / "run", swarm=family)
        spec = SwarmSpec(
            name=family,
            model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=8, hidden_size=8),
            hosts={HERE: HostSpec(name=HERE)},
            bootstraps=(BootstrapSpec(name=NodeName("boot"), host=HERE),),
            nodes=NODES,
        )
        site = Site(
            spec=spec, layout=layout, transports={HERE: FakeTransport(layout, clock)}, clock=clock, python="python"
        )
        nodes = {name: node.blocks for name, node in NODES.items()}
        try:
            yield NothingRuns(site=site, family=family, nodes=nodes, sink=lambda _event: None)
        finally:
            self.log.append(f"{family} left")


def test_cells_that_cannot_be_played_fail_one_by_one_and_say_why(tmp_path: Path):
    told: list[Progress] = []

    results = verify(Theatre(tmp_path), [LAST, PAUSED], progress=told.append, save=tmp_path)

    assert [(result.cell, result.subject) for result in results] == [
        (LAST, Subject.SWARMCTL),
        (PAUSED, Subject.SWARMCTL),
    ]
    assert {result.verdict for result in results} == {Verdict.FAILED}
    assert {result.reason for result in results} == {
        "no bootstrap peer of swarm llama runs, so there is no way into it"
    }
    assert [type(progress) for progress in told] == [StageStarting, CellStarting, CellDone, CellStarting, CellDone]
    assert [progress.trial for progress in told if isinstance(progress, CellDone)] == [None, None]


def test_each_family_has_one_stage_whatever_the_order_of_the_cells(tmp_path: Path):
    theatre = Theatre(tmp_path)

    results = verify(theatre, [LAST, OTHER, PAUSED])

    assert theatre.log == ["llama set", "llama left", "bloom set", "bloom left"]
    assert [result.cell for result in results] == [LAST, PAUSED, OTHER]


def test_everybody_who_will_be_needed_is_started_together(tmp_path: Path):
    told: list[Progress] = []

    verify(Theatre(tmp_path), [LAST, PAUSED], progress=told.append)

    assert isinstance(told[0], StageStarting)
    assert sorted(told[0].nodes) == ["a", "b", "c"]


def test_each_subject_tries_a_cell_before_the_next_cell_begins(tmp_path: Path):
    told: list[Progress] = []
    subjects = (Subject.SWARMCTL, Subject.STOCK)

    verify(Theatre(tmp_path), [LAST, PAUSED], subjects=subjects, progress=told.append)

    starting = [progress for progress in told if isinstance(progress, CellStarting)]
    assert [(one.cell, one.subject, one.index, one.total) for one in starting] == [
        (LAST, Subject.SWARMCTL, 0, 4),
        (LAST, Subject.STOCK, 1, 4),
        (PAUSED, Subject.SWARMCTL, 2, 4),
        (PAUSED, Subject.STOCK, 3, 4),
    ]


def test_stage_is_left_when_the_operator_interrupts(tmp_path: Path):
    theatre = Theatre(tmp_path)

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, CellDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(theatre, [LAST, PAUSED], progress=interrupt)

    assert theatre.log == ["llama set", "llama left"]


def test_stage_that_cannot_be_set_ends_the_series(tmp_path: Path):
    class Fails(NothingRuns):
        def ready(self, names: Collection[str], *, deadline_s: float = 0.0) -> None:
            raise NodeFailed("node a did not start")

    theatre = Theatre(tmp_path)

    @contextmanager
    def stages(family: str) -> Iterator[Stage]:
        with theatre(family) as stage:
            yield Fails(site=stage.site, family=family, nodes=stage.nodes, sink=stage.sink)

    with pytest.raises(NodeFailed, match="node a did not start"):
        verify(stages, [LAST])

    assert theatre.log == ["llama set", "llama left"]
