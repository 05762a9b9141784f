from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from processes.conftest import BOOT, HERE, A, B, Lab, eventually, small_spec

from swarmctl import ports, processes, store
from swarmctl.blocks import BlockRange, PeerId
from swarmctl.errors import DeadlineExceeded, NodeFailed, Refused
from swarmctl.events import NodeLost, NodePhase, NodeReady, NodeStarted, NodeStopped
from swarmctl.operations.down import down
from swarmctl.operations.kill import kill
from swarmctl.operations.restart import restart
from swarmctl.operations.status import DYING, list_processes, read_snapshot
from swarmctl.operations.up import read_plan, up
from swarmctl.plan import ActionKind
from swarmctl.snapshot import NodeState
from swarmctl.spec import BootstrapSpec
from swarmctl.store import Record
from swarmctl.transport.base import KILLED

pytestmark = pytest.mark.process


@pytest.fixture
def running(lab: Lab) -> Lab:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    return lab


def states(lab: Lab) -> dict[str, NodeState]:
    return {node.name: node.state for node in read_snapshot(lab.site).nodes}


def pids(lab: Lab) -> dict[str, int | None]:
    return {row.node: row.pid for row in list_processes(lab.site)}


def test_up_makes_every_node_online_and_down_leaves_nothing(running: Lab) -> None:
    assert states(running) == {"a": NodeState.ONLINE, "b": NodeState.ONLINE}
    kinds = [type(event) for event in running.events]
    assert kinds.count(NodeStarted) == kinds.count(NodeReady) == 3
    assert NodePhase in kinds
    assert next(event for event in running.events if isinstance(event, NodeReady)).node == BOOT
    open_ports = [running.record(name).port for name in (BOOT, A, B)]

    stopped = down(running.site, sink=running.events.append, deadline_s=30)

    assert {event.node: event.how for event in stopped} == dict.fromkeys(("a", "b", "boot"), "stopped")
    assert stopped[-1].node == BOOT
    assert [event for event in running.events if isinstance(event, NodeStopped)] == list(stopped)
    assert not running.left()
    assert not running.runners()
    assert all(ports.is_free("127.0.0.1", port) for port in open_ports)
    assert not running.site.layout.run.exists()
    for name in (BOOT, A, B):
        files = running.files(name)
        left = {path.name for path in files.folder.iterdir()}
        assert left == {"identity.key", "identity.json", "launch.json", "lock", "node.log"}


def test_up_twice_changes_nothing_that_is_listed(running: Lab) -> None:
    rows = {row.node: row for row in list_processes(running.site)}
    assert list(rows) == ["a", "b", "boot"]
    assert (rows[A].kind, rows[A].port, rows[A].children) == ("server", running.record(A).port, 1)
    assert [process.role for process in rows[A].processes] == ["runner", "child"]
    assert rows[A].rss_bytes > 1024 * 1024
    before = pids(running)

    again = up(running.site, sink=running.events.append, deadline_s=30)

    assert not again.changed
    assert {action.kind for action in again.plan.actions} == {ActionKind.NOTHING}
    assert pids(running) == before


def test_down_twice_has_nothing_to_do_and_purge_still_removes_every_file(running: Lab) -> None:
    down(running.site, sink=running.events.append)
    assert down(running.site, sink=running.events.append) == ()

    down(running.site, sink=running.events.append, purge=True)

    assert list(running.site.layout.state.iterdir()) == []
    assert not running.site.layout.run.exists()


def test_a_node_that_dies_while_it_starts_ends_the_wait_with_its_last_words(lab: Lab) -> None:
    lab.behave(A, "doomed")

    with pytest.raises(NodeFailed, match="node a on here ended before it was ready: exited with code 3") as failed:
        up(lab.site, sink=lab.events.append, deadline_s=30)

    assert "out of memory, or so" in failed.value.reasons
    (lost,) = (event for event in lab.events if isinstance(event, NodeLost))
    assert lost.node == A
    assert "out of memory, or so" in lost.log_tail
    assert processes.is_alive(lab.record(B).child_pid, lab.record(B).child_started)


