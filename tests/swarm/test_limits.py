"""What cannot be done is said at once, or within the time that was given; nothing is retried without end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.connected import ConnectedClient
from support.eventually import eventually
from support.history import check
from support.leaks import Footprint
from support.swarm import CACHE_TOKENS, MAX_LENGTH, NUM_BLOCKS, ON_LLAMA, LiveSwarm

from swarmctl import processes
from swarmctl.blocks import NodeName
from swarmctl.errors import RecoveryFailed, RequestInvalid
from swarmctl.events import Event, PeerFailed, PeerOvertaken, RouteChosen, WaitingForPeers
from swarmctl.snapshot import NodeState
from swarmctl.store import read_record
from swarmctl.upstream.session import RecoverableSession

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

PROMPT = "The swarm keeps its blocks on many machines"


@contextmanager
def every_cache_is_full(client: ConnectedClient) -> Iterator[list[RecoverableSession]]:
    """Sessions that hold the whole attention cache of every server; they end with the block, or when closed."""
    held: list[RecoverableSession] = []
    batch, hidden = CACHE_TOKENS // MAX_LENGTH, client.swarm.site.spec.model.hidden_size
    try:
        # Each block is on two servers, so two sessions fill them.
        for _ in range(2):
            held.append(RecoverableSession(client.opened.router, MAX_LENGTH, names=client.connection.names))
            with torch.inference_mode():
                held[-1].step(torch.zeros(batch, 1, hidden))
        yield held
    finally:
        for session in held:
            session.close()


@contextmanager
def hung(swarm: LiveSwarm, node: str) -> Iterator[None]:
    """SIGSTOP all that a node has started, for the time of the block: alive, connected, and silent."""
    record = read_record(swarm.site.layout.node(NodeName(node)))
    assert record is not None
    group = processes.members(processes.read_processes(), record.child_pid, record.child_started, mark="")
    assert len(group) > 3, "a server, its handlers and its libp2p daemons"
    try:
        for one in group:
            processes.send(one.pid, one.started, signal.SIGSTOP)
        yield
    finally:
        for one in group:
            processes.send(one.pid, one.started, signal.SIGCONT)


@ON_LLAMA
def test_too_long_a_request_is_refused_at_once_and_nobody_is_blamed(client: ConnectedClient):
    client.ready()
    began = time.monotonic()

    with pytest.raises(RequestInvalid, match="longer than the servers allow") as caught:
        client.generate(PROMPT, tokens=MAX_LENGTH)

    assert time.monotonic() - began < 5
    assert str(MAX_LENGTH) in "".join(caught.value.reasons)
    assert not client.histories[-1].of(PeerFailed)
    assert not client.banned()


@ON_LLAMA
def test_full_caches_end_a_generation_in_time_and_ban_nobody_for_long(client: ConnectedClient):
    client.ready()
    hasty = client.limited(recover_timeout_s=2, alloc_timeout_s=1)
    began = time.monotonic()

    with every_cache_is_full(client), pytest.raises(RecoveryFailed, match="no server for blocks 0:") as caught:
        hasty.generate(PROMPT)

    assert time.monotonic() - began < 15
    assert any(line.endswith("busy") for line in caught.value.reasons), caught.value.reasons
    assert {event.kind for event in client.histories[-1].of(PeerFailed)} == {"busy"}
    eventually(lambda: _assert_nobody_is_banned(client), within_s=5)


def _assert_nobody_is_banned(client: ConnectedClient) -> None:
    assert not client.banned()


@ON_LLAMA
def test_generation_that_waits_for_a_full_cache_goes_on_when_it_has_room(client: ConnectedClient):
    client.ready()

    with every_cache_is_full(client) as held:

        def make_room(event: Event) -> None:
            if isinstance(event, WaitingForPeers):
                held[0].close()

        history = client.limited(alloc_timeout_s=1).generate(PROMPT, on_event=make_room)

    assert history.ids == client.locally(PROMPT)
    assert history.waited
    check(history, num_blocks=NUM_BLOCKS)


@ON_LLAMA
def test_server_that_hangs_is_overtaken_and_does_not_count_as_online(client: ConnectedClient):
    client.ready()
    client.steer("a")

    with hung(client.swarm, "a"):
        began = time.monotonic()
        history = client.generate(PROMPT)
        took_s = time.monotonic() - began
        eventually(lambda: _assert_online(client.swarm, "a", False), within_s=20)

    assert history.ids == client.locally(PROMPT)
    assert history.of(RouteChosen)[0].route[0].node == "a"
    assert [event.hop.node for event in history.of(PeerOvertaken)] == ["a"]
    assert not history.of(PeerFailed)
    assert took_s < 10
    check(history, num_blocks=NUM_BLOCKS)
    eventually(lambda: _assert_online(client.swarm, "a", True), within_s=20)


def _assert_online(swarm: LiveSwarm, node: str, online: bool) -> None:
    state = swarm.states()[NodeName(node)]
    assert (state is NodeState.ONLINE) is online, f"{node} is {state.value}"


@ON_LLAMA
def test_closing_a_session_takes_no_time_and_leaves_nothing_when_its_server_hangs(client: ConnectedClient):
    client.ready()
    client.steer("a")
    before = Footprint.now()
    session = RecoverableSession(client.opened.router, MAX_LENGTH, names=client.connection.names)
    with torch.inference_mode():
        session.step(torch.zeros(1, 1, client.swarm.site.spec.model.hidden_size))
    assert session.route[0].node == "a"
    assert Footprint.now().sockets > before.sockets, "the guard sees a stream"

    with hung(client.swarm, "a"):
        began = time.monotonic()
        session.close()
        took_s = time.monotonic() - began
        before.assert_nothing_more(within_s=5)

    assert took_s < 2
