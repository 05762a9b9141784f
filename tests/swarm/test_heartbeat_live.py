"""The heartbeat of real servers: who is silent, who is busy, who is stock, and how soon an observer knows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from support.connected import ConnectedClient
from support.eventually import eventually
from support.swarm import ON_LLAMA, LiveSwarm

from swarmctl import __version__, processes, tether
from swarmctl.blocks import NodeName
from swarmctl.snapshot import NodeFacts, NodeState
from swarmctl.store import ObservedServer, read_launch, read_observation, read_record, write_json
from swarmctl.upstream.liveness import FORWARD, Forward, LifeSign, Liveness, look

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

STOCK_SERVER = Path(__file__).with_name("stock_server.py")
LOOK_S = 2.0
# More tokens than a server computes in a second on a slow core, and not more than it takes at once.
MANY_TOKENS = 1000


def main_pid(swarm: LiveSwarm, node: str) -> int:
    record = read_record(swarm.site.layout.node(NodeName(node)))
    assert record is not None
    assert record.child_pid is not None
    return record.child_pid


def peer_id(swarm: LiveSwarm, node: str) -> PeerID:
    launch = read_launch(swarm.site.layout.node(NodeName(node)))
    assert launch is not None
    return PeerID.from_base58(launch.peer)


def facts(swarm: LiveSwarm, node: str) -> NodeFacts:
    return next(one for one in swarm.snapshot().nodes if one.name == node)


def observed(swarm: LiveSwarm, node: str) -> ObservedServer | None:
    """What the bootstrap peer has written of this node's peer, whatever its process is doing."""
    peer = peer_id(swarm, node).to_base58()
    files = (swarm.site.layout.node(boot.name) for boot in swarm.site.spec.bootstraps)
    seen = [observation for observation in map(read_observation, files) if observation is not None]
    return next((one for observation in seen for one in observation.servers if one.peer == peer), None)


def token_of(client: ConnectedClient, node: str) -> Forward:
    """A token for the first block of this node."""
    spec = client.swarm.site.spec
    uid = f"{spec.model.dht_prefix}.{spec.nodes[NodeName(node)].blocks.start}"
    return Forward(uid=uid, hidden_size=spec.model.hidden_size, dtype="float32")


def look_at(client: ConnectedClient, node: str, *, within_s: float = LOOK_S) -> Liveness:
    """A look from the client's own libp2p daemon, as its sessions take it."""
    p2p = client.opened.router.state.p2p
    looking = look(p2p, peer_id(client.swarm, node), within_s=within_s, forward=token_of(client, node))
    life = RemoteExpertWorker.run_coroutine(looking)
    assert isinstance(life, Liveness)
    return life


@contextmanager
def stopped(pid: int, send: Callable[[int, int], None] = os.kill) -> Iterator[None]:
    """This process (or its group) does nothing meanwhile."""
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


def expect(swarm: LiveSwarm, node: str, state: NodeState, *, within_s: float) -> float:
    """Wait until the observer says so; the seconds that took."""
    begun = time.monotonic()

    def seen() -> None:
        assert facts(swarm, node).state is state

    eventually(seen, within_s=within_s, every_s=0.05)
    return time.monotonic() - begun


