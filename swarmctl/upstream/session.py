"""The session that recovers: performs what `swarmctl.recovery` decides, with tensors, streams and time.

A subclass of petals' `InferenceSession`, given to its model through `generate(session=…)`; of the base class only the
place in the type tree and what `generate` keeps on it (`output_ids`, `past_key_values`) are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from petals.client.inference_session import InferenceSession
from petals.utils.misc import is_dummy

from swarmctl import recovery
from swarmctl.blocks import NodeName, PeerId
from swarmctl.errors import RequestInvalid
from swarmctl.events import EventSink, Hop
from swarmctl.routing import NoRoute
from swarmctl.upstream.failures import gave_up
from swarmctl.upstream.feeder import Feeder, Surroundings
from swarmctl.upstream.history import Histories, Mark
from swarmctl.upstream.hooks import Hooks
from swarmctl.upstream.legs import LegStreams, SessionSettings
from swarmctl.upstream.narrator import Narrator, nobody
from swarmctl.upstream.requests import SessionShape, StepRequest, check_step
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
        self._histories = Histories(len(sequence_manager))
        self._legs = LegStreams(sequence_manager.state.p2p, self._settings)
        self._shape: tuple[int, int] | None = None  # batch, hidden size
        self._deep_prompts: torch.Tensor | None = None
        self._feeder = Feeder(
            Surroundings(
                router=sequence_manager,
                legs=self._legs,
                histories=self._histories,
                narrator=self._narrator,
                hooks=self._hooks,
                settings=self._settings,
                max_length=max_length,
            )
        )
        self._waiting_since: float | None = None

    # --- what petals' model uses ----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Positions committed on every server."""
        return self._state.committed

    @position.setter
    def position(self, position: int) -> None:
        self._state = recovery.rolled_back(self._state, position)
        self._histories.truncate(position)
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
        before = self._histories.marks()
        request = StepRequest(order=order, prompts=self._deep_prompts, batch=inputs.shape[0], hidden=inputs.shape[2])
        try:
            self._histories.begin_step(start, inputs, order)
            self._perform(request, tokens=tokens)
            outputs = self._histories.outputs(start, start + tokens)
            self._finish(tokens=tokens, batch=inputs.shape[0])
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
            self._legs.close()
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

    def _perform(self, request: StepRequest, *, tokens: int) -> None:
        self._waiting_since = None
        self._narrator.begin_step()
        instruction = self._advance(recovery.StepRequested(tokens=tokens))
        while True:
            match instruction:
                case recovery.FindRoute():
                    instruction = self._advance(self._find(instruction, request))
                case recovery.Feed():
                    instruction = self._advance(self._feeder.feed(instruction, request, self._state))
                case recovery.Wait():
                    instruction = self._advance(self._wait(instruction))
                case recovery.GiveUp():
                    self._give_up(instruction)
                case recovery.Commit() | recovery.Idle():
                    return

    def _advance(self, event: recovery.Happening) -> recovery.Instruction:
        before = self._state
        self._state, instruction = recovery.advance(before, event)
        suspect = before.leg(before.suspect)
        if suspect is not None and isinstance(event, recovery.Fed) and self._state.leg(suspect.id) is None:
            self._feeder.overtaken(suspect, before)
        self._legs.keep_only(self._state.open_legs)
        self._feeder.keep_only(self._state.open_legs, event)
        return instruction

    def _finish(self, *, tokens: int, batch: int) -> None:
        self._histories.end_step(self._state.boundaries)
        self._narrator.committed(position=self.position, tokens=tokens, batch=batch)

    def _abort(self, start: int, before: Mapping[int, Mark]) -> None:
        """Back to where the step began."""
        self._advance(recovery.StepAborted(in_flight=self._feeder.in_flight))
        self._state = recovery.rolled_back(self._state, start)
        self._histories.restore(before)
        self._legs.keep_only(self._state.open_legs)

    def _find(self, wanted: recovery.FindRoute, request: StepRequest) -> recovery.Happening:
        begun = time.monotonic()
        tokens = request.batch * self._max_length
        # A first route is for the whole session, so it is worth a look; a failover must not wait for one.
        fresh_s = math.inf if self._state.legs or self._narrator.is_failover else _FIRST_ROUTE_FRESH_S
        found = self._router.route(
            wanted.need, avoid=wanted.avoid, cache_tokens=tokens, lift_bans=not wanted.waited, fresh_s=fresh_s
        )
        if isinstance(found, NoRoute):
            return recovery.RouteMissing(missing=found.missing)
        took_ms = (time.monotonic() - begun) * 1e3
        suspect = self._state.leg(self._state.suspect)
        if suspect is not None:
            self._narrator.hedge_started(suspect, found.hops)
        else:
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
