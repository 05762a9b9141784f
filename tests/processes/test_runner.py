from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from processes.conftest import BOOT, PRETEND, A, Lab, eventually

from swarmctl import processes, store
from swarmctl.blocks import PeerId
from swarmctl.errors import Locked
from swarmctl.operations.launching import launch_for
from swarmctl.store import Launch, Record, read_record
from swarmctl.transport.base import KILLED, Order

pytestmark = pytest.mark.process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def a_launch(lab: Lab, port: int | None = None) -> Launch:
    peers = {name: PeerId(f"QmPeerOf{name}") for name in (BOOT, A)}
    return launch_for(lab.site, A, peers=peers, port=port or free_port(), initial_peers=["/ip4/127.0.0.1/tcp/1/p2p/Qm"])


def started(lab: Lab, *words: str) -> Record:
    """The record of a node that runs and has got as far as its words let it."""
    lab.behave(A, *words)
    lab.site.transport("here").start_runner(a_launch(lab))
    eventually(
        lambda: lab.files(A).progress.exists() and "joining" in lab.files(A).progress.read_text(), what="joining"
    )
    return lab.record(A)


def ended(lab: Lab) -> Record:
    def record() -> Record | None:
        seen = read_record(lab.files(A))
        return seen if seen is not None and seen.ended is not None else None

    return eventually(record, what="the record to say how the node ended")


def lab_is_empty(lab: Lab) -> bool:
    lab.site.survey()
    return not lab.left() and not lab.runners()


def test_children_and_grandchildren_die_when_the_runner_is_killed(lab: Lab) -> None:
    record = started(lab, "family", "mute")
    eventually(lambda: len(lab.left()) == 4, what="child, two forked, one executed")

    processes.send(record.runner_pid, record.runner_started, signal.SIGKILL)

    eventually(lambda: lab_is_empty(lab), within_s=5, what="nothing to be left")
    assert lab.record(A).ended is None


def test_a_killed_child_takes_its_group_along_and_the_record_names_the_signal(lab: Lab) -> None:
    record = started(lab, "family", "mute")

    processes.send(record.child_pid, record.child_started, signal.SIGKILL)

    after = ended(lab)
    assert after.ended == "killed by signal 9 (SIGKILL)"
    assert not after.asked_to_stop
    assert not Path(lab.files(A).sockets).exists()
    eventually(lambda: lab_is_empty(lab), what="nothing to be left")


def test_a_child_that_ends_by_itself_leaves_its_exit_code_and_its_last_words(lab: Lab) -> None:
    lab.behave(A, "doomed", "last-words")
    lab.site.transport("here").start_runner(a_launch(lab))

    after = ended(lab)

    assert after.ended == "exited with code 3"
    assert not after.asked_to_stop
    lines = lab.log(A).splitlines()
    assert any(line.endswith("Z the very last words") for line in lines)
    assert lines[-1].endswith("exited with code 3")


def test_sigterm_lets_the_child_leave_in_good_order(lab: Lab) -> None:
    started(lab, "mute")

    assert lab.site.transport("here").signal(A, Order.STOP)

    after = ended(lab)
    assert (after.ended, after.asked_to_stop) == ("stopped", True)
    assert "leaving in good order" in lab.log(A)
    assert not Path(lab.files(A).sockets).exists()
    eventually(lambda: lab_is_empty(lab), what="nothing to be left")


@pytest.mark.parametrize("impatient", [False, True], ids=["grace-passes", "asked-twice"])
def test_a_child_that_ignores_sigterm_is_killed_with_its_group(lab: Lab, impatient: bool) -> None:
    lab.behave(A, "stubborn", "family", "escape", "mute")
    store.write_json(lab.files(A).launch, a_launch(lab))
    grace = "60" if impatient else "0.3"
    argv = [sys.executable, "-m", "swarmctl.node", "--launch", str(lab.files(A).launch), "--grace", grace]
    with subprocess.Popen([*argv, "--child", *PRETEND]) as runner:
        try:
            eventually(lambda: len(lab.left()) == 5, what="the family and the one that escapes")
            runner.send_signal(signal.SIGINT)
            if impatient:
                eventually(lambda: lab.record(A).asked_to_stop, what="the first signal to be met")
                runner.send_signal(signal.SIGTERM)

            assert runner.wait(20) == 0
        finally:
            runner.kill()

    after = lab.record(A)
    assert after.ended == f"killed after {grace} s without an answer to SIGTERM"
    assert not lab.left()