@ON_LLAMA
def test_a_healthy_server_is_known_to_be_ours_by_client_and_observer(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready("c")

    life = look_at(client, "c")

    assert (life.sign, life.ours) == (LifeSign.ALIVE, True)
    assert life.beat is not None
    assert (life.beat.version, life.beat.graphs) == (__version__, "by-shape")
    probe = facts(swarm, "c").probe
    assert probe is not None
    assert (probe.ours, probe.graphs) == (True, "by-shape")
    assert swarm.snapshot().stock() == ()


@ON_LLAMA
def test_a_stopped_main_process_is_silent_though_everything_around_it_lives(
    swarm: LiveSwarm, client: ConnectedClient
) -> None:
    client.ready("c")
    assert look_at(client, "c").sign is LifeSign.ALIVE

    with stopped(main_pid(swarm, "c")):
        begun = time.monotonic()
        life = look_at(client, "c", within_s=1.0)
        took_s = time.monotonic() - begun
        expect(swarm, "c", NodeState.UNRESPONSIVE, within_s=10)

    assert (life.sign, life.is_there) == (LifeSign.SILENT, False)
    assert took_s < 2.0
    eventually(lambda: _assert_alive(look_at(client, "c")), within_s=10)
    expect(swarm, "c", NodeState.ONLINE, within_s=15)


def _assert_alive(life: Liveness) -> None:
    assert life.sign is LifeSign.ALIVE, life


@ON_LLAMA
def test_the_observer_knows_of_a_stopped_main_process_within_about_two_seconds(swarm: LiveSwarm) -> None:
    swarm.ready("c")
    took = []
    for _ in range(3):
        expect(swarm, "c", NodeState.ONLINE, within_s=15)
        with stopped(main_pid(swarm, "c")):
            took.append(expect(swarm, "c", NodeState.UNRESPONSIVE, within_s=10))

    # A look begins every second and has one more to be answered; the rest is for a machine that is shared.
    assert sorted(took)[1] < 3.5, took


@contextmanager
def worked_hard(client: ConnectedClient, node: str, *, requests: int) -> Iterator[None]:
    """Meanwhile this server always has so many long forwards to compute, one after the other."""
    p2p, peer, token = client.opened.router.state.p2p, peer_id(client.swarm, node), token_of(client, node)
    hidden = torch.full((1, MANY_TOKENS, token.hidden_size), 0.01)
    request = runtime_pb2.ExpertRequest(
        uid=token.uid,
        tensors=[serialize_torch_tensor(hidden), serialize_torch_tensor(torch.empty(0))],
        metadata=MSGPackSerializer.dumps({"points": 0.0, "active_adapter": ""}),
    )

    async def again_and_again() -> None:
        while True:
            await p2p.call_protobuf_handler(peer, FORWARD, request, runtime_pb2.ExpertResponse)

    async def all_at_once() -> None:
        await asyncio.gather(*(again_and_again() for _ in range(requests)))

    working: Future[Any] = RemoteExpertWorker.run_coroutine(all_at_once(), return_future=True)
    try:
        yield
        assert not working.done(), working.exception()
    finally:
        working.cancel()


@ON_LLAMA
def test_a_server_under_full_load_is_alive_to_every_look_and_stays_online(
    swarm: LiveSwarm, client: ConnectedClient
) -> None:
    client.ready("c")
    states, lives = set(), []

    with worked_hard(client, "c", requests=12):
        until = time.monotonic() + 15.0  # three times what the probe's own token may take
        while time.monotonic() < until:
            lives.append(look_at(client, "c"))
            states.add(facts(swarm, "c").state)

    assert {life.sign for life in lives} == {LifeSign.ALIVE}
    assert max(life.busy_s for life in lives) > 0
    assert states == {NodeState.ONLINE}


@ON_LLAMA
def test_the_heartbeat_outlives_the_container_that_petals_replaces(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready("c")
    before = look_at(client, "c")
    assert before.beat is not None
    pid = main_pid(swarm, "c")
    children = processes.read_processes()
    parents = {one.parent for one in children.values()}
    # The DHT's process has its daemon below it; handlers have nothing.
    handlers = [one for one in children.values() if one.parent == pid and one.pid not in parents and _is_ours(one.pid)]
    assert len(handlers) == 2, handlers

    processes.kill(tuple(handlers))
    signs = set()

    def computes_again() -> None:
        life = look_at(client, "c")
        signs.add(life.sign)
        assert life.sign is LifeSign.ALIVE
        assert LifeSign.HUNG in signs

    # petals looks at its handlers at random moments, on average every five seconds.
    eventually(computes_again, within_s=90, every_s=0.02)

    assert main_pid(swarm, "c") == pid
    expect(swarm, "c", NodeState.ONLINE, within_s=60)
    after = look_at(client, "c")
    assert after.beat is not None
    assert after.beat.done >= before.beat.done


def _is_ours(pid: int) -> bool:
    return b"swarmctl.upstream.server" in Path(f"/proc/{pid}/cmdline").read_bytes()


@ON_LLAMA
def test_a_server_that_is_stopped_announces_offline_and_ends(swarm: LiveSwarm, client: ConnectedClient) -> None:
    client.ready("c")

    os.kill(main_pid(swarm, "c"), signal.SIGTERM)

    eventually(lambda: _assert_gone(swarm, "c"), within_s=20, every_s=0.05)
    eventually(lambda: _assert_offline(observed(swarm, "c")), within_s=10)


def _assert_offline(server: ObservedServer | None) -> None:
    assert server is not None
    assert server.state == "OFFLINE"


def _assert_gone(swarm: LiveSwarm, node: str) -> None:
    left = swarm.site.survey([NodeName(node)])[NodeName(node)].node.processes
    assert not left, left


@contextmanager
def stock_server(swarm: LiveSwarm, node: str) -> Iterator[int]:
    """petals' own server in the place of this node, with its key, port and blocks; the pid of its main process."""
    assert swarm.command("down", node, "--yes", "--allow-gap").code == 0
    launch = read_launch(swarm.site.layout.node(NodeName(node)))
    assert launch is not None
    folder = Path(tempfile.mkdtemp(prefix="stock-", dir=swarm.folder))
    write_json(folder / "launch.json", replace(launch, sockets=str(folder)))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            tether.wrap([sys.executable, str(STOCK_SERVER), str(folder / "launch.json")]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield server.pid
    except BaseException:
        sys.stderr.write((folder / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@ON_LLAMA
def test_a_stock_server_is_looked_at_by_a_ping_and_a_token_and_told_from_ours(
    swarm: LiveSwarm, client: ConnectedClient
) -> None:
    client.ready()
    with stock_server(swarm, "d") as pid:

        def serves() -> None:
            life = look_at(client, "d")
            assert (life.sign, life.ours) == (LifeSign.ALIVE, False), life
            server = observed(swarm, "d")
            assert server is not None
            assert (server.state, server.probe_ok, server.ours, server.graphs) == ("ONLINE", True, False, None), server

        eventually(serves, within_s=120, every_s=0.5)

        with stopped(pid):
            computes_nothing = look_at(client, "d")
        eventually(lambda: _assert_alive(look_at(client, "d")), within_s=10)
        with stopped(pid, os.killpg):
            silent = look_at(client, "d")
        eventually(lambda: _assert_alive(look_at(client, "d")), within_s=10)

    # Its handlers and its daemon live, so it may be busy; nobody can tell.
    assert (computes_nothing.sign, computes_nothing.is_there) == (LifeSign.UNKNOWN, True)
    assert (silent.sign, silent.is_there) == (LifeSign.SILENT, False)
