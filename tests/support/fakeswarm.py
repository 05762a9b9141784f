"""Block servers in this process, behind the raw streams that libp2p hands out: what a session talks to.

They read real requests and write real answers. A block's output depends on every input that its cache holds and on
where it stands there, in whole numbers, so that a cache with a wrong prefix shows as a wrong answer and nothing
needs a tolerance. Blocks work one by one: how they are spread over servers makes no difference.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import runtime_pb2
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.serializer import MSGPackSerializer
from petals.data_structures import CHAIN_DELIMITER
from petals.utils.packaging import unpack_args_kwargs

from swarmctl.blocks import BlockRange, PeerId, parse_range
from swarmctl.recovery import FailureKind
from swarmctl.routing import BanList, NoRoute, Offer, Route, choose_route, choose_with_bans
from swarmctl.upstream.heartbeat import HANDLER, Beat, encode_beat

HIDDEN = 2
PREFIX = "model"
# Sums of a few hundred products of such numbers are exact in float64.
_PRIME = 65521

DIAL_ERROR = """Connect failed. msg=failed to dial {peer}:
  * [/ip4/127.0.0.1/tcp/31400] dial tcp4 127.0.0.1:31400: connect: connection refused
  * [/ip4/192.0.2.7/tcp/31400] dial tcp4 0.0.0.0:31400->192.0.2.7:31400: i/o timeout"""


def peer_id(name: str) -> PeerId:
    """A peer id that is one, the same for the same name."""
    return PeerId(PeerID(b"\x12\x20" + hashlib.sha256(name.encode()).digest()).to_base58())


def block_outputs(block: int, inputs: torch.Tensor) -> torch.Tensor:
    """All outputs of a block for all its inputs `[batch, tokens, HIDDEN]`."""
    places = torch.arange(1, inputs.shape[1] + 1, dtype=inputs.dtype).reshape(1, -1, 1)
    return (3 * inputs + (block + 5) * places + (places * inputs).cumsum(dim=1)) % _PRIME


class Die(Exception):
    """The server is killed: every stream of it ends, nobody can dial it."""


class End(Exception):
    """The server is well, and ends this stream."""


class Hang(Exception):
    """The server takes the request and never answers."""


class Late(Exception):
    """The server answers rightly, `args[0]` seconds later."""


class Pause(Exception):
    """The whole server stops, its connections open: it answers neither this request nor a ping."""


class Distort(Exception):
    """The server answers with something else; `args[0]` makes it from the right answer."""


Fault = Exception | type[Exception] | None


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request as a server saw it. `stream` counts its streams; `begin`: what its cache held before."""

    stream: int
    blocks: BlockRange
    begin: int
    tokens: int
    order: tuple[int, ...] | None
    prompts: bool
    metadata: dict[str, object]


@dataclass
class FakeServer:
    """One peer. `faults` has one entry for each request to come, None to answer it; any other error is its answer."""

    name: str
    blocks: BlockRange
    rps: float = 100.0
    max_batch_size: int = 10_000
    max_length: int = 1_000
    faults: deque[Fault] = field(default_factory=deque)
    received: list[Received] = field(default_factory=list)
    alive: bool = True
    paused: bool = False
    busy_s: float = 0.0
    dials: int = 0
    pings: int = 0
    open_streams: list[_Stream] = field(default_factory=list)

    def will(self, *faults: Fault) -> None:
        """What happens to the next requests."""
        self.faults.extend(faults)

    def kill(self) -> None:
        """Die at once."""
        self.alive = False
        for stream in list(self.open_streams):
            stream.end()

    def accept(self) -> tuple[None, asyncio.StreamReader, _Stream]:
        """A new stream."""
        self.dials += 1
        if not self.alive:
            raise ControlFailure(DIAL_ERROR.format(peer=peer_id(self.name)))
        stream = _Stream(self, self.dials)
        return None, stream.reader, stream


