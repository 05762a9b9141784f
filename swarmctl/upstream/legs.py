"""The open streams of a session, one a leg, and what has been learnt about their servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from hivemind.proto import runtime_pb2

from swarmctl.blocks import PeerId
from swarmctl.recovery import Leg
from swarmctl.upstream.failures import RequestFailed, TooManyTokens
from swarmctl.upstream.stream import ServerStream
from swarmctl.upstream.suspicion import Pace, ping, watched

_CLOSE_S = 2.0

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Limits of one session. Seconds end in `_s`; see `spec.ClientSpec` for what each is for."""

    connect_timeout_s: float = 3.0
    step_timeout_s: float = 15.0
    recover_timeout_s: float = 60.0
    alloc_timeout_s: float = 2.0
    replay_chunk_tokens: int = 512
    suspect_after_s: float = 1.0
    ping_timeout_s: float = 2.0


class LegStreams:
    """Streams by leg. Called from the session's thread; the streams live on hivemind's event loop."""

    def __init__(self, p2p: P2P, settings: SessionSettings) -> None:
        self._p2p = p2p
        self._settings = settings
        self._streams: dict[int, ServerStream] = {}
        self._used_at: dict[int, float] = {}
        self._chunk_tokens: dict[PeerId, int] = {}
        self._paces: dict[PeerId, Pace] = {}

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

    def send(
        self,
        leg: Leg,
        message: runtime_pb2.ExpertRequest,
        *,
        opens: bool,
        patient: bool,
        tokens: int,
        sent: Callable[[], None],
        suspected: Callable[[float], None],
    ) -> torch.Tensor:
        """The answer to one request for `tokens` positions, `[batch, tokens, hidden_size]`; `opens`: on a new stream.

        On the event loop `sent` is called when the request has left, and `suspected`, with the seconds, when its
        answer is late; what they raise is raised here.

        Raises:
            TooManyTokens: the server would take the request in smaller pieces; its stream has ended.
            RequestFailed: anything else that the server, the network or libp2p makes of it.
        """
        # A leg whose stream is gone must never get a new one here: its server's cache would begin in the middle.
        known = None if opens else self._streams[leg.id]
        trouble: list[Exception] = []

        def tell(listener: Callable[..., None], *facts: float) -> None:
            try:
                listener(*facts)
            except Exception as error:  # noqa: BLE001 - the caller's own, which no server is to be blamed for
                trouble.append(error)

        async def exchange() -> runtime_pb2.ExpertResponse:
            stream, peer = known, PeerID.from_base58(leg.peer)
            if stream is None:
                stream = await ServerStream.open(self._p2p, peer, timeout_s=self._settings.connect_timeout_s)
                self._streams[leg.id] = stream
            limit_s = self.limit_s(leg, patient=patient)
            answer = stream.exchange(message, timeout_s=limit_s, sent=lambda: tell(sent))
            return await watched(
                asyncio.ensure_future(answer),
                patience_s=pace.patience_s(tokens),
                is_there=lambda: ping(self._p2p, peer, within_s=self._settings.ping_timeout_s),
                suspected=lambda silent_s: tell(suspected, silent_s),
            )

        pace = self._paces.setdefault(
            leg.peer, Pace(floor_s=self._settings.suspect_after_s, unknown_s=self._settings.step_timeout_s / 3)
        )
        begun = time.monotonic()
        try:
            response = _result(RemoteExpertWorker.run_coroutine(_outcome(exchange), return_future=True))
            outputs = deserialize_torch_tensor(response.tensors[0])
        except TooManyTokens:
            raise
        except Exception as error:
            raise RequestFailed(error) from error
        finally:
            if trouble:
                raise trouble[0]
        self._used_at[leg.id] = time.monotonic()
        pace.note(tokens, time.monotonic() - begun)
        return outputs

    def chunk_tokens(self, peer: PeerId, *, batch: int) -> int:
        """Positions that one request to `peer` may carry; the limit counts the tokens of all sequences."""
        return self._chunk_tokens.get(peer, max(1, self._settings.replay_chunk_tokens // batch))

    def halve_chunk(self, peer: PeerId, tokens: int) -> None:
        """`peer` refused a request of `tokens` positions."""
        self._chunk_tokens[peer] = max(1, tokens // 2)

    def drop(self, leg_id: int) -> None:
        """Close a leg's stream, if it has one; waits for no peer."""
        stream = self._streams.pop(leg_id, None)
        self._used_at.pop(leg_id, None)
        if stream is not None:
            closing = RemoteExpertWorker.run_coroutine(stream.close(), return_future=True)
            with suppress(FutureTimeoutError):
                closing.result(_CLOSE_S)

    def keep_only(self, legs: Collection[Leg]) -> None:
        """Close the streams of all other legs."""
        alive = {leg.id for leg in legs}
        for leg_id in [leg_id for leg_id in list(self._streams) if leg_id not in alive]:
            self.drop(leg_id)


async def _outcome(attempt: Callable[[], Awaitable[_T]]) -> _T | Exception:
    # asyncio complains of an exception that nobody takes, as after an interrupt; of a value it does not.
    try:
        return await attempt()
    except Exception as error:  # noqa: BLE001 - raised by `_result`
        return error


def _result(future: Future[_T | Exception]) -> _T:
    """What `_outcome` came to; an interrupt of the waiting thread cancels what it waited for."""
    try:
        outcome = future.result()
    except BaseException:
        future.cancel()
        raise
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
