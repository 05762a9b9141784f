"""A real server and its runner: what dies by itself is back by itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from support.connected import connected_client
from support.eventually import eventually
from support.history import check
from support.swarm import NUM_BLOCKS, LiveSwarm, live_swarm

from swarmctl import processes
from swarmctl.blocks import NodeName
from swarmctl.snapshot import NodeState
from swarmctl.store import Record, read_health, read_record

pytestmark = [pytest.mark.swarm, pytest.mark.own, pytest.mark.timeout(240)]

X = NodeName("x")


@pytest.fixture
def small() -> Iterator[LiveSwarm]:
    """One server of all blocks, which is started again when it dies."""
    with live_swarm("llama", {"x": "0:6"}, replicas=1, settings={"x": "restarts: 5"}, log=sys.stderr.write) as live:
        yield live


def record_of(live: LiveSwarm) -> Record:
    record = read_record(live.site.layout.node(X))
    assert record is not None
    return record


def serves(live: LiveSwarm, *, restarts: int) -> Record:
    """The record of the server when it is ONLINE after so many restarts, and says that it is well."""

    def look() -> Record:
        record = record_of(live)
        assert (live.states()[X], record.restarts) == (NodeState.ONLINE, restarts)
        health = read_health(live.site.layout.node(X))
        assert health is not None
        assert health.ok, health
        assert health.forward_ms is not None
        assert health.announced
        return record

    return eventually(look, within_s=90)


def test_a_server_whose_main_process_was_killed_is_back_by_itself_under_its_name_and_serves(small: LiveSwarm) -> None:
    before = serves(small, restarts=0)
    children = small.site.survey([X])[X].node.processes

    assert processes.send(before.child_pid, before.child_started, signal.SIGKILL)

    after = serves(small, restarts=1)
    assert (after.peer, after.port, after.runner_pid) == (before.peer, before.port, before.runner_pid)
    assert (after.crashes, after.last_ended) == (1, "killed by signal 9 (SIGKILL)")
    left = [one for one in children if one.pid != before.runner_pid and processes.is_alive(one.pid, one.started)]
    assert not left
    with connected_client(small) as client:
        history = client.generate("The swarm keeps its blocks on many machines")
        check(history, num_blocks=NUM_BLOCKS)
        assert history.ids is not None
