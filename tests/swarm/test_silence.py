"""A server that stops without a word, its connections open: overtaken when late, and found out afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.connected import ConnectedClient
from support.eventually import eventually
from support.history import History
from support.swarm import ON_LLAMA, LiveSwarm

from swarmctl.blocks import NodeName
from swarmctl.events import Hop, PeerFailed, PeerOvertaken, PeerSuspected, RecoveryDone
from swarmctl.store import read_record

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

PROMPT = "The swarm keeps its blocks"


@contextmanager
def pausing(swarm: LiveSwarm, node: str, *, at: int, for_s: float | None, whole: bool) -> Iterator[object]:
    """A request hook that stops a node, its group or its main process, at the first request from position `at` on.

    It goes on after `for_s` seconds, or when the block is left.
    """
    record = read_record(swarm.site.layout.node(NodeName(node)))
    assert record is not None
    assert record.child_pid is not None
    pid = record.child_pid
    send = os.killpg if whole else os.kill
    paused = threading.Event()
    timers: list[threading.Timer] = []

    def hook(hop: Hop, position: int, _replay: bool) -> None:
        if not paused.is_set() and hop.node == node and position >= at:
            paused.set()
            send(pid, signal.SIGSTOP)
            if for_s is not None:
                timers.append(threading.Timer(for_s, send, (pid, signal.SIGCONT)))
                timers[-1].start()

    try:
        yield hook
        assert paused.is_set(), f"no request went to {node}"
    finally:
        for timer in timers:
            timer.join()
        send(pid, signal.SIGCONT)


def recovery_of(history: History) -> RecoveryDone:
    (done,) = [event for event in history.events if isinstance(event, RecoveryDone)]
    return done


@ON_LLAMA
@pytest.mark.parametrize("whole", [True, False], ids=["the whole group", "only the process that computes"])
def test_a_paused_server_is_overtaken_within_a_second_with_the_same_tokens(
    swarm: LiveSwarm, client: ConnectedClient, whole: bool
) -> None:
    client.ready()
    client.steer("c")
    # Long enough for a look to have come to its end when the session does.
    expected = client.locally(PROMPT, tokens=80)

    with pausing(swarm, "c", at=10, for_s=None, whole=whole) as hook:
        history = client.generate(PROMPT, tokens=80, request=hook)

        def found_out() -> None:
            bans = client.opened.router.bans.banned(time.monotonic(), slow=False)
            assert "c" in {client.connection.names[peer] for peer in bans}, "a look has not found it silent yet"

        eventually(found_out, within_s=10)

    assert history.ids == expected
    (overtaken,) = [event for event in history.events if isinstance(event, PeerOvertaken)]
    assert overtaken.hop.node == "c"
    assert not [event for event in history.events if isinstance(event, PeerFailed)]
    # A second on a quiet machine; one that is shared by six servers and other tests has been seen to need two.
    assert recovery_of(history).step_ms < 3_000


@ON_LLAMA
def test_a_server_that_pauses_for_a_moment_costs_no_failure(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready()
    client.steer("c")
    expected = client.locally(PROMPT)

    with pausing(swarm, "c", at=10, for_s=1.2, whole=True) as hook:
        history = client.generate(PROMPT, request=hook)

    assert history.ids == expected
    assert any(isinstance(event, PeerSuspected) for event in history.events)
    assert not [event for event in history.events if isinstance(event, PeerFailed)]
