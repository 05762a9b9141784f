"""What is left when a swarm or a client goes: nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.eventually import eventually
from support.reaping import left_of_swarm, processes_of
from support.swarm import ON_LLAMA, LiveSwarm, live_swarm

from swarmctl import processes
from swarmctl.errors import ExitCode

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

BRIEF_CLIENT = Path(__file__).with_name("brief_client.py")


@pytest.fixture
def small() -> Iterator[LiveSwarm]:
    """Two servers, each the only one of its blocks."""
    with live_swarm("llama", {"x": "0:3", "y": "3:6"}, replicas=1, log=sys.stderr.write) as live:
        yield live


@pytest.mark.own
def test_down_leaves_no_process_port_socket_or_record(small: LiveSwarm):
    layout = small.site.layout
    running, sockets = processes_of(layout), list(layout.run.rglob("*.sock"))
    assert len(running) > 10, "two servers and a bootstrap peer with handlers and daemons"
    assert sockets
    assert len(left_of_swarm(layout, small.ports.values())) > len(running) + len(sockets)

    first = small.command("down", "--yes")
    second = small.command("down", "--yes")

    assert first.code == ExitCode.OK, first.err
    assert left_of_swarm(layout, small.ports.values()) == []
    assert not layout.run.exists()
    assert second.code == ExitCode.OK
    assert "nothing" in second.out + second.err
    assert small.command("status").code == ExitCode.CHECK_NEGATIVE


@ON_LLAMA
def test_client_leaves_no_process_thread_or_socket_and_ends_without_noise(swarm: LiveSwarm):
    swarm.ready("a", "c")

    mark, before = str(swarm.folder / "brief-client"), set(swarm.site.layout.run.iterdir())
    done = swarm.program(str(BRIEF_CLIENT), str(swarm.site.spec.path), within_s=100, env={processes.MARK: mark})

    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["tokens"] == 8
    assert report["children"] == []
    assert report["threads"] == []
    assert report["sockets"] == []
    assert set(swarm.site.layout.run.iterdir()) == before
    assert done.err == ""
    eventually(lambda: _assert_nothing_carries(mark), within_s=5)


def _assert_nothing_carries(mark: str) -> None:
    assert not processes.marked(mark)
