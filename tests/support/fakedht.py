"""A DHT without a process: what servers announce is set by the test, and readings and pings can be held back."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from hivemind.dht import DHT
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import ValueWithExpiration
from petals.data_structures import ServerInfo, ServerState
from support.fakeswarm import PREFIX, peer_id

_HELD_AT_MOST_S = 20.0


class FakeDht(DHT):
    """hivemind's DHT as far as a router uses it. `readings` and `pinged` count what it was asked for.

    `hold_readings` and `hold_pings` have one event for each reading (each round of pings) to come: the reading is
    made, and is answered when the event is set. `error`: what readings fail with.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], tuple[Any, float]] = {}
        self.readings = 0
        self.hold_readings: deque[threading.Event] = deque()
        self.hold_pings: deque[threading.Event] = deque()
        self.pinged: list[list[str]] = []
        self.deaf: set[str] = set()
        self.error: Exception | None = None
        self.alive = True
        self.num_workers: int | None = None
        self.protocol = SimpleNamespace(node_info=dht_pb2.NodeInfo(), get_stub=self._stub)
        self._names: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max_workers=4)

    def is_alive(self) -> bool:
        return self.alive

    def __del__(self) -> None:
        """hivemind's would end its process here."""

    def run_coroutine(
        self, coro: Callable[[Any, Any], Awaitable[Any]], return_future: bool = False
    ) -> Any | Future[Any]:
        future = self._pool.submit(lambda: asyncio.run(self._run(coro)))
        return future if return_future else future.result()

    async def _run(self, coro: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        # petals' pings come with the peers as their argument, our readings with the keys.
        peers = getattr(coro, "args", ())
        if not peers:
            return await coro(self, self)
        self.pinged.append(sorted(self._names[peer.to_base58()] for peer in peers[0]))
        found = await coro(self, self)
        _wait(self.hold_pings)
        return found

    async def get_many(
        self, keys: Sequence[str], sufficient_expiration_time: float, num_workers: int
    ) -> Mapping[str, Any]:
        self.readings += 1
        found: dict[str, Any] = {key: {} for key in keys}
        for (key, peer), (value, expires) in self.stored.items():
            if key in found:
                found[key][peer] = ValueWithExpiration(value, expires)
        error = self.error
        _wait(self.hold_readings)
        if error is not None:
            raise error
        return {key: ValueWithExpiration(peers, 1e12) for key, peers in found.items() if peers}

    def _stub(self, peer: PeerID) -> Any:
        async def rpc_ping(_request: Any, timeout: float) -> None:
            if self._names[peer.to_base58()] in self.deaf:
                raise TimeoutError(f"no answer within {timeout} s")

        return SimpleNamespace(rpc_ping=rpc_ping)

    def announce(
        self, name: str, blocks: str, *, expires: float, state: ServerState = ServerState.ONLINE, **extras: Any
    ) -> None:
        """A server says that it serves `blocks`; what it said of other blocks before stays until it expires."""
        start, end = map(int, blocks.split(":"))
        self._names[peer_id(name)] = name
        info = ServerInfo(state=state, throughput=10.0, start_block=start, end_block=end, **extras)
        for block in range(start, end):
            self.stored[f"{PREFIX}.{block}", peer_id(name)] = (info.to_tuple(), expires)

    def forget(self, name: str) -> None:
        """Everything that a server said has expired."""
        self.stored = {key: said for key, said in self.stored.items() if key[1] != peer_id(name)}


def _wait(held: deque[threading.Event]) -> None:
    if held:
        assert held.popleft().wait(_HELD_AT_MOST_S), "the test never let it go on"
