"""`up`, `down`, `restart` and `kill` on a host in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.builders import a_server
from support.clock import FakeClock

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import DeadlineExceeded, NodeFailed, Refused
from swarmctl.events import Event, NodeLost, NodePhase, NodeReady, NodeStarted
from swarmctl.operations.down import down
from swarmctl.operations.kill import kill
from swarmctl.operations.restart import restart
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import up
from swarmctl.plan import ActionKind
from swarmctl.snapshot import NodeState
from swarmctl.spec import BootstrapSpec, Endpoint, HostSpec, ModelSpec, SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.base import KILLED, Completed
from swarmctl.transport.fake import FakeTransport

HERE = HostName("here")
BOOT, BOOT2, A, B = NodeName("boot"), NodeName("boot2"), NodeName("a"), NodeName("b")


@dataclass
class Stage:
    """A site on a fake host, and what happened on it."""

    site: Site
    host: FakeTransport
    clock: FakeClock
    events: list[Event] = field(default_factory=list)

    def up(self, **changes: object) -> None:
        up(self.site, sink=self.events.append, **{"deadline_s": 60.0, **changes})  # type: ignore[arg-type]

    def states(self) -> dict[str, NodeState]:
        return {node.name: node.state for node in read_snapshot(self.site).nodes}

    def running(self) -> set[str]:
        return {seen.name for seen in self.host.survey() if seen.running}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    spec = SwarmSpec(
        name="lab",
        model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=8, hidden_size=8),
        hosts={HERE: HostSpec(name=HERE)},
        bootstraps=(BootstrapSpec(name=BOOT, host=HERE), BootstrapSpec(name=BOOT2, host=HERE)),
        nodes={A: a_server("a", "0:4", host="here"), B: a_server("b", "4:8", host="here")},
    )
    clock = FakeClock()
    layout = Layout(state=tmp_path, run=tmp_path / "run", swarm="lab")
    host = FakeTransport(layout, clock)
    return Stage(
        site=Site(spec=spec, layout=layout, transports={HERE: host}, clock=clock, python="python"),
        host=host,
        clock=clock,
    )


def test_the_first_bootstrap_peer_is_ready_before_the_second_starts_and_both_before_any_server(stage: Stage) -> None:
    stage.up()

    told = [(type(event).__name__, event.node) for event in stage.events if isinstance(event, NodeStarted | NodeReady)]
    assert told[:4] == [("NodeStarted", BOOT), ("NodeReady", BOOT), ("NodeStarted", BOOT2), ("NodeReady", BOOT2)]
    assert {node for _, node in told[4:]} == {A, B}
    assert stage.states() == {"a": NodeState.ONLINE, "b": NodeState.ONLINE}


def test_each_joins_through_the_bootstrap_peers_that_listen(stage: Stage) -> None:
    stage.up()

    launches = {seen.name: seen.launch for seen in stage.host.survey() if seen.launch is not None}
    ends = {name: [peer.rpartition("/")[2] for peer in launch.initial_peers] for name, launch in launches.items()}
    assert ends == {
        "boot": [],
        "boot2": ["Qmboot"],
        "a": ["Qmboot", "Qmboot2"],
        "b": ["Qmboot", "Qmboot2"],
    }
    assert set(launches[A].roster) == {"Qmboot", "Qmboot2", "Qma", "Qmb"}
    assert launches[A].listen_ip == launches[A].announce_ip == "127.0.0.1"


def test_others_join_through_what_a_node_announces(stage: Stage) -> None:
    node = replace(stage.site.spec.nodes[A], port=4000, announce=Endpoint(ip="203.0.113.5", port=5000))
    spec = replace(stage.site.spec, nodes={**stage.site.spec.nodes, A: node}, bootstraps=stage.site.spec.bootstraps[:1])
    stage.site = replace(stage.site, spec=spec)
    stage.up()
    stage.host.end(BOOT, "killed")

    stage.up(only=[BOOT])

    launches = {seen.name: seen.launch for seen in stage.host.survey() if seen.launch is not None}
    assert (launches[A].listen_ip, launches[A].port) == ("127.0.0.1", 4000)
    assert launches[BOOT].initial_peers[0] == "/ip4/203.0.113.5/tcp/5000/p2p/Qma"


def test_identities_are_made_once_for_all_nodes(stage: Stage) -> None:
    stage.up()
    stage.up()

    made = [argv for argv in stage.host.commands_run if "swarmctl.upstream.identity" in argv]
    assert len(made) == 1
    assert len([argument for argument in made[0] if argument.endswith("identity.key")]) == 4


def test_a_phase_is_told_once(stage: Stage) -> None:
    stage.up()

    phases = [event.phase for event in stage.events if isinstance(event, NodePhase) and event.node == A]
    assert phases == list(dict.fromkeys(phases))
    assert phases[-1] == "online"


def test_up_waits_for_what_another_up_has_started(stage: Stage) -> None:
    stage.host.stuck[A] = "starting"
    with pytest.raises(DeadlineExceeded):
        stage.up(deadline_s=5.0)
    stage.host.stuck.clear()

    done = up(stage.site, sink=stage.events.append, deadline_s=60)

    assert {action.node: action.kind for action in done.plan.awaited} == {A: ActionKind.AWAIT}
    assert not done.changed
    assert stage.states()["a"] is NodeState.ONLINE


def test_the_deadline_names_everybody_who_is_behind(stage: Stage) -> None:
    stage.host.stuck.update({A: "loading", B: "joining"})

    with pytest.raises(DeadlineExceeded, match="gave up after 30 s waiting for a, b") as passed:
        stage.up(deadline_s=30.0)

    first, second = passed.value.reasons
    assert first.startswith("a: STARTING, phase loading since ")
    assert second.startswith("b: JOINING, phase joining since ")
    assert stage.clock.elapsed_s == pytest.approx(30, abs=1)


def test_a_failed_node_is_told_at_once_and_the_others_are_waited_for(stage: Stage) -> None:
    stage.host.doomed[A] = "exited with code 1"

    with pytest.raises(NodeFailed, match="node a on here ended before it was ready: exited with code 1") as failed:
        stage.up(deadline_s=600.0)

    assert failed.value.hints == ("swarmctl logs a", "the others go on; then continue with: swarmctl up")
    assert [event.reason for event in stage.events if isinstance(event, NodeLost)] == ["exited with code 1"]
    assert stage.clock.elapsed_s < 5
    assert stage.states()[B] is NodeState.ONLINE


def test_identities_that_cannot_be_made_stop_up_before_anything_starts(stage: Stage) -> None:
    failing = FakeTransport(
        stage.host.layout, stage.clock, commands=lambda _: Completed(code=1, stdout="", stderr="no hivemind\n")
    )
    site = replace(stage.site, transports={HERE: failing})

    with pytest.raises(NodeFailed, match="for boot, boot2, a, b on here failed") as failed:
        up(site, sink=stage.events.append)

    assert failed.value.reasons == ("exit status 1", "no hivemind")
    assert failing.survey() == ()


def test_down_stops_servers_before_bootstrap_peers(stage: Stage) -> None:
    stage.up()

    stopped = down(stage.site, sink=stage.events.append)

    assert [event.node for event in stopped] == [A, B, BOOT, BOOT2]
    assert {event.how for event in stopped} == {"stopped"}
    assert stage.running() == set()


def test_a_crashed_node_is_tidied_up_by_down_and_told_as_already_gone(stage: Stage) -> None:
    stage.up()
    stage.host.end(A, "exited with code 1")

    stopped = down(stage.site, nodes=(A,), sink=stage.events.append)

    assert [(event.node, event.how) for event in stopped] == [(A, "already")]
    assert down(stage.site, nodes=(A,), sink=stage.events.append) == ()


def test_restart_takes_one_node_after_the_other(stage: Stage) -> None:
    stage.up()
    stage.events.clear()

    restart(stage.site, [A, B], sink=stage.events.append)

    told = [(type(event).__name__, getattr(event, "node", None)) for event in stage.events]
    order = [item for item in told if item[0] in {"NodeStopped", "NodeReady"}]
    assert order == [("NodeStopped", A), ("NodeReady", A), ("NodeStopped", B), ("NodeReady", B)]


def test_kill_crashes_a_node_and_refuses_one_that_does_not_run(stage: Stage) -> None:
    stage.up()

    kill(stage.site, A, sink=stage.events.append)

    assert stage.states()["a"] is NodeState.CRASHED
    assert isinstance(stage.events[-1], NodeLost)
    assert stage.events[-1].reason == KILLED
    with pytest.raises(Refused, match="node a does not run"):
        kill(stage.site, A, sink=stage.events.append)
