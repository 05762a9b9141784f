"""The heartbeat on libp2p's real daemon: answered from its own thread, and nothing is left of it afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmctl.upstream.compat import import_hivemind

import_hivemind()

from hivemind.p2p import P2P  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError  # noqa: E402

from swarmctl.upstream.heartbeat import Beat, answering  # noqa: E402
from swarmctl.upstream.liveness import LifeSign, Liveness, NoHeartbeat, ask_beat, look  # noqa: E402

pytestmark = pytest.mark.process

BEAT = Beat(computes=True, busy_s=0.0, done=3, version="0.1.0", graphs="eager")


class Dht:
    """The part of a hivemind DHT that the heartbeat uses; hivemind's own answers from another process."""

    def __init__(self, address: Any) -> None:
        self._node = SimpleNamespace(p2p=SimpleNamespace(daemon_listen_maddr=address))

    def run_coroutine(self, coro: Callable[..., Any]) -> Any:
        """What the coroutine returns."""
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(asyncio.run(coro(self, self._node))))
        thread.start()
        thread.join()
        return done[0]


@asynccontextmanager
async def two_peers() -> AsyncIterator[tuple[P2P, P2P]]:
    """A server's daemon, and a client that is connected to it."""
    server = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    client = await P2P.create(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=list(map(str, await server.get_visible_maddrs()))
    )
    try:
        yield server, client
    finally:
        await client.shutdown()
        await server.shutdown()


def left() -> tuple[int, list[str]]:
    """Open files, and the heartbeat's threads."""
    threads = [thread.name for thread in threading.enumerate() if thread.name == "heartbeat"]
    return len(list(Path("/proc/self/fd").iterdir())), threads


def test_a_heartbeat_is_answered_meanwhile_and_leaves_no_thread_no_file_and_no_handler() -> None:
    asked_on: set[str] = set()

    def beat() -> Beat:
        asked_on.add(threading.current_thread().name)
        return BEAT

    async def main() -> list[Liveness]:
        async with two_peers() as (server, client):
            dht, lives = Dht(server.daemon_listen_maddr), []
            before = left()
            for _ in range(2):  # again on the same daemon
                with answering(dht, beat):
                    lives.append(await look(client, server.peer_id, within_s=20.0))
                # libp2p remembers what a peer supports, and then it is the peer that ends the stream.
                with pytest.raises((NoHeartbeat, P2PDaemonError), match=r"not supported|stream reset"):
                    await asyncio.wait_for(ask_beat(client, server.peer_id), 20.0)
                assert left() == before
            return lives

    lives = asyncio.run(main())

    assert [(life.sign, life.beat) for life in lives] == [(LifeSign.ALIVE, BEAT)] * 2
    assert asked_on == {"heartbeat"}


def test_a_beat_that_cannot_be_told_is_an_answer_nevertheless() -> None:
    def beat() -> Beat:
        raise LookupError("no container")

    async def main() -> None:
        async with two_peers() as (server, client):
            with answering(Dht(server.daemon_listen_maddr), beat), pytest.raises(NoHeartbeat, match="no container"):
                await asyncio.wait_for(ask_beat(client, server.peer_id), 20.0)

    asyncio.run(main())


def test_the_heartbeat_ends_with_an_error_in_its_scope_too() -> None:
    async def main() -> None:
        async with two_peers() as (server, _client):
            before = left()
            with pytest.raises(KeyboardInterrupt), answering(Dht(server.daemon_listen_maddr), lambda: BEAT):
                raise KeyboardInterrupt
            assert left() == before

    asyncio.run(main())


def test_without_a_daemon_there_is_an_error_and_no_thread(tmp_path: Path) -> None:
    from hivemind.utils.multiaddr import Multiaddr

    dht = Dht(Multiaddr(f"/unix{tmp_path}/gone.sock"))
    before = left()

    with pytest.raises(RuntimeError, match="no heartbeat can be given"), answering(dht, lambda: BEAT):
        raise AssertionError("the scope must not be entered")

    assert left() == before