def test_kill_is_recorded_as_done_on_purpose(lab: Lab) -> None:
    started(lab, "family", "mute")

    assert lab.site.transport("here").signal(A, Order.KILL)

    after = ended(lab)
    assert (after.ended, after.asked_to_stop) == (KILLED, False)
    eventually(lambda: lab_is_empty(lab), what="nothing to be left")


def test_a_reused_pid_is_never_signalled(lab: Lab) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as innocent:
        try:
            wrong = processes.start_of(innocent.pid) - 1
            record = Record(
                node=A,
                kind="server",
                peer=PeerId("QmPeerOfa"),
                port=1,
                blocks="0:2",
                runner_pid=innocent.pid,
                runner_started=wrong,
                child_pid=innocent.pid,
                child_started=wrong,
                started_at="2024-01-01T00:00:00+00:00",
            )
            store.write_json(lab.files(A).record, record)
            transport = lab.site.transport("here")

            assert [transport.signal(A, order) for order in Order] == [False, False, False]

            (seen,) = transport.survey([A])
            assert not seen.running
            assert seen.ended == "its runner is gone: killed, or the host was restarted"
            assert transport.clear(A) == ()
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_second_runner_is_refused_and_the_first_goes_on(lab: Lab) -> None:
    record = started(lab, "mute")

    with pytest.raises(Locked, match="has a runner already"):
        lab.site.transport("here").start_runner(a_launch(lab))
    argv = [sys.executable, "-m", "swarmctl.node", "--launch", str(lab.files(A).launch), "--child", *PRETEND]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    assert second.returncode == 9
    assert "another runner has node a" in second.stderr
    assert lab.record(A) == record
    assert processes.is_alive(record.child_pid, record.child_started)


def test_a_port_that_is_taken_is_refused_although_both_would_share_it(lab: Lab) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        lab.site.transport("here").start_runner(a_launch(lab, port))

        after = ended(lab)

    assert after.ended == f"did not start: port {port} on 127.0.0.1 is taken by another program"
    assert after.child_pid is None
    eventually(lambda: lab_is_empty(lab), what="the runner to leave")


def test_an_address_that_is_not_this_machines_is_refused(lab: Lab) -> None:
    launch = replace(a_launch(lab), listen_ip="192.0.2.1")
    lab.site.transport("here").start_runner(launch)

    after = ended(lab)

    assert after.ended is not None
    assert "192.0.2.1 is not an address of this machine" in after.ended


def test_a_runner_whose_child_cannot_be_executed_says_so(lab: Lab) -> None:
    store.write_json(lab.files(A).launch, a_launch(lab))
    argv = [sys.executable, "-m", "swarmctl.node", "--launch", str(lab.files(A).launch), "--child", "/no/such/program"]

    done = subprocess.run(argv, timeout=30, check=False)

    assert done.returncode == 1
    assert lab.record(A).ended == "exited with code 127"
    assert "cannot run /no/such/program: No such file or directory" in lab.log(A)


def test_a_launch_file_that_cannot_be_read_is_named(lab: Lab) -> None:
    lab.files(A).launch.write_text("{")
    argv = [sys.executable, "-m", "swarmctl.node", "--launch", str(lab.files(A).launch)]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == 1
    assert f"{lab.files(A).launch} is missing or broken" in done.stderr


def test_a_node_does_not_hold_open_what_its_starter_had_open(lab: Lab) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        started(lab, "mute")
    finally:
        os.close(writing)

    with os.fdopen(reading, "rb") as source:
        assert source.read() == b""
    assert lab.runners()


def test_the_runner_stays_small(lab: Lab) -> None:
    record = started(lab, "mute")

    maps = Path(f"/proc/{record.runner_pid}/maps").read_text()

    assert "torch" not in maps
    seen = processes.read_process(record.runner_pid)
    assert seen is not None
    assert seen.rss_bytes < 40 * 1024 * 1024