class _Stream:
    """The client's writer, and the server's end of the stream with its attention cache."""

    def __init__(self, server: FakeServer, number: int) -> None:
        self.server = server
        self.number = number
        self.reader = asyncio.StreamReader()
        self.caches: dict[int, torch.Tensor] = {}
        self.ended = False
        self.max_length = 0
        self._sent = bytearray()
        server.open_streams.append(self)

    def is_closing(self) -> bool:
        return self.ended

    def write(self, data: bytes | memoryview) -> None:
        self._sent += data

    async def drain(self) -> None:
        if self.ended:
            raise ConnectionResetError("Connection lost")
        self._take_requests()

    def close(self) -> None:
        self._take_requests()
        self.end()

    def end(self) -> None:
        """The server ends the stream and frees its cache."""
        if not self.ended:
            self.ended = True
            self.caches.clear()
            self.server.open_streams.remove(self)
            # Called from the test's thread too; a reader belongs to its loop.
            self.reader._loop.call_soon_threadsafe(self.reader.feed_eof)  # type: ignore[attr-defined]

    def _take_requests(self) -> None:
        head = 1 + P2P.HEADER_LEN
        while len(self._sent) >= head and not self.ended:
            end = head + int.from_bytes(self._sent[1:head], P2P.BYTEORDER)
            request = runtime_pb2.ExpertRequest.FromString(bytes(self._sent[head:end]))
            del self._sent[:end]
            if request.tensors:
                self._serve(request)
            else:
                self.end()

    def _serve(self, request: runtime_pb2.ExpertRequest) -> None:
        fault = self.server.faults.popleft() if self.server.faults else None
        try:
            if fault is not None and not _is(fault, Distort) and not _is(fault, Late):
                raise fault
            outputs = self._answer(request)
            if isinstance(fault, Distort):
                outputs = fault.args[0](outputs)
            tensors = [] if outputs is None else [serialize_torch_tensor(outputs.contiguous())]
            response = runtime_pb2.ExpertResponse(tensors=tensors)
            if isinstance(fault, Late):
                asyncio.get_running_loop().call_later(fault.args[0], self._send, P2P.MESSAGE_MARKER, response)
            else:
                self._send(P2P.MESSAGE_MARKER, response)
        except Hang:
            return
        except Pause:
            self.server.paused = True
        except End:
            self.end()
        except Die:
            self.server.kill()
        except Exception as error:  # noqa: BLE001 - a handler's exception is its answer
            self._send(P2P.ERROR_MARKER, RPCError(message=str(error)))
            self.end()

    def _send(self, marker: bytes, message: object) -> None:
        if self.ended and marker == P2P.MESSAGE_MARKER:
            return  # the answer came too late for this stream
        payload = message.SerializeToString()  # type: ignore[attr-defined]
        self.reader.feed_data(marker + len(payload).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + payload)

    def _answer(self, request: runtime_pb2.ExpertRequest) -> torch.Tensor:
        metadata = MSGPackSerializer.loads(request.metadata)
        tensors = [deserialize_torch_tensor(tensor) for tensor in request.tensors]
        (hidden, prompts, order), _ = unpack_args_kwargs(tensors, metadata["args_structure"])
        blocks = [int(uid.removeprefix(f"{PREFIX}.")) for uid in request.uid.split(CHAIN_DELIMITER)]
        begin = self.caches[blocks[0]].shape[1] if self.caches else 0
        self._note(metadata, hidden, prompts, order, blocks, begin)
        for block in blocks:
            if block not in self.server.blocks:
                raise RuntimeError(f"Remote peer does not serve {PREFIX}.{block}")
        self._check(metadata, hidden, begin)
        for place, block in enumerate(blocks):
            if prompts.numel():
                prefix = prompts.shape[2]
                hidden = torch.cat([(hidden[:, :prefix] + prompts[place]) % _PRIME, hidden[:, prefix:]], dim=1)
            cache = self.caches.get(block)
            if cache is not None:
                cache = cache[order] if order.numel() else cache
            whole = hidden if cache is None else torch.cat([cache, hidden], dim=1)
            self.caches[block] = whole
            hidden = block_outputs(block, whole)[:, begin:]
        return hidden

    def _note(
        self,
        metadata: dict[str, object],
        hidden: torch.Tensor,
        prompts: torch.Tensor,
        order: torch.Tensor,
        blocks: Sequence[int],
        begin: int,
    ) -> None:
        self.server.received.append(
            Received(
                stream=self.number,
                blocks=BlockRange(blocks[0], blocks[-1] + 1),
                begin=begin,
                tokens=hidden.shape[1],
                order=tuple(order.tolist()) if order.numel() else None,
                prompts=prompts.numel() > 0,
                metadata=metadata,
            )
        )

    def _check(self, metadata: dict[str, object], hidden: torch.Tensor, begin: int) -> None:
        """The checks of petals' handler, in its words."""
        batch, tokens, _ = hidden.shape
        if not self.caches:
            self.max_length = int(metadata["max_length"])  # type: ignore[call-overload]
            if self.max_length > self.server.max_length:
                raise ValueError(
                    f"Cannot allocate KV cache for {self.max_length} tokens, max = {self.server.max_length}"
                )
        if begin + tokens > self.max_length:
            raise ValueError(
                f"Maximum length exceeded: prefix {begin} + current {tokens}"
                f" exceeds pre-allocated maximum {self.max_length}"
            )
        if batch * tokens > self.server.max_batch_size:
            raise ValueError(
                f"Task size greater than max_batch_size ({self.server.max_batch_size}), it can't be processed"
            )