def test_a_node_is_not_shown_as_serving_between_its_death_and_its_runners_word(running: Lab) -> None:
    record = running.record(A)
    assert processes.send(record.runner_pid, record.runner_started, signal.SIGSTOP)
    eventually(lambda: processes.is_stopped(record.runner_pid, record.runner_started))
    assert processes.send(record.child_pid, record.child_started, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(record.child_pid, record.child_started))

    (node,) = (node for node in read_snapshot(running.site).nodes if node.name == A)
    # Which of the two is for the DHT to say, where its record lives on for a while.
    assert node.state in {NodeState.STALE, NodeState.CRASHED}
    assert node.process.ended == DYING
    assert A in {row.node for row in list_processes(running.site)}

    assert processes.send(record.runner_pid, record.runner_started, signal.SIGCONT)
    up(running.site, sink=running.events.append, deadline_s=30)
    assert {one.state for one in read_snapshot(running.site).nodes} == {NodeState.ONLINE}


def test_the_deadline_names_who_is_not_ready_and_how_far_it_is(lab: Lab) -> None:
    lab.behave(A, "mute")

    with pytest.raises(DeadlineExceeded, match="gave up after 4 s waiting for a") as passed:
        up(lab.site, sink=lab.events.append, deadline_s=4)

    assert passed.value.context["nodes"] == [A]
    assert any("a: JOINING, phase joining" in reason for reason in passed.value.reasons)
    assert not any(reason.startswith("b") for reason in passed.value.reasons)


