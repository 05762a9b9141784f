"""Is a server there, and does it compute? Asked of the process that computes, wherever that one can answer.

Servers that swarmctl starts answer a heartbeat (`upstream.heartbeat`): one round trip, whatever they are busy with.
Stock servers say at once that they know no such thing. They are asked for two things side by side: a ping, which
their DHT process answers, and a one-token forward through their first block, which needs everything that serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import torch
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError
from hivemind.proto import dht_pb2, runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer

from swarmctl.upstream.heartbeat import HANDLER, Beat, decode_beat

PING = "DHTProtocol.rpc_ping"
FORWARD = "TransformerConnectionHandler.rpc_forward"
# libp2p, when the peer has no handler of this name; go-multistream has both forms
_UNSUPPORTED = ("protocols not supported", "protocol not supported")
_REASON_LENGTH = 200

_T = TypeVar("_T")


class LifeSign(str, Enum):
    """What a look found.

    ALIVE: the process that computes answered, by a heartbeat or with a computed token. HUNG: somebody answered, and
    nothing computes there. UNKNOWN: a stock server's daemon answered and its forward did not come in time, or came
    with an error, or was not asked for: it may be busy or stuck. SILENT: nobody answered.
    """

    ALIVE = "alive"
    HUNG = "hung"
    UNKNOWN = "unknown"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """One look at one server. `beat` is None for a stock server and for a silent one; `reason` is for people."""

    sign: LifeSign
    took_s: float
    beat: Beat | None = None
    reason: str | None = None

    @property
    def is_there(self) -> bool:
        """False when waiting for this server is of no use."""
        return self.sign not in (LifeSign.SILENT, LifeSign.HUNG)

    @property
    def busy_s(self) -> float:
        """For how long it has been computing one task; 0 if it is idle, or does not say."""
        return 0.0 if self.beat is None else self.beat.busy_s

    @property
    def ours(self) -> bool | None:
        """Does it answer our heartbeat? None if it did not answer at all."""
        return None if self.sign is LifeSign.SILENT else self.beat is not None


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What a one-token forward needs. `uid`: the server's first block. `dtype`: torch's name, as its record says."""

    uid: str
    hidden_size: int
    dtype: str | None = None


class NoHeartbeat(Exception):
    """A peer answers, and knows no heartbeat of ours."""


async def look(p2p: P2P, peer: PeerID, *, within_s: float, forward: Forward | None = None) -> Liveness:
    """Whether `peer` is there, known within `within_s` seconds at the latest, and as a rule in milliseconds.

    `forward` is used for stock servers only; without it one of them that answers a ping is UNKNOWN.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        beat = await _within(within_s, _ask_twice(p2p, peer))
    except NoHeartbeat:
        left_s = max(0.0, begun + within_s - loop.time())
        sign, reason = await _look_at_stock(p2p, peer, left_s, within_s, forward)
        return Liveness(sign=sign, took_s=loop.time() - begun, reason=reason)
    except Exception as error:  # noqa: BLE001 - whatever keeps a heartbeat from coming, it did not come
        return Liveness(sign=LifeSign.SILENT, took_s=loop.time() - begun, reason=reason_of(error, within_s))
    took_s = loop.time() - begun
    if not beat.computes:
        return Liveness(sign=LifeSign.HUNG, took_s=took_s, beat=beat, reason="its runtime has ended")
    return Liveness(sign=LifeSign.ALIVE, took_s=took_s, beat=beat)


async def _ask_twice(p2p: P2P, peer: PeerID) -> Beat:
    try:
        return await ask_beat(p2p, peer)
    except NoHeartbeat:
        raise
    except Exception:  # noqa: BLE001 - the second answer counts
        # A connection that breaks under the question says little of the server; a dead one refuses the next at once.
        return await ask_beat(p2p, peer)


async def ask_beat(p2p: P2P, peer: PeerID) -> Beat:
    """The peer's own word. Waits as long as the connection does: give it a limit.

    Raises:
        NoHeartbeat: it is a stock server, or none at all.
        P2PDaemonError: it cannot be reached.
    """
    try:
        request = runtime_pb2.ExpertRequest()
        answer = await p2p.call_protobuf_handler(peer, HANDLER, request, runtime_pb2.ExpertResponse)
        return decode_beat(answer.metadata)
    except (P2PHandlerError, ValueError) as error:  # it answered, though not as a server of ours does
        raise NoHeartbeat(str(error)) from error
    except Exception as error:
        if _is_unsupported(error):
            raise NoHeartbeat(str(error)) from error
        raise


async def ping(p2p: P2P, peer: PeerID, *, within_s: float) -> bool:
    """True if the peer's DHT process, or at least its libp2p daemon, answers in time; it takes about a millisecond."""
    try:
        await _within(within_s, p2p.call_protobuf_handler(peer, PING, dht_pb2.PingRequest(), dht_pb2.PingResponse))
    except P2PHandlerError:
        return True  # it answered, if only to say no
    except Exception as error:  # noqa: BLE001 - whatever keeps a ping from being answered, it was not
        return _is_unsupported(error)  # a server behind a relay has no DHT handlers, and its daemon says so
    return True


