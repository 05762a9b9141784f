"""The open streams of a session, one a leg, and what has been learnt about their servers.

Several legs may be waited for at once, a suspect and its hedge: `begin` sends a request, `next` waits for whatever
happens first to any of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from hivemind.proto import runtime_pb2

from swarmctl.blocks import PeerId
from swarmctl.recovery import Leg
from swarmctl.upstream.liveness import Forward, Liveness, look
from swarmctl.upstream.stream import ServerStream
from swarmctl.upstream.suspicion import Pace, watch

_CLOSE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Limits of one session. Seconds end in `_s`; see `spec.ClientSpec` for what each is for."""

    connect_timeout_s: float = 3.0
    step_timeout_s: float = 15.0
    recover_timeout_s: float = 60.0
    alloc_timeout_s: float = 2.0
    replay_chunk_tokens: int = 512
    suspect_after_s: float = 0.5
    look_timeout_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request to a leg's server, for `tokens` positions. `opens`: on a new stream.

    `patient`: the server may first wait for cache to become free. `sent` is called on the event loop when the request
    has left. `forward`: what a look at the server lets it compute if it is a stock one.
    """

    leg: Leg
    message: runtime_pb2.ExpertRequest
    tokens: int
    opens: bool
    patient: bool
    sent: Callable[[], None]
    forward: Forward


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer of a leg's server: `[batch, tokens, hidden_size]`."""

    leg: int
    outputs: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """A leg's request was not answered as it should be; `error`: what server, network or libp2p made of it."""

    leg: int
    error: Exception


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """The answer of a leg's server is late; it may still come."""

    leg: int
    silent_s: float


Occurrence = Answered | Unanswered | Overdue


@dataclass(frozen=True, kw_only=True)
class _Trouble:
    """A listener of the caller's own raised this; no server is to be blamed for it."""

    error: Exception


@dataclass(frozen=True, kw_only=True)
class _Response:
    message: runtime_pb2.ExpertResponse
    took_s: float


