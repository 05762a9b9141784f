"""`up`, `down`, the lock and the log of events on several hosts in memory, some of which do not answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.builders import a_server
from support.clock import FakeClock
from support.manyhosts import a_site

from swarmctl.blocks import BlockRange, HostName, NodeName
from swarmctl.errors import HostUnreachable, Locked, NodeFailed, PartialFailure, Refused
from swarmctl.events import Event, NodeReady, NodeStarted
from swarmctl.operations import history, locking
from swarmctl.operations.down import down
from swarmctl.operations.generate import connection_to
from swarmctl.operations.kill import kill
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import OnUnreachable, read_plan, up
from swarmctl.plan import ActionKind
from swarmctl.snapshot import NodeState
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, SwarmSpec
from swarmctl.transport.fake import FakeTransport
from swarmctl.transport.oplock import LockNote

NEAR, FAR, THIRD = HostName("near"), HostName("far"), HostName("third")
BOOT, BOOT2 = NodeName("bootstrap-0"), NodeName("bootstrap-1")
A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
OTHER = LockNote(who="bob@desk", doing="up", since="2026-01-02T03:04:05+00:00", why="new model")


@dataclass
class Stage:
    """A site on three hosts in memory, and what happened on it."""

    site: Site
    hosts: dict[HostName, FakeTransport]
    clock: FakeClock
    events: list[Event] = field(default_factory=list)

    def up(self, **changes: object) -> object:
        return up(self.site, sink=self.events.append, **{"deadline_s": 300.0, **changes})  # type: ignore[arg-type]

    def states(self) -> dict[str, NodeState]:
        return {node.name: node.state for node in read_snapshot(self.site).nodes}

    def told(self) -> list[tuple[str, str]]:
        return [
            (type(event).__name__, event.node) for event in self.events if isinstance(event, NodeStarted | NodeReady)
        ]

    def journal(self) -> list[tuple[str, str | None]]:
        return [(entry.type, entry.node) for entry in history.read(self.site)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    spec = SwarmSpec(
        name="lab",
        model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=8, hidden_size=8),
        hosts={
            name: HostSpec(name=name, ssh=f"ops@{name}", address=f"192.0.2.{place}")
            for place, name in enumerate((NEAR, FAR, THIRD), start=1)
        },
        bootstraps=(BootstrapSpec(name=BOOT, host=NEAR), BootstrapSpec(name=BOOT2, host=FAR)),
        nodes={
            A: a_server("a", "0:8", host="near"),
            B: a_server("b", "0:8", host="far"),
            C: a_server("c", "0:8", host="third"),
        },
    )
    site, hosts, clock = a_site(spec, tmp_path)
    return Stage(site=site, hosts=hosts, clock=clock)


def away(stage: Stage, *names: HostName) -> None:
    for name in names:
        stage.hosts[name].away = f"host {name} (ops@{name}): no answer within 10 s"


# --- up ------------------------------------------------------------------------------------------------------------


def test_the_first_server_serves_before_the_others_start(stage: Stage) -> None:
    stage.up()

    servers = [told for told in stage.told() if told[1] in (A, B, C)]
    assert servers[:2] == [("NodeStarted", A), ("NodeReady", A)]
    assert {node for _, node in servers[2:]} == {B, C}
    assert set(stage.states().values()) == {NodeState.ONLINE}


def test_without_a_canary_all_servers_start_together(stage: Stage) -> None:
    stage.up(canary=False)

    assert [kind for kind, node in stage.told() if node in (A, B, C)][:3] == ["NodeStarted"] * 3


def test_a_canary_that_dies_keeps_the_others_from_starting(stage: Stage) -> None:
    stage.hosts[NEAR].doomed[A] = "exited with code 1"

    with pytest.raises(NodeFailed, match="node a on near ended before it was ready"):
        stage.up()

    assert stage.hosts[FAR].survey([B]) == ()
    assert stage.hosts[THIRD].survey() == ()


def test_a_host_that_fails_does_not_stop_the_others_and_is_named_at_the_end(stage: Stage) -> None:
    stage.hosts[FAR].doomed[B] = "exited with code 3"
    stage.hosts[THIRD].doomed[C] = "exited with code 4"

    with pytest.raises(PartialFailure, match="2 nodes did not become ready: b, c") as partial:
        stage.up()

    assert stage.states()[A] is NodeState.ONLINE
    assert partial.value.exit_code == 8
    assert "node b on far ended before it was ready: exited with code 3" in partial.value.reasons
    assert "  exited with code 4" in partial.value.reasons
    assert partial.value.hints[0] == "swarmctl up"


def test_one_bootstrap_peer_that_fails_does_not_keep_the_swarm_from_coming_up(stage: Stage) -> None:
    stage.hosts[FAR].doomed[BOOT2] = "exited with code 1"

    with pytest.raises(NodeFailed, match="node bootstrap-1 on far ended"):
        stage.up()

    assert set(stage.states().values()) == {NodeState.ONLINE}


def test_nothing_is_started_while_a_host_does_not_answer(stage: Stage) -> None:
    away(stage, THIRD)

    with pytest.raises(HostUnreachable, match="nothing was started: host third") as refused:
        stage.up()

    assert refused.value.exit_code == 7
    assert "go on with the others: swarmctl up --on-unreachable skip" in refused.value.hints
    assert stage.hosts[NEAR].survey() == ()


def test_hosts_that_do_not_answer_are_left_out_when_that_is_wanted(stage: Stage) -> None:
    away(stage, THIRD)

    done = stage.up(on_unreachable=OnUnreachable.SKIP)

    assert [action.node for action in done.plan.skipped] == [C]
    assert list(done.unreachable) == [THIRD]
    assert stage.states() == {A: NodeState.ONLINE, B: NodeState.ONLINE, C: NodeState.UNREACHABLE}


def test_the_first_bootstrap_peer_may_be_out_of_reach_and_new_servers_join_through_the_second(stage: Stage) -> None:
    away(stage, NEAR)

    stage.up(on_unreachable=OnUnreachable.SKIP)

    (seen,) = stage.hosts[FAR].survey([B])
    assert seen.launch is not None
    assert [peer.rpartition("/")[2] for peer in seen.launch.initial_peers] == ["Qmbootstrap-1"]


def test_a_swarm_whose_bootstrap_peers_are_all_out_of_reach_is_not_started(stage: Stage) -> None:
    away(stage, NEAR, FAR)

    with pytest.raises(HostUnreachable):
        stage.up(on_unreachable=OnUnreachable.SKIP)

    assert stage.hosts[THIRD].survey() == ()


def test_a_server_is_not_replaced_because_the_bootstrap_peer_it_came_through_is_out_of_reach(stage: Stage) -> None:
    stage.up()
    away(stage, NEAR)

    plan = read_plan(stage.site)

    assert {action.node: action.kind for action in plan.actions} == {
        BOOT: ActionKind.SKIP,
        BOOT2: ActionKind.NOTHING,
        A: ActionKind.SKIP,
        B: ActionKind.NOTHING,
        C: ActionKind.NOTHING,
    }


def test_two_nodes_with_one_key_are_refused_before_anything_starts(stage: Stage) -> None:
    stage.up()
    down(stage.site, sink=stage.events.append)
    (found,) = stage.hosts[FAR].survey([B])
    stage.hosts[THIRD].give_key(C, found.peer)

    with pytest.raises(Refused, match="nodes b on far and c on third have one identity: a key file was copied"):
        stage.up()

    assert not any(seen.running for host in stage.hosts.values() for seen in host.survey())


def test_a_killed_node_that_moves_to_other_blocks_waits_until_its_old_record_is_gone(stage: Stage) -> None:
    stage.up()
    kill(stage.site, C, sink=stage.events.append)
    stage.hosts[THIRD].remembered_s = 23.0
    moved = replace(stage.site.spec.nodes[C], blocks=BlockRange(0, 4))
    spec = replace(stage.site.spec, nodes={**stage.site.spec.nodes, C: moved})
    began = stage.clock.elapsed_s

    up(replace(stage.site, spec=spec), sink=stage.events.append, deadline_s=300.0)

    assert stage.clock.elapsed_s - began > 23
    assert read_snapshot(replace(stage.site, spec=spec)).nodes[2].state is NodeState.ONLINE


# --- down, status, generate ----------------------------------------------------------------------------------------


def test_down_stops_what_it_can_reach_and_names_the_rest(stage: Stage) -> None:
    stage.up()
    away(stage, THIRD)

    with pytest.raises(HostUnreachable, match=r"4 nodes are stopped; what runs on third could not be") as partly:
        down(stage.site, sink=stage.events.append)

    assert partly.value.exit_code == 7
    assert not any(seen.running for host in (NEAR, FAR) for seen in stage.hosts[host].survey())


def test_a_node_whose_host_is_silent_and_that_others_see_serving_still_counts(stage: Stage) -> None:
    stage.up()
    away(stage, THIRD)

    snapshot = read_snapshot(stage.site)

    assert snapshot.nodes[2].state is NodeState.ONLINE
    assert snapshot.nodes[2].process.unknown is not None
    assert snapshot.strangers == ()
    assert snapshot.warnings == ("host third does not answer: host third (ops@third): no answer within 10 s",)


def test_a_node_whose_host_is_silent_and_that_nobody_sees_is_unreachable(stage: Stage) -> None:
    stage.up()
    stage.hosts[THIRD].end(C, "unplugged")
    away(stage, THIRD)

    assert stage.states()[C] is NodeState.UNREACHABLE


def test_a_client_finds_its_way_in_through_a_bootstrap_peer_whose_host_lets_no_operator_in(stage: Stage) -> None:
    stage.up()
    away(stage, NEAR, FAR)

    connection = connection_to(stage.site, read_snapshot(stage.site))

    assert {address.rpartition("/")[2] for address in connection.initial_peers} == {"Qmbootstrap-0", "Qmbootstrap-1"}
    assert set(connection.names.values()) == {A, B, C}


# --- the lock and the log ------------------------------------------------------------------------------------------


def test_a_second_operator_is_told_who_is_at_it(stage: Stage) -> None:
    stage.hosts[NEAR].lock_note = OTHER

    with pytest.raises(Locked, match="another operator is changing swarm lab") as locked:
        stage.up()

    assert locked.value.exit_code == 9
    assert locked.value.reasons == ("bob@desk: `up` (new model), since 2026-01-02T03:04:05+00:00",)


def test_an_operator_who_waits_goes_on_when_the_other_has_finished(stage: Stage) -> None:
    stage.hosts[NEAR].lock_note = OTHER
    stage.clock.at(20.0, lambda: stage.hosts[NEAR].break_lock())
    patient = replace(stage.site, operator=replace(stage.site.operator, lock_wait_s=60.0))

    up(patient, sink=stage.events.append, deadline_s=300.0)

    assert set(stage.states().values()) == {NodeState.ONLINE}


def test_an_operator_whose_lock_was_broken_does_nothing_more(stage: Stage) -> None:
    def break_it(event: Event) -> None:
        if isinstance(event, NodeReady) and event.node == BOOT:
            assert locking.break_lock(stage.site).holder is not None

    with pytest.raises(Locked, match="was taken away while `up` had it"):
        up(stage.site, sink=break_it, deadline_s=300.0)

    assert stage.hosts[FAR].survey() == ()
    assert ("lock-broken", None) in stage.journal()


def test_the_next_bootstrap_peers_host_keeps_the_lock_where_the_first_does_not_answer(stage: Stage) -> None:
    away(stage, NEAR)
    stage.hosts[FAR].lock_note = OTHER

    with pytest.raises(Locked):
        stage.up(on_unreachable=OnUnreachable.SKIP)

    seen = locking.read_lock(stage.site)
    assert (seen.host, seen.holder) == (FAR, OTHER)


def test_the_lock_is_free_after_a_failure(stage: Stage) -> None:
    stage.hosts[NEAR].doomed[BOOT] = stage.hosts[FAR].doomed[BOOT2] = "exited with code 1"
    with pytest.raises(PartialFailure):
        stage.up()

    assert locking.read_lock(stage.site).holder is None


def test_what_was_done_is_written_down_with_who_and_why(stage: Stage) -> None:
    stage.up()
    kill(stage.site, A, sink=stage.events.append)
    down(stage.site, nodes=[B], sink=stage.events.append)

    entries = list(history.read(stage.site))

    started = [("started", name) for name in (BOOT, BOOT2, A)]
    assert [(one.type, one.node) for one in entries][:3] == started
    assert [(one.type, one.node) for one in entries][-2:] == [("killed", A), ("stopped", B)]
    assert {(one.who, one.why) for one in entries} == {("ada@desk", "a test")}
    assert [one.doing for one in entries][-2:] == ["kill", "down"]


def test_events_of_a_time_when_another_host_kept_the_log_are_not_lost(stage: Stage) -> None:
    away(stage, NEAR)
    stage.up(on_unreachable=OnUnreachable.SKIP)
    stage.hosts[NEAR].away = None
    stage.clock.sleep(5)
    stage.up()

    written = stage.journal()
    assert written[0] == ("started", BOOT2)
    assert set(written[1:3]) == {("started", B), ("started", C)}
    assert written[3:] == [("started", BOOT), ("started", A)]
    later = [entry.node for entry in history.read(stage.site, since=stage.clock.now().timestamp() - 3, kinds=("lost",))]
    assert later == []


def test_a_log_of_events_that_nobody_can_read_is_a_failure(stage: Stage) -> None:
    away(stage, NEAR, FAR)

    with pytest.raises(HostUnreachable):
        list(history.read(stage.site))
