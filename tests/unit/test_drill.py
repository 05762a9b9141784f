"""Nodes that are killed on purpose in the middle of a generation."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders import a_server, peer_of
from support.clock import FakeClock

from swarmctl.blocks import HostName, NodeName, parse_range
from swarmctl.errors import UsageError
from swarmctl.events import Event, FaultInjected, Hop, RouteChanged, RouteChosen, StepDone, TokensEmitted
from swarmctl.operations.drill import Drill, Kill, parse_kill
from swarmctl.operations.site import Site
from swarmctl.operations.up import up
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.base import KILLED
from swarmctl.transport.fake import FakeTransport

HERE = HostName("here")
NODES = (NodeName("left"), NodeName("mid"), NodeName("right"), NodeName("spare"))


def hop(name: str, blocks: str) -> Hop:
    return Hop(blocks=parse_range(blocks), peer=peer_of(name), node=NodeName(name))


LEFT, MID, RIGHT, SPARE = hop("left", "0:2"), hop("mid", "2:4"), hop("right", "4:6"), hop("spare", "0:2")


class Bench:
    """A swarm that is up, a drill in it, and a generation over left, mid and right."""

    def __init__(self, folder: Path, *extra: NodeName) -> None:
        blocks = {"left": "0:2", "mid": "2:4", "right": "4:6", "spare": "0:2"}
        spec = SwarmSpec(
            name="lab",
            model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=6, hidden_size=8),
            hosts={HERE: HostSpec(name=HERE)},
            bootstraps=(BootstrapSpec(name=NodeName("boot"), host=HERE),),
            nodes={name: a_server(name, blocks.get(name, "0:6"), host="here") for name in (*NODES, *extra)},
        )
        clock, layout = FakeClock(), Layout(state=folder, run=folder / "run", swarm="lab")
        self.host = FakeTransport(layout, clock)
        self.site = Site(spec=spec, layout=layout, transports={HERE: self.host}, clock=clock, python="python")
        self.told: list[Event] = []
        up(self.site, sink=lambda _event: None, deadline_s=60.0)

    def drill(self, *kills: str) -> Drill:
        drill = Drill(self.site, [parse_kill(text, list(self.site.spec.nodes)) for text in kills], self.told.append)
        drill.note(RouteChosen(route=(LEFT, MID, RIGHT), took_ms=1.0))
        return drill

    def killed(self) -> list[str]:
        """The nodes that were killed, by what their host says."""
        seen = self.host.survey()
        return [node.name for node in seen if node.record is not None and node.record.ended == KILLED]

    def faults(self) -> list[tuple[str, int]]:
        """(node, token) of each fault that was told."""
        return [(event.node, event.token) for event in self.told if isinstance(event, FaultInjected)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def emit(drill: Drill, count: int) -> None:
    """So many steps are done, each with a token a sequence."""
    drill.note(StepDone(step=count, position=10 + count, tokens=1, batch=1, took_ms=1.0))


def a_step(drill: Drill, *hops: Hop) -> None:
    """A request goes to each of these."""
    for each in hops or (LEFT, MID, RIGHT):
        drill.on_request(each, 0, False)


@pytest.mark.parametrize("text", ["left@20", "first@0", "last@7", "middle@1"])
def test_a_kill_names_a_node_or_a_place_and_a_token(text: str) -> None:
    node, token = text.split("@")

    assert parse_kill(text, NODES) == Kill(node=node, token=int(token))


@pytest.mark.parametrize("text", ["left", "left@", "@", "left@-1", "left@x", "left@1.5", "20"])
def test_a_kill_of_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=f"--kill {text} is not NODE@TOKEN") as caught:
        parse_kill(text, NODES)

    assert caught.value.hints == ("for example --kill first@20",)


@pytest.mark.parametrize("text", ["nobody@3", "@3", "LEFT@3", "left@3@4"])
def test_a_kill_of_nobody_lists_the_nodes_and_the_places(text: str) -> None:
    with pytest.raises(UsageError, match="names no node") as caught:
        parse_kill(text, NODES)

    assert caught.value.reasons == ("nodes: left, mid, right, spare", "places in the route: first, middle, last")


def test_a_node_is_killed_when_its_request_has_left_after_so_many_tokens(bench: Bench) -> None:
    drill = bench.drill("mid@3")

    for count in (1, 2):
        emit(drill, count)
        a_step(drill)
    assert bench.killed() == []

    emit(drill, 3)
    a_step(drill, LEFT)
    assert bench.killed() == []
    a_step(drill, MID)

    assert bench.killed() == ["mid"]
    assert bench.faults() == [("mid", 3)]
    assert drill.missed == ()


def test_the_fault_is_told_as_one_in_flight(bench: Bench) -> None:
    drill = bench.drill("left@0")

    a_step(drill)

    (fault,) = bench.told
    assert fault == FaultInjected(fault="kill", node=NodeName("left"), token=0, in_flight=True)


@pytest.mark.parametrize(("place", "node"), [("first", "left"), ("middle", "mid"), ("last", "right")])
def test_a_place_is_whoever_serves_there(bench: Bench, place: str, node: str) -> None:
    drill = bench.drill(f"{place}@1")
    emit(drill, 1)

    a_step(drill)

    assert bench.killed() == [node]


def test_a_place_follows_a_route_that_has_changed(bench: Bench) -> None:
    drill = bench.drill("first@2")
    drill.note(RouteChanged(was=LEFT, now=(SPARE,), route=(SPARE, MID, RIGHT), took_ms=1.0))
    emit(drill, 2)

    a_step(drill, SPARE, MID, RIGHT)

    assert bench.killed() == ["spare"]


def test_a_node_that_is_called_like_a_place_is_meant_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NodeName("first"))
    drill = bench.drill("first@1")
    emit(drill, 1)

    a_step(drill)

    assert bench.killed() == []
    assert drill.missed == (Kill(node="first", token=1),)


def test_two_kills_strike_one_after_the_other(bench: Bench) -> None:
    drill = bench.drill("left@1", "spare@2")
    emit(drill, 1)
    a_step(drill)
    assert bench.killed() == ["left"]

    emit(drill, 2)
    a_step(drill, SPARE, MID, RIGHT)

    assert bench.killed() == ["left", "spare"]
    assert bench.faults() == [("left", 1), ("spare", 2)]


def test_a_late_moment_is_made_up_for_with_the_next_request(bench: Bench) -> None:
    drill = bench.drill("right@2")
    emit(drill, 5)

    a_step(drill)

    assert bench.faults() == [("right", 5)]


def test_a_kill_strikes_once(bench: Bench) -> None:
    drill = bench.drill("left@1")
    emit(drill, 1)

    for _ in range(3):
        a_step(drill)

    assert bench.faults() == [("left", 1)]


def test_a_replay_is_a_request_like_any_other(bench: Bench) -> None:
    drill = bench.drill("spare@1")
    emit(drill, 1)

    drill.on_request(SPARE, 0, True)

    assert bench.killed() == ["spare"]


def test_a_kill_whose_moment_never_came_is_missed(bench: Bench) -> None:
    drill = bench.drill("spare@1", "left@50", "mid@1")
    emit(drill, 3)

    a_step(drill)

    assert drill.missed == (Kill(node="spare", token=1), Kill(node="left", token=50))


def test_a_node_that_is_down_already_is_no_new_fault(bench: Bench) -> None:
    drill = bench.drill("left@1", "left@1")
    emit(drill, 1)

    a_step(drill, LEFT)

    assert bench.faults() == [("left", 1)]


def test_steps_count_because_beam_search_emits_no_token_before_its_end(bench: Bench) -> None:
    drill = bench.drill("left@9")
    drill.note(TokensEmitted(index=20, ids=(1,)))
    a_step(drill)
    assert bench.killed() == []

    emit(drill, 9)
    a_step(drill)

    assert bench.killed() == ["left"]


def test_a_stranger_in_the_route_is_not_killed_and_the_drill_is_missed(bench: Bench) -> None:
    drill = bench.drill("first@0")
    stranger = Hop(blocks=parse_range("0:2"), peer=peer_of("stranger"))
    drill.note(RouteChosen(route=(stranger, MID, RIGHT), took_ms=1.0))

    a_step(drill, stranger)

    assert drill.missed == (Kill(node="first", token=0),)
    assert bench.faults() == []


@pytest.mark.parametrize("text", ["left@²", "left@-1", "left@", "@3", "left@1.5"])  # ² is a digit, and no number
def test_a_kill_at_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not NODE@TOKEN|names no node"):
        parse_kill(text, NODES)


def test_a_place_means_nobody_before_there_is_a_route(bench: Bench) -> None:
    drill = Drill(bench.site, [Kill(node="first", token=0)], bench.told.append)

    a_step(drill)

    assert bench.killed() == []