async def forward_one_token(p2p: P2P, peer: PeerID, forward: Forward) -> None:
    """Let the peer compute one token through its first block. Waits as long as the connection does.

    Raises:
        ValueError: the answer is not what a block makes of a token.
        P2PHandlerError, P2PDaemonError: it could not, or could not be reached.
    """
    # The name comes from a record that anybody can write.
    dtype = getattr(torch, forward.dtype or "float32", None)
    fits = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    hidden = torch.full((1, 1, forward.hidden_size), 0.01, dtype=dtype if fits else torch.float32)
    request = runtime_pb2.ExpertRequest(
        uid=forward.uid,
        tensors=[serialize_torch_tensor(hidden), serialize_torch_tensor(torch.empty(0))],
        metadata=MSGPackSerializer.dumps({"points": 0.0, "active_adapter": ""}),
    )
    response = await p2p.call_protobuf_handler(peer, FORWARD, request, runtime_pb2.ExpertResponse)
    if not response.tensors:
        raise ValueError("answered without a tensor")
    output = deserialize_torch_tensor(response.tensors[0])
    if output.shape != hidden.shape:
        raise ValueError(f"answered with the shape {list(output.shape)} for {list(hidden.shape)}")
    if not torch.isfinite(output).all():
        raise ValueError("answered with values that are not finite")


def reason_of(error: Exception, within_s: float) -> str:
    """Why a look found nothing, in one line for people."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return f"no answer within {within_s:g} s"
    return " ".join(str(error).split())[:_REASON_LENGTH] or type(error).__name__


async def _look_at_stock(
    p2p: P2P, peer: PeerID, left_s: float, within_s: float, forward: Forward | None
) -> tuple[LifeSign, str | None]:
    if forward is None:
        if await ping(p2p, peer, within_s=left_s):
            return LifeSign.UNKNOWN, None
        return LifeSign.SILENT, f"no ping within {within_s:g} s"
    pinging = asyncio.ensure_future(ping(p2p, peer, within_s=left_s))
    computing = asyncio.ensure_future(_within(left_s, forward_one_token(p2p, peer, forward)))
    computing.add_done_callback(_take)
    try:
        await asyncio.wait({pinging, computing}, return_when=asyncio.FIRST_COMPLETED)
        if not computing.done() and not await pinging:
            return LifeSign.SILENT, f"no ping within {within_s:g} s"
        await computing
    except Exception as error:  # noqa: BLE001 - whatever a server answers, it is a finding
        return await _judge(error, pinging, within_s)
    else:
        return LifeSign.ALIVE, None
    finally:
        pinging.cancel()
        computing.cancel()


async def _judge(error: Exception, pinging: asyncio.Future[bool], within_s: float) -> tuple[LifeSign, str]:
    """What a forward that failed means, beside the ping that was sent with it."""
    if _is_unsupported(error):
        return LifeSign.HUNG, "it serves no blocks"
    reason = reason_of(error, within_s)
    return (LifeSign.UNKNOWN if await pinging else LifeSign.SILENT), reason


def _is_unsupported(error: Exception) -> bool:
    return any(needle in str(error) for needle in _UNSUPPORTED)


async def _within(limit_s: float, asking: Coroutine[Any, Any, _T]) -> _T:
    """The answer, or TimeoutError.

    A loop that was held up finds its timer before the answer that has lain there: the time by which the timer was
    late is given to the answer too.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + limit_s
    answer = asyncio.ensure_future(asking)
    answer.add_done_callback(_take)
    try:
        await asyncio.wait({answer}, timeout=limit_s)
        if not answer.done():
            await asyncio.wait({answer}, timeout=min(limit_s, loop.time() - due))
        if not answer.done():
            raise asyncio.TimeoutError
        return answer.result()
    finally:
        answer.cancel()


def _take(task: asyncio.Future[Any]) -> None:
    # asyncio complains of an exception that nobody takes, as when a look is given up the moment it fails.
    if not task.cancelled():
        task.exception()