def test_a_port_that_the_file_wants_and_somebody_has_is_named(lab: Lab) -> None:
    (port,) = ports.choose("127.0.0.1", [0])
    spec = replace(small_spec(), bootstraps=(BootstrapSpec(name=BOOT, host=HERE, port=port),))
    listener = (
        "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print(1, flush=True)"
    )
    argv = [sys.executable, "-c", f"{listener}; time.sleep(600)", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(NodeFailed, match=f"port {port} on 127.0.0.1 is taken by another program"):
                up(lab.with_spec(spec).site, sink=lab.events.append, deadline_s=30)
        finally:
            other.kill()


def test_a_node_whose_blocks_changed_is_replaced_and_the_others_are_not(running: Lab) -> None:
    spec = running.site.spec
    nodes = {**spec.nodes, A: replace(spec.nodes[A], blocks=BlockRange(0, 3))}
    changed = running.with_spec(replace(spec, nodes=nodes))
    before = pids(running)

    done = up(changed.site, sink=running.events.append, deadline_s=30)

    (action,) = done.plan.changes
    assert (action.kind, action.node) == (ActionKind.REPLACE_NODE, A)
    assert action.reasons == ("blocks: 0:2 → 0:3",)
    assert states(changed) == {"a": NodeState.ONLINE, "b": NodeState.ONLINE}
    after = pids(changed)
    assert after["a"] != before["a"]
    assert (after["b"], after["boot"]) == (before["b"], before["boot"])


def test_a_node_that_is_no_longer_in_the_file_is_a_stranger_and_the_next_up_stops_it(running: Lab) -> None:
    shorter = running.with_spec(replace(running.site.spec, nodes={A: running.site.spec.nodes[A]}))

    snapshot = read_snapshot(shorter.site)
    assert [stranger.peer for stranger in snapshot.strangers] == [PeerId("QmPeerOfb")]
    assert any("node b runs on here and is not in the file" in warning for warning in snapshot.warnings)
    up(shorter.site, sink=running.events.append, deadline_s=30)

    assert set(pids(shorter)) == {"a", "boot"}


def test_down_finds_nodes_that_are_not_in_the_file(running: Lab) -> None:
    emptied = running.with_spec(replace(running.site.spec, nodes={}))

    stopped = down(emptied.site, sink=running.events.append)

    assert [event.node for event in stopped][-1] == BOOT
    assert {event.node for event in stopped} == {A, B, BOOT}
    assert not running.left()


def test_a_killed_node_is_crashed_on_purpose_and_comes_back_on_its_port(running: Lab) -> None:
    before = running.record(A)

    kill(running.site, A, sink=running.events.append)

    eventually(lambda: states(running)["a"] is NodeState.CRASHED, what="the DHT to forget it")
    (facts,) = (node for node in read_snapshot(running.site).nodes if node.name == A)
    assert facts.process.ended == KILLED
    assert not facts.process.asked_to_stop
    with pytest.raises(Refused, match="does not run"):
        kill(running.site, A, sink=running.events.append)
    done = up(running.site, sink=running.events.append, deadline_s=30)
    assert [action.reasons for action in done.plan.changes] == [(f"it is CRASHED: {KILLED}",)]
    assert states(running)["a"] is NodeState.ONLINE
    assert running.record(A).port == before.port
    assert running.record(A).peer == before.peer


def test_up_replaces_a_bootstrap_peer_that_died_and_joins_it_through_the_servers(running: Lab) -> None:
    kill(running.site, BOOT, sink=running.events.append)

    up(running.site, sink=running.events.append, deadline_s=30)

    launch = store.read_launch(running.files(BOOT))
    assert launch is not None
    assert {address.rpartition("/")[2] for address in launch.initial_peers} == {"QmPeerOfa", "QmPeerOfb"}
    assert states(running) == {"a": NodeState.ONLINE, "b": NodeState.ONLINE}


def test_restart_replaces_one_process_and_leaves_the_others_alone(running: Lab) -> None:
    before, port = pids(running), running.record(A).port

    restart(running.site, [A], sink=running.events.append, deadline_s=30)

    after = pids(running)
    assert after["a"] != before["a"]
    assert (after["b"], after["boot"]) == (before["b"], before["boot"])
    assert running.record(A).port == port
    assert states(running)["a"] is NodeState.ONLINE


def test_only_some_nodes_start_and_the_bootstrap_peers_that_they_need(lab: Lab) -> None:
    up(lab.site, only=(B,), sink=lab.events.append, deadline_s=30)

    assert set(pids(lab)) == {"b", "boot"}
    stopped = down(lab.site, nodes=(B,), sink=lab.events.append)
    assert [event.node for event in stopped] == [B]
    assert set(pids(lab)) == {"boot"}


def test_a_dry_run_says_what_would_be_done_and_does_nothing(lab: Lab) -> None:
    done = up(lab.site, sink=lab.events.append, dry_run=True)

    assert done.plan == read_plan(lab.site)
    assert [action.kind for action in done.plan.changes] == [
        ActionKind.START_BOOTSTRAP,
        ActionKind.START_NODE,
        ActionKind.START_NODE,
    ]
    assert not lab.events
    assert not lab.files(BOOT).launch.exists()


def test_a_node_whose_runner_was_killed_is_started_again(running: Lab) -> None:
    record = running.record(A)
    processes.send(record.runner_pid, record.runner_started, signal.SIGKILL)
    eventually(lambda: states(running)["a"] is NodeState.CRASHED, what="nothing of it to be left")

    up(running.site, sink=running.events.append, deadline_s=30)

    assert states(running)["a"] is NodeState.ONLINE


def test_down_ends_what_a_runner_that_is_gone_has_left(lab: Lab) -> None:
    environment = {**os.environ, processes.MARK: str(lab.files(A).folder)}
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(argv, start_new_session=True, env=environment) as left:
        record = Record(
            node=A,
            kind="server",
            peer=PeerId("QmPeerOfa"),
            port=1,
            blocks="0:2",
            runner_pid=left.pid,
            runner_started=1,
            child_pid=left.pid,
            child_started=processes.start_of(left.pid),
            started_at="2024-01-01T00:00:00+00:00",
        )
        store.write_json(lab.files(A).record, record)
        (action,) = (action for action in read_plan(lab.site).changes if action.node == A)
        assert action.kind is ActionKind.REPLACE_NODE
        assert "its runner is gone, and what that started is still there" in action.reasons

        (event,) = down(lab.site, sink=lab.events.append)

        assert (event.node, event.how) == (A, "killed")
        assert left.wait(10) == -signal.SIGKILL
    assert not lab.left()
