"""A runner and its children, one after the other: who is started again, when, and who is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from processes.conftest import BOOT, PRETEND, A, Lab, eventually, small_spec
from processes.test_runner import a_launch, ended, lab_is_empty

from swarmctl import locks, processes, store
from swarmctl.operations.down import down
from swarmctl.operations.status import list_processes, read_snapshot
from swarmctl.operations.up import up
from swarmctl.snapshot import NodeFacts, NodeState
from swarmctl.store import Launch, Record, read_progress, read_record
from swarmctl.transport.base import KILLED, Order

pytestmark = pytest.mark.process

NEVER_S = "600"
AT_ONCE_S = "0.05"
SOON_S = "0.5"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    return lab.with_spec(small_spec(restarts=5))


@contextmanager
def runner(lab: Lab, *options: str, launch: Launch | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A runner of A with these options, as whoever knows no swarmctl would start it (systemd, say)."""
    store.write_json(lab.files(A).launch, launch or a_launch(lab))
    argv = [sys.executable, "-m", "swarmctl.node", "--launch", str(lab.files(A).launch), *options, "--child", *PRETEND]
    with subprocess.Popen(argv) as process:
        try:
            yield process
        finally:
            process.kill()


def online(lab: Lab, *, restarts: int = 0) -> Record:
    """The record of A when the child after so many restarts is online."""

    def look() -> Record | None:
        record, progress = read_record(lab.files(A)), read_progress(lab.files(A))
        there = record is not None and record.restarts == restarts and record.next_start_at is None
        return record if there and progress is not None and progress.phase == "online" else None

    return eventually(look, what=f"A to be online after {restarts} restarts")


def backing_off(lab: Lab) -> Record:
    def look() -> Record | None:
        record = read_record(lab.files(A))
        return record if record is not None and record.next_start_at is not None else None

    return eventually(look, what="the runner to wait")


def crash(record: Record) -> None:
    assert processes.send(record.child_pid, record.child_started, signal.SIGKILL)


def facts(lab: Lab) -> NodeFacts:
    return next(node for node in read_snapshot(lab.site).nodes if node.name == A)


def test_a_child_that_was_killed_by_somebody_is_started_again_once_and_nothing_of_the_first_is_left(lab: Lab) -> None:
    lab.behave(A, "family", "escape")
    with runner(lab, "--backoff", AT_ONCE_S):
        first = online(lab)
        family = [process for process in lab.left() if process.pid != first.child_pid]
        assert len(family) == 4
        lab.behave(A)

        crash(first)

        second = online(lab, restarts=1)
        assert (second.peer, second.port, second.runner_pid) == (first.peer, first.port, first.runner_pid)
        assert second.child_pid != first.child_pid
        assert second.started_at > first.started_at
        assert (second.crashes, second.last_ended) == (1, "killed by signal 9 (SIGKILL)")
        assert [process.pid for process in lab.left()] == [second.child_pid]
        assert lab.log(A).count("started server a (pid") == 2
        assert "killed by signal 9 (SIGKILL); starts again in 0.05 s, restart 1 of 5" in lab.log(A)
        eventually(lambda: lab.files(A).health.exists(), what="the second child to say how it is")
        assert read_record(lab.files(A)) == second


def test_a_child_that_ends_again_and_again_is_given_up_at_the_limit(lab: Lab) -> None:
    lab.behave(A, "brief")
    with runner(lab, "--backoff", "0.01", launch=replace(a_launch(lab), max_restarts=3)) as process:
        assert process.wait(60) == 1

    after = lab.record(A)
    assert after.ended == "exited with code 3; given up after 3 restarts within 10 minutes of service"
    assert (after.restarts, after.crashes, after.next_start_at, after.asked_to_stop) == (3, 4, None, False)
    assert lab.log(A).count("started server a (pid") == 4
    assert not Path(lab.files(A).sockets).exists()
    assert facts(lab).state is NodeState.CRASHED
    assert facts(lab).process.ended == after.ended
    assert not lab.left()


def test_each_restart_waits_twice_as_long_as_the_one_before(lab: Lab) -> None:
    lab.behave(A, "brief")
    with runner(lab, "--backoff", "0.02", launch=replace(a_launch(lab), max_restarts=4)) as process:
        process.wait(60)

    told = [line.partition("starts again in ")[2] for line in lab.log(A).splitlines() if "starts again" in line]
    assert [line.partition(" s,")[0] for line in told] == ["0.02", "0.04", "0.08", "0.16"]


