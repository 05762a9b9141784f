"""A server that stops without a word, its connections open: suspected when late, given up only if it is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.connected import ConnectedClient
from support.swarm import ON_LLAMA, LiveSwarm

from swarmctl.blocks import NodeName
from swarmctl.events import Hop, PeerFailed, PeerSuspected, RecoveryDone
from swarmctl.store import read_record

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

PROMPT = "The swarm keeps its blocks"


@contextmanager
def pausing(swarm: LiveSwarm, node: str, *, at: int, for_s: float | None) -> Iterator[object]:
    """A request hook that stops the whole group of a node at the first request from position `at` on.

    It goes on after `for_s` seconds, or when the block is left.
    """
    record = read_record(swarm.site.layout.node(NodeName(node)))
    assert record is not None
    assert record.child_pid is not None
    group = record.child_pid
    paused = threading.Event()
    timers: list[threading.Timer] = []

    def hook(hop: Hop, position: int, _replay: bool) -> None:
        if not paused.is_set() and hop.node == node and position >= at:
            paused.set()
            os.killpg(group, signal.SIGSTOP)
            if for_s is not None:
                timers.append(threading.Timer(for_s, os.killpg, (group, signal.SIGCONT)))
                timers[-1].start()

    try:
        yield hook
        assert paused.is_set(), f"no request went to {node}"
    finally:
        for timer in timers:
            timer.join()
        os.killpg(group, signal.SIGCONT)


@ON_LLAMA
def test_a_paused_server_is_replaced_in_seconds_with_the_same_tokens(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready()
    client.steer("c")
    expected = client.locally(PROMPT)

    with pausing(swarm, "c", at=10, for_s=None) as hook:
        history = client.generate(PROMPT, request=hook)

    assert history.ids == expected
    failed = [event for event in history.events if isinstance(event, PeerFailed)]
    assert [(event.hop.node, event.kind) for event in failed] == [("c", "silent")]
    assert failed[0].detect_ms < 8_000  # a second of patience and two for the ping; the request's own limit is 15
    assert any(isinstance(event, RecoveryDone) for event in history.events)


@ON_LLAMA
def test_a_server_that_pauses_for_a_moment_is_suspected_and_kept(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready()
    client.steer("c")
    expected = client.locally(PROMPT)

    with pausing(swarm, "c", at=10, for_s=1.6) as hook:
        history = client.generate(PROMPT, request=hook)

    assert history.ids == expected
    assert any(isinstance(event, PeerSuspected) for event in history.events)
    assert not [event for event in history.events if isinstance(event, PeerFailed)]