class FakeRouter:
    """The part of a router that a session uses. Its table knows nothing of deaths: records outlive their servers.

    `on_refresh` is called when the DHT is read again, for example to let a server return.
    """

    def __init__(self, servers: Sequence[FakeServer], num_blocks: int) -> None:
        self.servers = {peer_id(server.name): server for server in servers}
        self.block_uids = tuple(f"{PREFIX}.{block}" for block in range(num_blocks))
        self.state = SimpleNamespace(p2p=self)
        self.bans = BanList()
        self.failures: list[tuple[str, FailureKind]] = []
        self.on_refresh: Callable[[], None] = lambda: None
        self.dtype: str | None = None

    def __len__(self) -> int:
        return len(self.block_uids)

    async def call_binary_stream_handler(self, peer: PeerID, _name: str) -> tuple[None, asyncio.StreamReader, _Stream]:
        """The one method of libp2p's client that a session's streams use."""
        return self.servers[PeerId(peer.to_base58())].accept()

    async def call_protobuf_handler(
        self, peer: PeerID, name: str, _message: object, _answer: type
    ) -> runtime_pb2.ExpertResponse:
        """A heartbeat: who is paused answers nothing."""
        assert name == HANDLER
        server = self.servers[PeerId(peer.to_base58())]
        server.pings += 1
        if not server.alive:
            raise ControlFailure(DIAL_ERROR.format(peer=peer_id(server.name)))
        if server.paused:
            await asyncio.Event().wait()
        beat = Beat(computes=True, busy_s=server.busy_s, done=len(server.received), version="0", graphs="eager")
        return runtime_pb2.ExpertResponse(metadata=encode_beat(beat))

    def route(
        self,
        need: BlockRange,
        *,
        avoid: frozenset[PeerId],
        cache_tokens: int,
        lift_bans: bool = True,
        fresh_s: float = math.inf,
    ) -> Route | NoRoute:
        assert fresh_s > 0
        offers = [
            Offer(peer=peer, blocks=server.blocks, inference_rps=server.rps) for peer, server in self.servers.items()
        ]
        now = time.monotonic()
        if lift_bans:
            return choose_with_bans(offers, need, bans=self.bans, now=now, tried=avoid, cache_tokens=cache_tokens)
        return choose_route(offers, need, avoid=avoid | self.bans.banned(now, slow=False), cache_tokens=cache_tokens)

    def record_of(self, _peer: PeerId) -> SimpleNamespace:
        return SimpleNamespace(torch_dtype=self.dtype)

    def refresh(self, *, timeout_s: float) -> bool:
        assert timeout_s > 0
        self.on_refresh()
        return True

    def report_failure(self, peer: PeerId, kind: FailureKind) -> None:
        self.failures.append((self.servers[peer].name, kind))
        self.bans.record_failure(peer, time.monotonic(), kind.value)

    def report_success(self, peer: PeerId) -> None:
        self.bans.record_success(peer)


def servers_of(*texts: str) -> list[FakeServer]:
    """`a=0:4` is server a for blocks 0:4; the first ones are the fastest, so they are preferred."""
    pairs = (text.split("=") for text in texts)
    return [
        FakeServer(name=name, blocks=parse_range(blocks), rps=1000.0 / 2**place)
        for place, (name, blocks) in enumerate(pairs)
    ]


def _is(fault: Fault, kind: type[Exception]) -> bool:
    return isinstance(fault, kind) or fault is kind