class LegStreams:
    """Streams by leg. Called from the session's thread; the streams live on hivemind's event loop."""

    def __init__(self, p2p: P2P, settings: SessionSettings) -> None:
        self._p2p = p2p
        self._settings = settings
        self._streams: dict[int, ServerStream] = {}
        self._used_at: dict[int, float] = {}
        self._chunk_tokens: dict[PeerId, int] = {}
        self._paces: dict[PeerId, Pace] = {}
        self._asked: dict[int, tuple[Request, Future[None]]] = {}
        self._looks: set[Future[None]] = set()
        self._happened: SimpleQueue[tuple[Request, _Response | Exception | float | _Trouble]] = SimpleQueue()

    def is_open(self, leg: Leg) -> bool:
        """True if a stream to the leg's server has been opened."""
        return leg.id in self._streams

    def idle_s(self, leg: Leg) -> float:
        """Seconds since the leg's server last answered; 0 if it never has."""
        used = self._used_at.get(leg.id)
        return 0.0 if used is None else time.monotonic() - used

    def limit_s(self, leg: Leg, *, patient: bool) -> float:
        """How long the next answer may take; `patient`: the server may first wait for cache to become free."""
        if not self.is_open(leg):
            return self._settings.connect_timeout_s
        return self._settings.step_timeout_s + (self._settings.alloc_timeout_s if patient else 0.0)

    # --- requests -------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Send a request; what becomes of it is told by `next`."""
        # A leg whose stream is gone must never get a new one here: its server's cache would begin in the middle.
        known = None if request.opens else self._streams[request.leg.id]
        running = RemoteExpertWorker.run_coroutine(self._attempt(request, known), return_future=True)
        self._asked[request.leg.id] = (request, running)

    def next(self) -> Occurrence:
        """Wait for what happens next to any request that is under way.

        Raises:
            Exception: what a `sent` of the caller's raised.
        """
        while True:
            request, what = self._happened.get()
            leg = request.leg.id
            if self._asked.get(leg, (None, None))[0] is not request:
                continue  # its leg was dropped meanwhile
            match what:
                case _Trouble():
                    raise what.error
                case float():
                    return Overdue(leg=leg, silent_s=what)
                case _Response():
                    del self._asked[leg]
                    return self._answered(request, what)
                case Exception():
                    del self._asked[leg]
                    return Unanswered(leg=leg, error=what)

    def _answered(self, request: Request, response: _Response) -> Occurrence:
        leg = request.leg
        try:
            outputs = deserialize_torch_tensor(response.message.tensors[0])
        except Exception as error:  # noqa: BLE001 - whatever a server sends that is no tensor
            return Unanswered(leg=leg.id, error=error)
        self._used_at[leg.id] = time.monotonic()
        self._pace_of(leg.peer).note(request.tokens, response.took_s)
        return Answered(leg=leg.id, outputs=outputs)

    async def _attempt(self, request: Request, stream: ServerStream | None) -> None:
        begun = time.monotonic()
        exchange = asyncio.ensure_future(self._exchange(request, stream))
        watching = asyncio.ensure_future(
            watch(
                self._pace_of(request.leg.peer).patience(request.tokens),
                is_there=lambda: self._is_there(request.leg.peer, request.forward),
                late=lambda silent_s: self._happened.put((request, silent_s)),
            )
        )
        try:
            await asyncio.wait({exchange, watching}, return_when=asyncio.FIRST_COMPLETED)
            # An answer that is there counts, whatever a look at its server came to.
            response = (exchange if exchange.done() else watching).result()
            if response is not None:
                self._happened.put((request, _Response(message=response, took_s=time.monotonic() - begun)))
        except Exception as error:  # noqa: BLE001 - judged by the session
            self._happened.put((request, error))
        finally:
            exchange.cancel()
            watching.cancel()
            exchange.add_done_callback(_take)
            watching.add_done_callback(_take)

    async def _exchange(self, request: Request, stream: ServerStream | None) -> runtime_pb2.ExpertResponse:
        leg = request.leg
        if stream is None:
            peer = PeerID.from_base58(leg.peer)
            stream = await ServerStream.open(self._p2p, peer, timeout_s=self._settings.connect_timeout_s)
            self._streams[leg.id] = stream

        def sent() -> None:
            try:
                request.sent()
            except Exception as error:  # noqa: BLE001 - raised by `next`
                self._happened.put((request, _Trouble(error=error)))

        limit_s = self.limit_s(leg, patient=request.patient)
        return await stream.exchange(request.message, timeout_s=limit_s, sent=sent)

    # --- looks ----------------------------------------------------------------------------------------------

    async def _look(self, peer: PeerId, forward: Forward, within_s: float) -> Liveness:
        return await look(self._p2p, PeerID.from_base58(peer), within_s=within_s, forward=forward)

    async def _is_there(self, peer: PeerId, forward: Forward) -> bool:
        return (await self._look(peer, forward, self._settings.look_timeout_s)).is_there

    def look_later(self, peer: PeerId, forward: Forward, seen: Callable[[Liveness], None]) -> None:
        """Look at a server in the background and tell, on the event loop, what was seen."""

        async def look_now() -> None:
            # Nobody is given up over this look, so it need not be patient; and the session may end soon.
            seen(await self._look(peer, forward, self._settings.look_timeout_s / 2))

        looking = RemoteExpertWorker.run_coroutine(look_now(), return_future=True)
        self._looks.add(looking)
        looking.add_done_callback(self._looks.discard)

    # --- what is known of servers ---------------------------------------------------------------------------

    def _pace_of(self, peer: PeerId) -> Pace:
        unknown_s = self._settings.step_timeout_s / 3
        return self._paces.setdefault(peer, Pace(floor_s=self._settings.suspect_after_s, unknown_s=unknown_s))

    def chunk_tokens(self, peer: PeerId, *, batch: int) -> int:
        """Positions that one request to `peer` may carry; the limit counts the tokens of all sequences."""
        return self._chunk_tokens.get(peer, max(1, self._settings.replay_chunk_tokens // batch))

    def halve_chunk(self, peer: PeerId, tokens: int) -> None:
        """`peer` refused a request of `tokens` positions."""
        self._chunk_tokens[peer] = max(1, tokens // 2)

    # --- the end of a stream --------------------------------------------------------------------------------

    def drop(self, leg_id: int) -> None:
        """Close a leg's stream, if it has one, and forget its request; waits for no peer."""
        _request, running = self._asked.pop(leg_id, (None, None))
        if running is not None:
            running.cancel()
        stream = self._streams.pop(leg_id, None)
        self._used_at.pop(leg_id, None)
        if stream is not None:
            closing = RemoteExpertWorker.run_coroutine(stream.close(), return_future=True)
            with suppress(FutureTimeoutError):
                closing.result(_CLOSE_S)

    def close(self) -> None:
        """Close all streams, and look at nobody any more."""
        self.keep_only(())
        for looking in tuple(self._looks):
            looking.cancel()

    def keep_only(self, legs: Collection[Leg]) -> None:
        """Close the streams of all other legs."""
        alive = {leg.id for leg in legs}
        for leg_id in [leg_id for leg_id in {*self._streams, *self._asked} if leg_id not in alive]:
            self.drop(leg_id)


def _take(task: asyncio.Future[Any]) -> None:
    # asyncio complains of an exception that nobody takes.
    if not task.cancelled():
        task.exception()