def test_a_request_to_stop_ends_a_runner_that_waits_at_once(lab: Lab) -> None:
    with runner(lab, "--backoff", NEVER_S) as process:
        crash(online(lab))
        before = backing_off(lab)

        process.send_signal(signal.SIGTERM)

        assert process.wait(10) == 0
    after = lab.record(A)
    assert (after.ended, after.asked_to_stop, after.next_start_at) == ("stopped", True, None)
    assert (after.child_pid, after.last_ended) == (before.child_pid, "killed by signal 9 (SIGKILL)")


def test_down_ends_a_node_that_waits_for_its_next_start(lab: Lab) -> None:
    up(lab.site, only=(A,), sink=lab.events.append, deadline_s=30)
    # The second wait is long enough to be met in its course.
    crash(lab.record(A))
    crash(online(lab, restarts=1))
    backing_off(lab)

    stopped = down(lab.site, sink=lab.events.append, deadline_s=10)

    assert {event.node for event in stopped} == {A, BOOT}
    assert lab_is_empty(lab)
    assert not lab.files(A).record.exists()


def test_a_child_that_is_killed_for_a_drill_stays_dead(lab: Lab) -> None:
    lab.site.transport("here").start_runner(a_launch(lab))
    online(lab)

    assert lab.site.transport("here").signal(A, Order.KILL)

    after = ended(lab)
    assert (after.ended, after.restarts, after.crashes) == (KILLED, 0, 0)
    eventually(lambda: lab_is_empty(lab), what="nothing to be left")


def test_a_child_that_never_came_online_is_not_started_again(lab: Lab) -> None:
    lab.behave(A, "doomed")
    with runner(lab, "--backoff", AT_ONCE_S) as process:
        assert process.wait(30) == 1

    assert (lab.record(A).ended, lab.record(A).restarts) == ("exited with code 3", 0)


def test_a_later_child_that_never_comes_online_is_tried_again(lab: Lab) -> None:
    with runner(lab, "--backoff", AT_ONCE_S):
        first = online(lab)
        lab.behave(A, "doomed")
        crash(first)
        eventually(lambda: "restart 3 of 5" in lab.log(A), what="the second death of a loading child")

        lab.behave(A)

        eventually(lambda: (p := read_progress(lab.files(A))) is not None and p.phase == "online", what="A again")


def test_with_no_restarts_a_child_runs_once_and_may_be_stopped_by_a_signal(lab: Lab) -> None:
    launch = replace(a_launch(lab), max_restarts=0)
    with runner(lab, "--hung", AT_ONCE_S, "--sick", AT_ONCE_S, launch=launch) as process:
        record = online(lab)
        eventually(lab.files(A).health.exists, what="the child to say how it is")
        lab.behave(A, "hung", "sick")
        eventually(lambda: is_old(lab, 1.5), what="its health to grow old, and the runner to have looked at it")
        assert processes.is_alive(record.child_pid, record.child_started)

        crash(record)

        assert process.wait(10) == 1
    assert lab.record(A).ended == "killed by signal 9 (SIGKILL)"


def is_old(lab: Lab, age_s: float) -> bool:
    # By the clock that stamps files.
    probe = lab.files(A).folder / "now"
    probe.touch()
    return probe.stat().st_mtime - lab.files(A).health.stat().st_mtime > age_s


@pytest.mark.parametrize("stopped", [False, True], ids=["says-nothing", "stopped-by-a-signal"])
def test_a_hung_child_is_killed_and_started_again(lab: Lab, stopped: bool) -> None:
    with runner(lab, "--hung", SOON_S, "--backoff", AT_ONCE_S):
        first = online(lab)
        if stopped:
            processes.send(first.child_pid, first.child_started, signal.SIGSTOP)
        else:
            lab.behave(A, "hung", "stubborn")
        crashed = eventually(lambda: (r := lab.record(A)).crashes and r, what="the hung child to be killed")
        lab.behave(A)

        second = online(lab, restarts=1)

        assert crashed.last_ended is not None
        assert crashed.last_ended.startswith("gave no sign of life for ")
        assert not processes.is_alive(first.child_pid, first.child_started)
        assert [process.pid for process in lab.left()] == [second.child_pid]


