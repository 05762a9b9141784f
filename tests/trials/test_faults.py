"""Faults that only real servers and a real client can show: what passes a gate, and who is forgotten."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.eventually import eventually

from swarmctl import processes
from swarmctl.blocks import NodeName
from swarmctl.client.connect import address_of
from swarmctl.client.generate import Client, Connection, Listener, Sampling
from swarmctl.events import Event, Hop, PeerSuspected
from swarmctl.matrix import Fault
from swarmctl.operations.generate import connection_to
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.trials.faults import inject, struck
from swarmctl.operations.trials.stage import Stage, local_stage
from swarmctl.snapshot import NodeState
from swarmctl.upstream.model import ClientModel, open_model

pytestmark = [pytest.mark.swarm, pytest.mark.own, pytest.mark.timeout(300)]

NODES = tuple(map(NodeName, ("a", "b", "c")))
PROMPT = "The swarm keeps its blocks on many machines"


@dataclass
class Played:
    """A stage with three servers, and a client that is connected to it."""

    stage: Stage
    opened: ClientModel
    connection: Connection

    def generate(self, request: Callable[[Hop, int, bool], None] | None = None) -> tuple[tuple[int, ...], list[Event]]:
        events: list[Event] = []
        listener = Listener(sink=events.append, request=request)
        client = Client(self.opened, self.connection)
        (done,) = client.generate([PROMPT], Sampling(max_new_tokens=16), listener=listener)
        return done.ids, events

    def known(self) -> dict[NodeName, str]:
        self.opened.router.refresh(timeout_s=5)
        return {self.connection.names[record.peer]: record.state.value for record in self.opened.router.records()}


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with local_stage("llama") as stage:
        stage.ready(NODES)
        connection = connection_to(stage.site, read_snapshot(stage.site))
        with open_model(address_of(connection)) as opened:
            stage.dht = opened.router.dht
            yield Played(stage=stage, opened=opened, connection=connection)


@pytest.fixture(autouse=True)
def ready(played: Played) -> None:
    played.stage.ready(NODES)
    for peer in played.connection.names:
        played.opened.router.bans.record_success(peer)


def far_ends(pid: int) -> set[int]:
    """The ports on the loopback that a process has connections to."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    sockets = {str(one.readlink()) for one in descriptors if one.is_symlink()}
    found = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        established = words[3] == "01"
        if established and f"socket:[{words[9]}]" in sockets:
            found.add(int(words[2].partition(":")[2], 16))
    return found


def test_a_client_is_connected_to_each_server_through_its_gate_and_in_no_other_way(played: Played) -> None:
    played.generate()
    below = processes.below(processes.read_processes(), os.getpid())
    servers = {one.pid for name in played.stage.site.layout.names() for one in _of(played.stage, name)}
    # The client's libp2p daemon; the runners are children of this process too.
    mine = [one.pid for one in below if "p2pd" in one.command and one.pid not in servers]
    assert mine

    reached = set().union(*(far_ends(pid) for pid in mine))

    assert {played.stage.gate(node).port for node in NODES} <= reached
    assert not {played.stage.site.spec.nodes[node].port for node in NODES} & reached


def _of(stage: Stage, name: NodeName) -> tuple[processes.ProcessSeen, ...]:
    return processes.marked(str(stage.site.layout.node(name).folder))


@pytest.mark.parametrize("fault", [Fault.PARTITION, Fault.PAUSE, Fault.PAUSE_MAIN])
def test_a_server_that_falls_silent_in_mid_step_is_suspected_and_the_tokens_are_the_same(
    played: Played, fault: Fault
) -> None:
    expected, _ = played.generate()
    hit: list[float] = []

    def strike(hop: Hop, position: int, _replay: bool) -> None:
        if not hit and hop.node in ("a", "b") and position > 10:
            began = time.perf_counter()
            inject(played.stage, fault, hop.node)
            hit.append(time.perf_counter() - began)

    ids, events = played.generate(strike)

    assert ids == expected
    (suspected,) = {event.hop.node for event in events if isinstance(event, PeerSuspected)}
    assert struck(played.stage, fault, NodeName(suspected)) is None
    # It is called from hivemind's event loop, in the middle of a step.
    assert hit[0] < 0.5


def test_a_forgotten_server_serves_on_unseen_and_is_seen_again_when_it_is_taken_back(played: Played) -> None:
    assert played.known() == dict.fromkeys(NODES, "ONLINE")

    undo = inject(played.stage, Fault.FORGET, NODES[1])

    assert struck(played.stage, Fault.FORGET, NODES[1]) is None
    assert played.known() == {"a": "ONLINE", "b": "OFFLINE", "c": "ONLINE"}
    eventually(lambda: _assert_state(played.stage, NODES[1], NodeState.STARTING), within_s=10)
    undo()
    assert played.known() == dict.fromkeys(NODES, "ONLINE")
    eventually(lambda: _assert_state(played.stage, NODES[1], NodeState.ONLINE), within_s=20)


def _assert_state(stage: Stage, node: NodeName, wanted: NodeState) -> None:
    (state,) = [one.state for one in read_snapshot(stage.site).nodes if one.name == node]
    assert state is wanted
