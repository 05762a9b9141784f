"""The session that recovers: performs what `swarmctl.recovery` decides, with tensors, streams and time.

A subclass of petals' `InferenceSession`, given to its model through `generate(session=…)`; of the base class only the
place in the type tree and what `generate` keeps on it (`output_ids`, `past_key_values`) are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from petals.client.inference_session import InferenceSession
from petals.utils.misc import is_dummy

from swarmctl import recovery
from swarmctl.blocks import NodeName, PeerId
from swarmctl.errors import RequestInvalid
from swarmctl.events import EventSink, Hop
from swarmctl.recovery import Leg
from swarmctl.routing import NoRoute
from swarmctl.upstream.failures import RequestFailed, StreamSpent, TooManyTokens, classify, gave_up
from swarmctl.upstream.history import History, Mark
from swarmctl.upstream.hooks import Hooks
from swarmctl.upstream.legs import LegStreams, SessionSettings
from swarmctl.upstream.narrator import Narrator, nobody
from swarmctl.upstream.requests import SessionShape, StepRequest, check_step, encode_request
from swarmctl.upstream.router import Router

# How often a session without a route looks at the DHT again; a read of a private swarm takes a few milliseconds.
_LOOK_AGAIN_S = 0.5
_FIRST_ROUTE_FRESH_S = 1.0


class RecoverableSession(InferenceSession):
    """One inference session over all blocks. Not for several threads at once.

    A step is committed on all servers or on none: after any exception the session is at the position where it was,
    and the next step rebuilds what ran ahead.
    """

    def __init__(
        self,
        sequence_manager: Router,
        max_length: int,
        *,
        settings: SessionSettings | None = None,
        sink: EventSink = nobody,
        names: Mapping[PeerId, NodeName] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(sequence_manager, max_length)
        self._closed: bool = False
        self._router = sequence_manager
        self._settings = settings or SessionSettings()
        self._narrator = Narrator(sink, names or {})
        self._hooks = hooks or Hooks()
        self._state = recovery.SessionState(num_blocks=len(sequence_manager))
        self._histories: dict[int, History] = {0: History()}
        self._legs = LegStreams(sequence_manager.state.p2p, self._settings)
        self._shape: tuple[int, int] | None = None  # batch, hidden size
        self._deep_prompts: torch.Tensor | None = None
        self._feeding: int | None = None
        self._waiting_since: float | None = None

    # --- what petals' model uses ----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Positions committed on every server."""
        return self._state.committed

    @position.setter
    def position(self, position: int) -> None:
        self._state = recovery.rolled_back(self._state, position)
        for history in self._histories.values():
            history.truncate(position)
        self._legs.keep_only(self._state.legs)

    @property
    def route(self) -> tuple[Hop, ...]:
        """The spans in use, in block order."""
        return tuple(self._narrator.hop(leg.blocks, leg.peer) for leg in self._state.legs)

    def step(
        self, inputs: torch.Tensor, prompts: torch.Tensor | None = None, hypo_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states after the last block for `inputs: [batch, tokens, hidden_size]`, same shape, dtype, device.

        `prompts: [num_blocks, batch or 1, prefix, hidden_size]` are deep prompts, only with the first step.
        `hypo_ids: [batch], int64`: sequence i continues what sequence `hypo_ids[i]` was (beam search).

        Raises:
            RequestInvalid: the session is too short, or the tensors do not fit the first step's; it stays usable.
            RecoveryFailed: no server could take a span over in time; the session stays at its position.
        """
        if self._closed:
            raise RequestInvalid("the session is closed")
        start = self.position
        check_step(self._checked_shape(), inputs, prompts, hypo_ids)
        order = None if hypo_ids is None or is_dummy(hypo_ids) else hypo_ids.cpu()
        if start == 0:
            self._deep_prompts = None if prompts is None or is_dummy(prompts) else prompts.detach().cpu()
            self._shape = (inputs.shape[0], inputs.shape[2])
        tokens = inputs.shape[1]
        before = {at: held.mark() for at, held in self._histories.items()}
        try:
            self._remember(inputs, order)
            self._perform(StepRequest(order=order, prompts=self._deep_prompts), tokens=tokens)
            outputs = self._histories[len(self._router)].read(start, start + tokens)
            self._finish(tokens=tokens)
            self._hooks.output(outputs)
            return outputs.to(device=inputs.device, dtype=inputs.dtype)
        except BaseException:
            self._abort(start, before)
            raise

    def close(self, *_exc_details: object) -> None:
        """Close every stream, waiting for no peer; may be called twice."""
        if not self._closed:
            self._closed = True
            self._state = recovery.SessionState(num_blocks=self._state.num_blocks)
            self._legs.keep_only(self._state.legs)
            self._histories.clear()

    def __del__(self) -> None:
        # Closing needs the event loop's thread, which a garbage collection may be running in; servers end an
        # abandoned stream when the process ends or its step timeout passes. Use the session as a context manager.
        return

    # --- a step ---------------------------------------------------------------------------------------------

    def _checked_shape(self) -> SessionShape:
        return SessionShape(
            num_blocks=len(self._router),
            max_length=self._max_length,
            position=self.position,
            inputs=self._shape if self.position else None,
        )

    def _remember(self, inputs: torch.Tensor, order: torch.Tensor | None) -> None:
        for history in self._histories.values():
            if order is not None:
                history.reorder(order)
        # A copy: the caller may use its buffer again.
        self._histories[0].extend(self.position, inputs.detach().to("cpu", copy=True))
        self._histories[len(self._router)] = History(base=self.position)

    def _perform(self, request: StepRequest, *, tokens: int) -> None:
        self._waiting_since = None
        self._narrator.begin_step()
        instruction = self._advance(recovery.StepRequested(tokens=tokens))
        while True:
            match instruction:
                case recovery.FindRoute():
                    instruction = self._advance(self._find(instruction))
                case recovery.Feed():
                    # Until its answer is noted in the state, the leg's cache may be ahead of it.
                    self._feeding = instruction.leg.id
                    instruction = self._advance(self._feed(instruction, request))
                    self._feeding = None
                case recovery.Wait():
                    instruction = self._advance(self._wait(instruction))
                case recovery.GiveUp():
                    self._give_up(instruction)
                case recovery.Commit() | recovery.Idle():
                    return

    def _advance(self, event: recovery.Happening) -> recovery.Instruction:
        self._state, instruction = recovery.advance(self._state, event)
        return instruction

    def _finish(self, *, tokens: int) -> None:
        # Boundaries that no leg begins at any more would stop growing; a later leg there starts from the beginning.
        self._histories = {at: held for at, held in self._histories.items() if at in self._state.boundaries or at == 0}
        self._narrator.committed(position=self.position, tokens=tokens, batch=self._batch)

    def _abort(self, start: int, before: Mapping[int, Mark]) -> None:
        """Back to where the step began. Boundaries that it made are forgotten: their sequences are in a new order."""
        self._advance(recovery.StepAborted(in_flight=self._feeding))
        self._state = recovery.rolled_back(self._state, start)
        self._feeding = None
        self._histories = {at: held for at, held in self._histories.items() if at in before}
        for at, history in self._histories.items():
            history.restore(before[at])
        self._legs.keep_only(self._state.legs)

    def _find(self, wanted: recovery.FindRoute) -> recovery.Happening:
        begun = time.monotonic()
        tokens = self._batch * self._max_length
        # A first route is for the whole session, so it is worth a look; a failover must not wait for one.
        fresh_s = math.inf if self._state.legs or self._narrator.is_failover else _FIRST_ROUTE_FRESH_S
        found = self._router.route(
            wanted.need, avoid=wanted.avoid, cache_tokens=tokens, lift_bans=not wanted.waited, fresh_s=fresh_s
        )
        if isinstance(found, NoRoute):
            return recovery.RouteMissing(missing=found.missing)
        took_ms = (time.monotonic() - begun) * 1e3
        self._narrator.route_found(wanted.need, found.hops, self._state.legs, took_ms)
        return recovery.RouteFound(hops=found.hops)

    def _wait(self, wait: recovery.Wait) -> recovery.Happening:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        remaining = self._waiting_since + self._settings.recover_timeout_s - now
        if remaining <= 0:
            return recovery.DeadlinePassed(need=wait.need)
        self._narrator.waiting(wait.need, remaining)
        self._router.refresh(timeout_s=min(remaining, _LOOK_AGAIN_S * 4))
        time.sleep(max(0.0, min(remaining, _LOOK_AGAIN_S - (time.monotonic() - now))))
        return recovery.WaitOver()

    def _give_up(self, verdict: recovery.GiveUp) -> None:
        waited = 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since
        self._narrator.gave_up(verdict, position=self.position, waited_s=waited)
        tried = dict.fromkeys(f"{self._narrator.label(peer)}: {kind.value}" for peer, kind in self._state.failures[-6:])
        limit_s = self._settings.recover_timeout_s
        raise gave_up(verdict, position=self.position, waited_s=waited, limit_s=limit_s, tried=tuple(tried))

    # --- one leg --------------------------------------------------------------------------------------------

    def _feed(self, feed: recovery.Feed, request: StepRequest) -> recovery.Happening:
        leg = feed.leg
        replayed = max(0, self.position - feed.begin) if feed.opens else 0
        begun, replay_done = time.monotonic(), None
        if replayed:
            chunks = -(-(feed.end - feed.begin) // self._chunk_of(leg))
            replay_done = self._narrator.replay(leg, tokens=replayed, chunks=chunks)
        try:
            self._send_all(feed, request)
        except RequestFailed as failed:
            return self._failed(feed, failed.error, begun)
        self._router.report_success(leg.peer)
        if replay_done is not None:
            replay_done()
        return recovery.Fed(leg=leg.id, upto=feed.end)

    def _send_all(self, feed: recovery.Feed, request: StepRequest) -> None:
        begin = feed.begin
        while begin < feed.end:
            end = min(feed.end, begin + self._chunk_of(feed.leg))
            try:
                outputs = self._send(feed, request, begin, end)
            except TooManyTokens as error:
                if end - begin <= self._least_chunk:
                    raise RequestInvalid(
                        f"{self._batch} x {end - begin} positions are more than a server takes in one request",
                        reasons=[str(error)],
                        hints=["use a smaller batch", "raise max_batch_size in the swarm file"],
                    ) from error
                self._legs.halve_chunk(feed.leg.peer, end - begin)
                if not feed.opens:
                    spent = StreamSpent("the server takes smaller requests, and ended the stream over this one")
                    raise RequestFailed(spent) from error
                self._legs.drop(feed.leg.id)
                begin = 0
                continue
            self._histories.setdefault(feed.leg.blocks.end, History()).extend(begin, outputs)
            begin = end

    def _send(self, feed: recovery.Feed, request: StepRequest, begin: int, end: int) -> torch.Tensor:
        leg = feed.leg
        record = self._router.record_of(leg.peer)
        hidden = self._histories[leg.blocks.start].read(begin, end)
        message = encode_request(
            request if begin == feed.begin else replace(request, order=None),
            uids=self._router.block_uids[leg.blocks.start : leg.blocks.end],
            blocks=leg.blocks,
            hidden=hidden,
            begin=begin,
            opens=begin == 0,
            replay=feed.opens,
            max_length=self._max_length,
            alloc_timeout_s=self._settings.alloc_timeout_s if feed.patient else 0.0,
            wire_dtype=None if record is None else record.torch_dtype,
        )

        about = (self._narrator.hop(leg.blocks, leg.peer), begin, feed.opens and self.position > 0)
        outputs = self._legs.send(
            leg,
            message,
            opens=begin == 0,
            patient=feed.patient,
            tokens=end - begin,
            sent=lambda: self._hooks.request(*about),
            suspected=lambda silent_s: self._narrator.suspected(leg, silent_s),
        )
        try:
            self._hooks.answer(*about)
        except ConnectionError as lost:
            raise RequestFailed(lost) from lost
        if outputs.shape != hidden.shape:
            raise RequestFailed(ValueError(f"asked for {list(hidden.shape)}, got {list(outputs.shape)}"))
        return outputs

    def _failed(self, feed: recovery.Feed, error: Exception, begun: float) -> recovery.Happening:
        leg, now = feed.leg, time.monotonic()
        in_flight = self._legs.is_open(leg)
        idle_s = max(0.0, self._legs.idle_s(leg) - (now - begun))
        failure = classify(error, idle_s=idle_s, within_s=self._legs.limit_s(leg, patient=feed.patient))
        self._legs.drop(leg.id)
        self._router.report_failure(leg.peer, failure.kind)
        self._narrator.failed(leg, failure, position=self.position, in_flight=in_flight, begun=begun)
        return recovery.LegFailed(leg=leg.id, kind=failure.kind)

    def _chunk_of(self, leg: Leg) -> int:
        return max(self._least_chunk, self._legs.chunk_tokens(leg.peer, batch=self._batch))

    @property
    def _least_chunk(self) -> int:
        # The server adds deep prompts to the first chunk, so that one must not be shorter than they are.
        return 1 if self._deep_prompts is None else self._deep_prompts.shape[2]

    @property
    def _batch(self) -> int:
        return 1 if self._shape is None else self._shape[0]
