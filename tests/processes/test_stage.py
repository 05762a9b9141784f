"""A stage of pretended servers: who runs, what is done to them, and that nothing is left, however it ends."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator

import pytest
from processes.conftest import BOOT, PRETEND, A, B, Lab, eventually, small_spec

from swarmctl import ports, processes
from swarmctl.blocks import NodeName
from swarmctl.errors import Refused
from swarmctl.matrix import Fault
from swarmctl.operations.kill import kill
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.trials.faults import Undo, inject, struck
from swarmctl.operations.trials.stage import Stage, local_stage, own_stage
from swarmctl.operations.up import up
from swarmctl.snapshot import NodeState
from swarmctl.spec import RedundancyPolicy
from swarmctl.store import Record, read_record

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

C = NodeName("c")
DEADLY = [Fault.KILL, Fault.KILL_MAIN, Fault.STOP, Fault.LATE, Fault.FULL]


def record_of(stage: Stage, node: NodeName) -> Record:
    record = read_record(stage.site.layout.node(node))
    assert record is not None
    return record


def group_of(stage: Stage, node: NodeName) -> list[processes.ProcessSeen]:
    record = record_of(stage, node)
    return [one for one in processes.read_processes().values() if one.group == record.child_pid]


def online(stage: Stage) -> set[str]:
    return {node.name for node in read_snapshot(stage.site).nodes if node.state is NodeState.ONLINE}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with local_stage("llama", child=PRETEND) as opened:
        for name in (A, B):
            folder = opened.site.layout.node(name).folder
            (folder / "pretend.txt").write_text("family")
        yield opened


@pytest.fixture
def both(stage: Stage) -> Stage:
    """The stage with `a` and `b` as they were before anything was done to them."""
    stage.ready([A, B])
    return stage


def test_only_who_is_named_runs_and_who_runs_already_stays_as_it_is(both: Stage) -> None:
    before = record_of(both, A)

    both.ready([A, C])

    assert online(both) == {A, B, C}
    assert record_of(both, A) == before


def test_each_node_announces_its_gate_and_is_reached_through_it(both: Stage) -> None:
    gate, record = both.gate(A), record_of(both, A)

    assert record.addresses == (f"/ip4/127.0.0.1/tcp/{gate.port}/p2p/{record.peer}",)
    assert gate.port != record.port
    assert not gate.look().shut


@pytest.mark.parametrize("fault", DEADLY)
def test_a_deadly_fault_bites_and_the_node_comes_back_when_it_is_needed(both: Stage, fault: Fault) -> None:
    before = record_of(both, A)
    assert len(group_of(both, A)) > 2

    undo = inject(both, fault, A)
    assert struck(both, fault, A) is None

    eventually(lambda: not group_of(both, A))
    undo()
    assert A not in online(both)
    both.ready([A])
    assert A in online(both)
    after = record_of(both, A)
    assert after.child_pid != before.child_pid
    assert after.peer == before.peer
    assert struck(both, fault, A) is None


def test_a_node_that_is_still_leaving_is_awaited_and_started_again(both: Stage) -> None:
    before = record_of(both, A)

    inject(both, Fault.STOP, A)
    both.ready([A])

    assert A in online(both)
    assert record_of(both, A).child_pid != before.child_pid


def test_what_cannot_be_undone_hinders_nothing_else_from_it(lab: Lab) -> None:
    undone: list[str] = []

    def fail() -> None:
        raise Refused("it is stuck")

    stage = Stage(site=lab.site, family="llama", nodes={}, sink=lab.events.append)
    for name, back in (("first", lambda: undone.append("first")), ("second", fail), ("third", undone.clear)):
        stage.undos.append(Undo(fault=Fault.PAUSE, node=NodeName(name), evidence=lambda: None, back=back))

    with pytest.raises(Refused, match="it is stuck"):
        stage.restore()

    assert undone == ["first"]
    stage.restore()


def test_a_stage_that_closes_starts_nobody(lab: Lab) -> None:
    stage = Stage(site=lab.site, family="llama", nodes={}, sink=lab.events.append)
    stage.close()

    stage.start_again(A)

    assert not lab.runners()


def test_a_restarted_node_comes_back_by_itself_with_the_same_peer(both: Stage) -> None:
    before = record_of(both, A)

    undo = inject(both, Fault.RESTART, A)
    eventually(lambda: A in online(both) and record_of(both, A).child_pid != before.child_pid)
    undo()

    assert record_of(both, A).peer == before.peer
    assert struck(both, Fault.RESTART, A) is None


def stopped(stage: Stage, node: NodeName) -> list[bool]:
    return [processes.is_stopped(one.pid, one.started) for one in group_of(stage, node)]


def test_a_paused_node_is_stopped_with_all_that_it_started_and_goes_on(both: Stage) -> None:
    undo = inject(both, Fault.PAUSE, A)

    eventually(lambda: all(stopped(both, A)))
    assert len(stopped(both, A)) > 2
    assert not any(stopped(both, B))
    undo()
    undo()
    eventually(lambda: not any(stopped(both, A)))
    assert struck(both, Fault.PAUSE, A) is None


def test_the_process_that_computes_can_be_paused_alone(both: Stage) -> None:
    inject(both, Fault.PAUSE_MAIN, A)

    eventually(lambda: any(stopped(both, A)))
    child = record_of(both, A).child_pid
    assert [one.pid for one in group_of(both, A) if processes.is_stopped(one.pid, one.started)] == [child]
    both.restore()
    eventually(lambda: not any(stopped(both, A)))


def test_a_slow_node_goes_on_by_itself_and_the_evidence_is_kept(both: Stage) -> None:
    inject(both, Fault.SLOW, A, slow_s=0.3)

    eventually(lambda: all(stopped(both, A)))
    eventually(lambda: not any(stopped(both, A)))
    assert struck(both, Fault.SLOW, A) is None


def test_a_fault_that_did_not_bite_says_so(both: Stage) -> None:
    undo = inject(both, Fault.PAUSE, A)
    for one in group_of(both, A):
        processes.send(one.pid, one.started, signal.SIGCONT)
    eventually(lambda: not any(stopped(both, A)))

    reason = struck(both, Fault.PAUSE, A)

    assert reason is not None
    assert "of a were not stopped" in reason
    undo()
    assert struck(both, Fault.PAUSE, A) == reason
    assert struck(both, Fault.SLOW, B) == "slow was never done to b"


def test_a_partition_that_cuts_nobody_off_says_so_and_ends_with_the_cell(both: Stage) -> None:
    inject(both, Fault.PARTITION, A)

    assert both.gate(A).look().shut
    assert struck(both, Fault.PARTITION, A) == "nobody was connected to a through its gate"
    both.restore()
    assert not both.gate(A).look().shut


def test_a_node_that_does_not_run_is_refused(both: Stage) -> None:
    for fault in (Fault.KILL, Fault.PAUSE, Fault.STOP):
        with pytest.raises(Refused, match="node r does not run"):
            inject(both, fault, NodeName("r"))


def test_nobody_is_forgotten_without_a_way_into_the_swarm(both: Stage) -> None:
    with pytest.raises(Refused, match="nobody has lent a DHT"):
        inject(both, Fault.FORGET, A)


def test_cells_of_expiry_are_played_by_the_servers_with_short_limits(stage: Stage) -> None:
    brief = stage.nodes_for(Fault.EXPIRE)

    assert not set(brief) & set(stage.nodes_for(Fault.KILL))
    assert all(stage.settings(node).step_timeout_s < 10 for node in brief)
    assert stage.can(Fault.EXPIRE) is None
    assert all(stage.settings(node).step_timeout_s > 1000 for node in stage.nodes)


# --- its end ------------------------------------------------------------------------------------------------------


def test_a_stage_that_ends_in_good_order_has_ended_when_the_block_is_left() -> None:
    with local_stage("bloom", child=PRETEND) as stage:
        stage.ready([A])
        folder = stage.site.layout.state.parent
        assert stage.family == "bloom"
        assert json.loads((folder / "model/config.json").read_text())["model_type"] == "bloom"
        port = record_of(stage, A).port

    assert not folder.exists()
    assert ports.is_free("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", stage.gate(A).port))


# --- the operator's own swarm -------------------------------------------------------------------------------------


def test_victims_on_the_operators_swarm_are_started_again_at_the_end(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    before = {name: lab.record(name) for name in (BOOT, A, B)}

    with own_stage(lab.site) as stage:
        assert set(stage.nodes) == {A, B}
        inject(stage, Fault.KILL, A)
        inject(stage, Fault.PAUSE, B)

    assert online(stage) == {A, B}
    assert lab.record(A).child_pid != before[A].child_pid
    assert {name: lab.record(name) for name in (BOOT, B)} == {name: before[name] for name in (BOOT, B)}


def test_the_operators_policy_says_who_may_be_struck(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)

    with own_stage(lab.site) as stage:
        assert stage.forbids([A]) == (
            "blocks 0:2 would have no replica instead of 1, the policy wants 1 by host; lost: a",
        )
        assert stage.can(Fault.PARTITION) is not None
        assert stage.can(Fault.EXPIRE) == "not offered: these servers keep an idle session for 3600 s"
        assert stage.can(Fault.KILL) is None
        with pytest.raises(Refused, match="partition cannot be done here"):
            inject(stage, Fault.PARTITION, A)


def test_a_swarm_that_is_not_as_its_file_says_is_no_stage(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    kill(lab.site, A, sink=lab.events.append)

    with pytest.raises(Refused, match="is not what its file says") as caught, own_stage(lab.site):
        pass
    assert caught.value.reasons == ("a: start: it is CRASHED: killed by swarmctl (SIGKILL)",)
    assert caught.value.hints == ("swarmctl up",)
    assert small_spec().redundancy == RedundancyPolicy()
