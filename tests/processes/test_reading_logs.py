"""Reading the logs of nodes that run, that have ended, and that have crashed."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from processes.conftest import BOOT, HERE, A, B, Lab, eventually

from swarmctl import processes
from swarmctl.clock import SystemClock
from swarmctl.operations import logs
from swarmctl.operations.down import down
from swarmctl.operations.selection import candidates, select
from swarmctl.operations.up import up

pytestmark = pytest.mark.process


@pytest.fixture
def running(lab: Lab) -> Lab:
    up(lab.site, sink=lab.events.append, deadline_s=30)
    return lab


def test_logs_are_read_by_node_filtered_and_followed_to_the_end(running: Lab) -> None:
    pretending = logs.read(running.site, [A, B], grep="pretending")
    assert sorted((line.node, line.host, line.text) for line in pretending) == [
        (A, HERE, "pretending to be a"),
        (B, HERE, "pretending to be b"),
    ]
    following = logs.read(running.site, [A], tail=1, follow=True)
    assert next(following).node == A

    down(running.site, nodes=(A,), sink=running.events.append)

    rest = [line.text for line in following]
    assert "leaving in good order" in rest
    assert rest[-1].endswith("swarmctl: stopped")


def test_a_followed_log_ends_with_the_runners_word_also_when_that_comes_late(running: Lab) -> None:
    record = running.record(A)
    paused = record.runner_pid, record.runner_started

    class Waking(SystemClock):
        def sleep(self, seconds: float) -> None:
            processes.send(*paused, signal.SIGCONT)
            super().sleep(seconds)

    assert processes.send(*paused, signal.SIGSTOP)
    eventually(lambda: processes.is_stopped(*paused))
    assert processes.send(record.child_pid, record.child_started, signal.SIGKILL)
    eventually(lambda: not processes.is_alive(record.child_pid, record.child_started))

    lines = [line.text for line in logs.read(replace(running.site, clock=Waking()), [A], tail=1, follow=True)]

    assert lines[-1].endswith("swarmctl: killed by signal 9 (SIGKILL)")


def test_the_lines_of_several_nodes_are_in_the_order_in_which_they_were_written(running: Lab) -> None:
    down(running.site, sink=running.events.append)

    lines = list(logs.read(running.site, [A, B, BOOT], tail=None))

    times = [line.at for line in lines if line.at is not None]
    assert len(times) == len(lines)
    assert times == sorted(times)
    first_of_b = next(place for place, line in enumerate(lines) if line.node == B)
    assert any(line.node == A for line in lines[first_of_b:]), "node by node, not interleaved"
    assert list(logs.read(running.site, [A, B, BOOT], tail=None, since=times[-1])) == [
        line for line in lines if line.at == times[-1]
    ]


def test_what_a_crashed_node_has_written_is_read_also_of_one_that_is_not_in_the_file_any_more(running: Lab) -> None:
    record = running.record(A)
    assert processes.send(record.child_pid, record.child_started, signal.SIGKILL)
    eventually(lambda: running.record(A).ended is not None, what="the runner's word")
    spec = running.site.spec
    without = running.with_spec(replace(spec, nodes={B: spec.nodes[B]}))

    for site in (running.site, without.site):
        names = select(candidates(site), [f"@{HERE}"])
        assert A in names
        texts = [line.text for line in logs.read(site, names) if line.node == A]
        assert "pretending to be a" in texts
        assert texts[-1] == "swarmctl: killed by signal 9 (SIGKILL)"


def test_the_last_words_of_a_node_whose_runner_was_killed_with_it_are_shown(lab: Lab) -> None:
    lab.files(A).log.write_bytes(b"2026-12-07T08:27:22.123Z loading\r 45%")

    (line,) = logs.read(lab.site, [A])

    assert (line.text, line.at) == (" 45%", 1796632042.123)
