"""Who is said to come up while cells are tried."""

from __future__ import annotations

from swarmctl.blocks import NodeName
from swarmctl.events import NodePhase, NodeReady
from swarmctl.matrix import QUICK
from swarmctl.trial import CellStarting, StageStarting, Subject
from swarmctl_cli.attempt import Arrivals
from swarmctl_cli.views.recovery_live import NodeUp, Told

STAGE = StageStarting(family="llama", nodes=("a", "c"))
CELL = CellStarting(cell=QUICK[0], subject=Subject.SWARMCTL, index=0, total=1)


def ready(node: str, took_s: float) -> NodeReady:
    return NodeReady(at_s=took_s, node=NodeName(node), took_s=took_s)


def test_each_node_of_a_swarm_that_is_prepared_is_told_once_with_its_number() -> None:
    told: list[Told] = []
    arrivals = Arrivals(told.append)
    arrivals.step(STAGE)
    for event in (ready("boot", 1.0), ready("c", 9.0), ready("c", 9.5), ready("a", 12.0)):
        arrivals.event(event)
    first = NodeUp(node="c", took_s=9.0, ready=1, total=2)
    assert told == [STAGE, first, NodeUp(node="a", took_s=12.0, ready=2, total=2)]


def test_in_a_cell_only_who_was_away_is_told() -> None:
    told: list[Told] = []
    arrivals = Arrivals(told.append)
    arrivals.step(STAGE)
    arrivals.step(CELL)
    arrivals.event(ready("a", 0.1))
    arrivals.event(ready("c", 14.0))
    assert told == [STAGE, CELL, NodeUp(node="c", took_s=14.0)]


def test_other_events_of_the_stage_are_not_told() -> None:
    told: list[Told] = []
    Arrivals(told.append).event(NodePhase(at_s=1.0, node=NodeName("a"), phase="loading", done=1, total=6))
    assert told == []