def test_a_child_that_says_for_long_that_it_is_not_well_is_asked_to_leave_and_started_again(lab: Lab) -> None:
    with runner(lab, "--sick", SOON_S, "--backoff", AT_ONCE_S):
        online(lab)
        lab.behave(A, "sick")
        crashed = eventually(lambda: (r := lab.record(A)).crashes and r, what="the sick child to be gone")
        lab.behave(A)

        online(lab, restarts=1)

    assert crashed.last_ended is not None
    assert crashed.last_ended.startswith("was not well for ")
    assert crashed.last_ended.endswith(" s: it pretends")
    assert "leaving in good order" in lab.log(A)


def test_a_child_that_is_busy_for_minutes_is_left_alone(lab: Lab) -> None:
    lab.behave(A, "busy")
    # The limit for silence is longer than the runner's look at it, and shorter than this test.
    with runner(lab, "--hung", "1.2", "--sick", "1.2", "--backoff", AT_ONCE_S):
        record = online(lab)
        eventually(lab.files(A).health.exists, what="the child to say how it is")
        begun = lab.files(A).progress.stat().st_mtime

        eventually(lambda: lab.files(A).health.stat().st_mtime - begun > 4, what="four seconds of health")

        assert lab.record(A) == record
        assert processes.is_alive(record.child_pid, record.child_started)


def test_a_bootstrap_peer_that_observes_no_more_is_started_again(lab: Lab) -> None:
    launch = replace(a_launch(lab), kind="bootstrap", blocks=None)
    with runner(lab, "--hung", SOON_S, "--backoff", AT_ONCE_S, launch=launch):
        online(lab)
        lab.behave(A, "hung")
        eventually(lambda: lab.record(A).crashes, what="the hung peer to be killed")
        lab.behave(A)

        online(lab, restarts=1)
        eventually(lambda: lab.files(A).observed.exists(), what="it to observe again")


def test_a_runner_that_is_killed_while_it_waits_leaves_nothing_and_another_takes_over(lab: Lab) -> None:
    with runner(lab, "--backoff", NEVER_S) as process:
        crash(online(lab))
        backing_off(lab)
        process.kill()
        process.wait(10)
    assert lab_is_empty(lab)
    assert not locks.is_held(lab.files(A).lock)
    assert facts(lab).process.ended == "its runner is gone: killed, or the host was restarted"

    with runner(lab):
        assert online(lab).restarts == 0


def test_no_child_outlives_a_runner_that_is_killed_after_a_restart(lab: Lab) -> None:
    with runner(lab, "--backoff", AT_ONCE_S) as process:
        crash(online(lab))
        lab.behave(A, "family")
        online(lab, restarts=1)
        process.kill()
        process.wait(10)

    eventually(lambda: lab_is_empty(lab), within_s=5, what="nothing to be left")


def test_a_node_that_waits_after_one_crash_has_crashed_and_after_several_it_flaps(lab: Lab) -> None:
    with runner(lab, "--backoff", "4"):
        first = online(lab)
        crash(first)
        backing_off(lab)

        once = facts(lab)
        assert (once.state, once.process.running) == (NodeState.CRASHED, False)
        assert once.process.ended is not None
        assert once.process.ended.startswith("killed by signal 9 (SIGKILL); starts again in ")
        assert once.process.ended.endswith(" s, restart 1 of 5")
        assert [row.node for row in list_processes(lab.site)] == [A]
        crash(online(lab, restarts=1))
        backing_off(lab)

        twice = facts(lab)
        assert (twice.state, twice.process.crashes, twice.process.restarts) == (NodeState.FLAPPING, 2, 1)
        assert twice.process.ended is not None
        assert twice.process.ended.endswith("restart 2 of 5")


def test_up_starts_a_node_at_once_that_waits_for_its_next_start(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    crash(lab.record(A))
    crash(online(lab, restarts=1))
    waits = backing_off(lab)

    done = up(lab.site, sink=lab.events.append, deadline_s=30)

    assert [action.node for action in done.plan.changes] == [A]
    after = lab.record(A)
    assert after.runner_pid != waits.runner_pid
    assert (after.restarts, after.crashes, after.port) == (0, 0, waits.port)
    assert facts(lab).state is NodeState.ONLINE


def test_up_waits_through_a_crash_of_a_node_that_its_runner_starts_again(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    lab.behave(A, "mute")
    crash(lab.record(A))
    eventually(lambda: (r := lab.record(A)).restarts == 1 and r.next_start_at is None, what="the second child")
    lab.behave(A)
    crash(lab.record(A))

    up(lab.site, sink=lab.events.append, deadline_s=30)

    assert facts(lab).state is NodeState.ONLINE
