"""Tells a server that is slow from one that is gone without a word: paused, unplugged, cut off.

A connection that ends is known at once; one that falls silent is not, for libp2p waits 40 s and a request's own limit
is long, because a long prefill is. So an answer that is late makes its server *suspected*, and a suspect is pinged:
by libp2p to the server's DHT process, which answers in milliseconds whatever its card is busy with. Only who answers
neither is given up; a server that is merely slow costs a ping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError
from hivemind.proto import dht_pb2

from swarmctl.upstream.failures import Silent

_PING = "DHTProtocol.rpc_ping"
# How much slower than lately a server may be before it is looked at.
_TIMES_SLOWER = 3.0

_T = TypeVar("_T")


class Pace:
    """How long one server's answers took lately. The caller says when: it knows no clock."""

    def __init__(self, *, floor_s: float, unknown_s: float) -> None:
        self._floor_s = floor_s
        self._unknown_s = unknown_s
        self._took: dict[int, float] = {}

    def patience_s(self, tokens: int) -> float:
        """How long an answer for so many tokens may take before its server is suspected.

        A number of tokens that is larger than any so far gets `unknown_s`: nobody knows how long it should take.
        """
        known = [took for count, took in self._took.items() if count >= tokens]
        return max(self._floor_s, _TIMES_SLOWER * min(known) if known else self._unknown_s)

    def note(self, tokens: int, took_s: float) -> None:
        """An answer for so many tokens took so long; the last two weigh as much as all before."""
        before = self._took.get(tokens, took_s)
        self._took[tokens] = before + (took_s - before) / 3


async def ping(p2p: P2P, peer: PeerID, *, within_s: float) -> bool:
    """True if the peer's DHT process, or at least its libp2p daemon, answers in time; it takes about a millisecond."""
    call = p2p.call_protobuf_handler(peer, _PING, dht_pb2.PingRequest(), dht_pb2.PingResponse)
    try:
        await asyncio.wait_for(call, within_s)
    except P2PHandlerError:
        return True  # it answered, if only to say no: a server behind a relay has no DHT handlers
    except Exception:  # noqa: BLE001 - whatever keeps a ping from being answered, it was not
        return False
    return True


async def watched(
    answer: asyncio.Future[_T],
    *,
    patience_s: float,
    is_there: Callable[[], Awaitable[bool]],
    suspected: Callable[[float], None],
) -> _T:
    """The answer, or `Silent` when it is late and its server is not there; `suspected(seconds)` is told once.

    `answer` is cancelled with this call.

    Raises:
        Silent: neither the answer nor a ping came.
    """
    loop = asyncio.get_running_loop()
    begun, told = loop.time(), False
    try:
        while True:
            await asyncio.wait({answer}, timeout=patience_s)
            if answer.done():
                return answer.result()
            if not told:
                told = True
                suspected(loop.time() - begun)
            looking: asyncio.Future[bool] = asyncio.ensure_future(is_there())
            both: set[asyncio.Future[Any]] = {answer, looking}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                looking.cancel()
                return answer.result()
            if not looking.result():
                raise Silent(f"no answer for {loop.time() - begun:.1f} s, nor to a ping")
    finally:
        answer.cancel()
