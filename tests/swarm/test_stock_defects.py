"""What a real petals server does with requests that our client never sends; see the contract tests of this name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from support.connected import ConnectedClient
from support.eventually import eventually
from support.swarm import ON_LLAMA

from swarmctl.blocks import NodeName, PeerId
from swarmctl.upstream.failures import ServerError
from swarmctl.upstream.requests import StepRequest, encode_request
from swarmctl.upstream.stream import ServerStream

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

LIMIT_S = 20.0
NODE = NodeName("a")
_PUSH = "TransformerConnectionHandler.rpc_push"


def run(coroutine: Any) -> Any:
    return RemoteExpertWorker.run_coroutine(coroutine)


class Raw:
    """Streams to one server, and requests as nobody checks them."""

    def __init__(self, client: ConnectedClient) -> None:
        peers: dict[NodeName, PeerId] = {name: peer for peer, name in client.connection.names.items()}
        self.p2p: P2P = client.opened.router.state.p2p
        self._peer = PeerID.from_base58(peers[NODE])
        self._blocks = client.swarm.site.spec.nodes[NODE].blocks
        self._uids = list(client.opened.router.block_uids)[self._blocks.start : self._blocks.end]
        self._hidden: int = client.swarm.site.spec.model.hidden_size

    async def open(self) -> ServerStream:
        return await ServerStream.open(self.p2p, self._peer, timeout_s=LIMIT_S)

    def request(self, position: int, *, tokens: int = 1, batch: int = 1, **more: Any) -> runtime_pb2.ExpertRequest:
        message = encode_request(
            StepRequest(batch=batch, hidden=self._hidden, order=None, prompts=None),
            uids=self._uids,
            blocks=self._blocks,
            hidden=torch.zeros(batch, tokens, self._hidden),
            begin=position,
            opens=position == 0,
            replay=False,
            max_length=64,
            alloc_timeout_s=0.0,
            wire_dtype=None,
        )
        metadata = MSGPackSerializer.loads(message.metadata)
        message.metadata = MSGPackSerializer.dumps({**metadata, **more})
        return message


@contextmanager
def taking_pushes(p2p: P2P) -> Iterator[list[str]]:
    """Be a server that others push to: the session ids that they push for."""
    pushed: list[str] = []

    async def rpc_push(request: runtime_pb2.ExpertRequest, _context: object) -> runtime_pb2.ExpertResponse:
        pushed.append(MSGPackSerializer.loads(request.metadata)["session_id"])
        return runtime_pb2.ExpertResponse()

    run(p2p.add_protobuf_handler(_PUSH, rpc_push, runtime_pb2.ExpertRequest))
    try:
        yield pushed
    finally:
        run(p2p.remove_protobuf_handler(_PUSH))


@ON_LLAMA
def test_server_pushes_to_whom_the_first_request_names_for_ever_and_to_nobody_else(client: ConnectedClient):
    client.ready(NODE)
    raw = Raw(client)

    def name(step: int) -> list[tuple[str, str, int, int]]:
        return [(raw.p2p.peer_id.to_base58(), f"named in step {step}", 3, 6)]

    async def steps(naming: Sequence[int]) -> None:
        stream = await raw.open()
        for step in range(3):
            more = {"next_servers": name(step)} if step in naming else {}
            await stream.exchange(raw.request(step, **more), timeout_s=LIMIT_S)
        await stream.close()

    with taking_pushes(raw.p2p) as pushed:
        # petals' client names the next server from the second request on.
        run(steps(naming=(1, 2)))
        run(steps(naming=(0, 1, 2)))
        eventually(lambda: _assert(len(pushed) >= 3), within_s=LIMIT_S)

    assert pushed == ["named in step 0"] * 3


@ON_LLAMA
@pytest.mark.parametrize("batch", [1, 3])
def test_server_answers_another_batch_size_with_an_error_of_torch(client: ConnectedClient, batch: int):
    client.ready(NODE)
    raw = Raw(client)

    async def steps() -> None:
        stream = await raw.open()
        try:
            await stream.exchange(raw.request(0, batch=2), timeout_s=LIMIT_S)
            await stream.exchange(raw.request(1, batch=batch), timeout_s=LIMIT_S)
        finally:
            await stream.close()

    with pytest.raises(ServerError, match="is invalid for input of size"):
        run(steps())


@ON_LLAMA
def test_server_computes_for_clients_that_are_gone_and_says_so_with_a_number(client: ConnectedClient):
    client.ready(NODE)
    raw = Raw(client)
    transport = client.swarm.site.transport(next(iter(client.swarm.site.spec.hosts)))

    async def come_and_go(after_s: float) -> None:
        streams = [await raw.open() for _ in range(12)]
        answers = [asyncio.ensure_future(s.exchange(raw.request(0, tokens=60), timeout_s=LIMIT_S)) for s in streams]
        await asyncio.sleep(after_s)
        for answer in answers:
            answer.cancel()
        for stream in streams:
            await stream.close()

    def look() -> None:
        run(come_and_go(next(delays)))
        lines = transport.read_log(NODE, tail=400).lines
        assert any(line.startswith("KeyError: ") for line in lines)

    # Too early, and nothing was asked for; too late, and all is done.
    delays = iter([0.03, 0.05, 0.08, 0.12, 0.2, 0.3] * 10)
    eventually(look, within_s=60, every_s=1.0)

    async def goes_on() -> None:
        stream = await raw.open()
        await stream.exchange(raw.request(0), timeout_s=LIMIT_S)
        await stream.close()

    run(goes_on())


def _assert(condition: bool) -> None:
    assert condition
