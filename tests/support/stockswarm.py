"""petals' own client, unchanged, over the servers of `fakeswarm`: its session, its router and hivemind's streams.

Only what libp2p and the DHT's process would do is stood in for, so whatever goes wrong here goes wrong in petals.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.tensor_descr import BatchTensorDescriptor
from petals.client.config import ClientConfig
from petals.client.inference_session import InferenceSession, _ServerInferenceSession
from petals.client.routing import RemoteSequenceManager
from petals.client.routing.sequence_manager import SequenceManagerState
from support.fakedht import FakeDht
from support.fakeswarm import HIDDEN, PREFIX, FakeServer, _Stream, peer_id, servers_of
from support.sessions import Reference
from torch.utils._python_dispatch import TorchDispatchMode

from swarmctl.blocks import PeerId

# petals retries without end and waits for three minutes; nothing here takes long, but the machine may be busy.
QUICK: dict[str, Any] = {"request_timeout": 20, "connect_timeout": 20, "max_retries": 3, "min_backoff": 0.0}


class OneLineMended(InferenceSession):
    """petals' session with the assertion out of the way and nothing else: a new server stands where the old one stood.

    What is wrong behind the assertion shows only so.
    """

    def _update_sequence(self, *arguments: Any) -> None:
        super()._update_sequence(*arguments)
        for one in self._server_sessions:
            if one.history is not None and not one.stepped:
                one._position = self._position


class JoinedBytes(TorchDispatchMode):
    """Counts the bytes that joining tensors writes in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if "cat" in str(function):
            self.written += made.numel() * made.element_size()
        return made


class _Streams(P2P):
    """hivemind's libp2p client, whose streams and calls end at fake servers."""

    def __init__(self, servers: dict[PeerId, FakeServer], compressions: dict[str, int]) -> None:
        super().__init__()
        self._servers = servers
        self._compressions = compressions
        self.asked_for_info: list[str] = []

    def __del__(self) -> None:
        """hivemind's would end its daemon here."""

    async def call_binary_stream_handler(
        self, peer_id: PeerID, handler_name: str
    ) -> tuple[None, asyncio.StreamReader, _Stream]:
        return self._servers[PeerId(peer_id.to_base58())].accept()

    async def call_protobuf_handler(self, peer_id: PeerID, name: str, input: Any, output_protobuf_type: Any) -> Any:
        assert name.endswith("rpc_info")
        server = self._servers[PeerId(peer_id.to_base58())]
        self.asked_for_info.append(server.name)
        compression = self._compressions.get(server.name, runtime_pb2.NONE)
        floats = BatchTensorDescriptor(HIDDEN, dtype=torch.float64, compression=compression)
        schema = (floats, floats, BatchTensorDescriptor((), dtype=torch.int64))
        return runtime_pb2.ExpertInfo(serialized_info=MSGPackSerializer.dumps({"inference_schema": (schema, {})}))


class StockBench:
    """petals' session over the servers of `texts` (see `servers_of`); the first ones are the fastest, and all are near.

    `compressions`: in what form each server says that it wants tensors. `session`: the class of the session.
    """

    def __init__(
        self,
        *texts: str,
        num_blocks: int = 6,
        max_length: int = 64,
        session: type[InferenceSession] = InferenceSession,
        compressions: dict[str, int] | None = None,
        **config: Any,
    ) -> None:
        # Its destructor waits for the event loop, also when the garbage is collected by the event loop's own thread,
        # which then waits for itself; for the rest of this process nobody's does.
        _ServerInferenceSession.__del__ = _do_nothing
        self.servers = {server.name: server for server in servers_of(*texts)}
        self.dht = FakeDht()
        for server in self.servers.values():
            self.dht.announce(server.name, str(server.blocks), expires=1e12, inference_rps=server.rps)
        self.p2p = _Streams({peer_id(name): server for name, server in self.servers.items()}, compressions or {})
        settings = {"initial_peers": (), "dht_prefix": PREFIX, "update_period": 3600, "show_route": False}
        uids = tuple(f"{PREFIX}.{block}" for block in range(num_blocks))
        self.config = ClientConfig(**{**settings, **QUICK, **config})
        self.manager = RemoteSequenceManager(self.config, uids, dht=self.dht, state=SequenceManagerState(p2p=self.p2p))
        assert not self.manager._thread.is_alive()
        self.manager._thread.trigger = self.refresh = _Trigger()
        self.session = session(self.manager, max_length)
        self.reference = Reference(num_blocks)

    def __getitem__(self, name: str) -> FakeServer:
        return self.servers[name]

    def inputs(self, tokens: int = 1, batch: int = 1) -> torch.Tensor:
        """See `Reference`."""
        return self.reference.inputs(tokens, batch)

    def step(
        self,
        tokens: int = 1,
        *,
        batch: int = 1,
        prompts: torch.Tensor | None = None,
        order: Sequence[int] | None = None,
    ) -> bool:
        """A step; True if its answer is right."""
        inputs = self.inputs(tokens, batch)
        hypo_ids = None if order is None else torch.tensor(order)
        expected = self.reference.step(inputs, prompts, hypo_ids)
        with torch.inference_mode():
            return torch.equal(self.session.step(inputs, prompts, hypo_ids), expected)

    def gone(self, name: str) -> None:
        """A server is killed, and its record is gone too: petals reads the DHT again."""
        self.servers[name].kill()
        self.dht.forget(name)
        self.manager.update(wait=True)

    def seen(self, name: str) -> list[str]:
        """What a server was sent: `0+5` is five tokens into an empty cache."""
        return [f"{request.begin}+{request.tokens}" for request in self.servers[name].received]

    def route(self) -> list[str]:
        """`a=0:2` for each span that the session holds."""
        names = {peer_id(name): name for name in self.servers}
        spans = (one.span for one in self.session._server_sessions)
        return [f"{names[PeerId(span.peer_id.to_base58())]}={span.start}:{span.end}" for span in spans]

    def banned(self) -> set[str]:
        """Whom petals has banned."""
        names = {peer_id(name): name for name in self.servers}
        return {name for peer, name in names.items() if PeerID.from_base58(peer) in self.manager.state.banned_peers}

    def close(self) -> None:
        """End everything without asking petals, which would wait for its servers: here, or in a destructor later."""
        for server in self.servers.values():
            server.kill()
        for one in gc.get_objects():
            if type(one) is _ServerInferenceSession:
                one._outputs_stream = None
        self.session._closed = True
        self.manager.shutdown()
        RemoteExpertWorker.run_coroutine(_cancel_writers())


class _Trigger(threading.Event):
    """What wakes petals' refresh thread; `idle` while the thread waits for it, and nobody has triggered it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = False

    @property
    def idle(self) -> bool:
        return self._waiting and not self.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting = True
        try:
            return super().wait(timeout)
        finally:
            self._waiting = False


@contextmanager
def stock_benches() -> Iterator[Callable[..., StockBench]]:
    """Makes clients of petals', whose complaints are not shown; all of them are ended with the block."""
    made: list[StockBench] = []

    def make(*texts: str, **options: Any) -> StockBench:
        made.append(StockBench(*texts, **options))
        return made[-1]

    logging.disable(logging.CRITICAL)
    try:
        yield make
    finally:
        for bench in made:
            bench.close()
        logging.disable(logging.NOTSET)


def _do_nothing(_session: _ServerInferenceSession) -> None:
    return


async def _cancel_writers() -> None:
    """End hivemind's tasks that wait for a next request."""
    writers = [task for task in asyncio.all_tasks() if "_iterate_protobuf_stream_handler" in repr(task.get_coro())]
    for task in writers:
        task.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
