"""Feeds legs their part of the history, and tells what becomes of it: the hands of `swarmctl.recovery`'s `Feed`.

Several legs may be fed at once, a suspect and its hedge; what happens first to any of them is told first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from swarmctl.errors import RequestInvalid
from swarmctl.recovery import FailureKind, Fed, Feed, Happening, Late, Leg, LegFailed, SessionState
from swarmctl.upstream.failures import RequestFailed, StreamSpent, TooManyTokens, classify
from swarmctl.upstream.history import Histories
from swarmctl.upstream.hooks import Hooks
from swarmctl.upstream.legs import Answered, LegStreams, Occurrence, Overdue, Request, SessionSettings, Unanswered
from swarmctl.upstream.liveness import Forward, Liveness
from swarmctl.upstream.narrator import Narrator
from swarmctl.upstream.requests import StepRequest, encode_request
from swarmctl.upstream.router import Router


class Feeding:
    """One `Feed` being carried out. Positions before `at` are answered; `[at, until)` is under way.

    `replayed`: how many of its positions were computed before by a server that is lost, or is late. `silent_s`: its
    answer is overdue for so long, and nobody has acted on it. `forward`: how to look at its server.
    """

    def __init__(self, feed: Feed, *, committed: int, forward: Forward) -> None:
        self.feed = feed
        self.forward = forward
        self.at = feed.begin
        self.until = feed.begin
        self.begun = time.monotonic()
        self.replayed = max(0, committed - feed.begin) if feed.opens else 0
        self.silent_s: float | None = None
        self.replay_done: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a session shares with its feeder."""

    router: Router
    legs: LegStreams
    histories: Histories
    narrator: Narrator
    hooks: Hooks
    settings: SessionSettings
    max_length: int


class Feeder:
    """The legs of one session that are being fed. Called from the session's thread."""

    def __init__(self, shared: Surroundings) -> None:
        self._router = shared.router
        self._legs = shared.legs
        self._histories = shared.histories
        self._narrator = shared.narrator
        self._hooks = shared.hooks
        self._settings = shared.settings
        self._max_length = shared.max_length
        self._feedings: dict[int, Feeding] = {}

    def keep_only(self, legs: Collection[Leg], event: Happening) -> None:
        """Forget those that are not wanted any more, and what `event` says is done."""
        # Until what became of it is noted in the state, a leg counts as being fed: its cache may be ahead.
        done = event.leg if isinstance(event, Fed | LegFailed) else None
        alive = {leg.id for leg in legs} - {done}
        self._feedings = {leg_id: feeding for leg_id, feeding in self._feedings.items() if leg_id in alive}

    @property
    def in_flight(self) -> frozenset[int]:
        """The legs that are being fed: what their servers hold is not known."""
        return frozenset(self._feedings)

    def feed(self, feed: Feed, request: StepRequest, state: SessionState) -> Happening:
        """Begin to feed a leg, or go on; what happens first to any leg that is being fed.

        Raises:
            RequestInvalid: the servers would refuse the request wherever it went.
            Exception: what a hook raised.
        """
        feeding = self._feedings.get(feed.leg.id)
        if feeding is None:
            forward = self._forward_of(feed.leg, request)
            feeding = self._feedings[feed.leg.id] = Feeding(feed, committed=state.committed, forward=forward)
            if feeding.replayed:
                chunks = -(-(feed.end - feed.begin) // self._chunk_of(feed.leg, request))
                feeding.replay_done = self._narrator.replay(feed.leg, tokens=feeding.replayed, chunks=chunks)
            self._send(feeding, request)
        event = self._late(feeding, state)
        while event is None:
            event = self._happened(self._legs.next(), request, state)
        return event

    def _happened(self, what: Occurrence, request: StepRequest, state: SessionState) -> Happening | None:
        feeding = self._feedings[what.leg]
        try:
            match what:
                case Overdue():
                    feeding.silent_s = what.silent_s
                    return self._late(feeding, state)
                case Answered():
                    self._take(feeding, what.outputs, request)
                case Unanswered():
                    self._take_less(feeding, what.error, request)
            if feeding.at < feeding.feed.end:
                self._send(feeding, request)
                return None
        except RequestFailed as failed:
            return self._failed(feeding, failed.error, state)
        return self._fed(feeding, state)

    def _send(self, feeding: Feeding, request: StepRequest) -> None:
        feed, begin = feeding.feed, feeding.at
        leg, end = feed.leg, min(feeding.feed.end, begin + self._chunk_of(feed.leg, request))
        record = self._router.record_of(leg.peer)
        feeding.until = end
        about = (self._narrator.hop(leg.blocks, leg.peer), begin, feeding.replayed > 0)
        message = encode_request(
            request if begin == feed.begin else replace(request, order=None),
            uids=self._router.block_uids[leg.blocks.start : leg.blocks.end],
            blocks=leg.blocks,
            hidden=self._histories.read(leg.blocks.start, begin, end),
            begin=begin,
            opens=begin == 0,
            replay=feed.opens,
            max_length=self._max_length,
            alloc_timeout_s=self._settings.alloc_timeout_s if feed.patient else 0.0,
            wire_dtype=None if record is None else record.torch_dtype,
        )
        self._legs.begin(
            Request(
                leg=leg,
                message=message,
                tokens=end - begin,
                opens=begin == 0,
                patient=feed.patient,
                sent=lambda: self._hooks.request(*about),
                forward=feeding.forward,
            )
        )

    def _take(self, feeding: Feeding, outputs: torch.Tensor, request: StepRequest) -> None:
        leg, begin, end = feeding.feed.leg, feeding.at, feeding.until
        try:
            self._hooks.answer(self._narrator.hop(leg.blocks, leg.peer), begin, feeding.replayed > 0)
        except ConnectionError as lost:
            raise RequestFailed(lost) from lost
        wanted = [request.batch, end - begin, request.hidden]
        if list(outputs.shape) != wanted:
            raise RequestFailed(ValueError(f"asked for {wanted}, got {list(outputs.shape)}"))
        self._histories.extend(leg.blocks.end, begin, outputs)
        feeding.at = end

    def _take_less(self, feeding: Feeding, error: Exception, request: StepRequest) -> None:
        """Begin again in smaller pieces if that is what the server wants."""
        leg, tokens = feeding.feed.leg, feeding.until - feeding.at
        if not isinstance(error, TooManyTokens):
            raise RequestFailed(error) from error
        if tokens <= _least_chunk(request):
            raise RequestInvalid(
                f"{request.batch} x {tokens} positions are more than a server takes in one request",
                reasons=[str(error)],
                hints=["use a smaller batch", "raise max_batch_size in the swarm file"],
            ) from error
        self._legs.halve_chunk(leg.peer, tokens)
        if not feeding.feed.opens:
            spent = StreamSpent("the server takes smaller requests, and ended the stream over this one")
            raise RequestFailed(spent) from error
        self._legs.drop(leg.id)
        feeding.at = 0

    def _late(self, feeding: Feeding, state: SessionState) -> Happening | None:
        """A leg of the route is overdue, and no other is a suspect; one of the hedge may become one later."""
        leg = feeding.feed.leg
        if feeding.silent_s is None or state.suspect is not None:
            return None
        self._narrator.suspected(leg, feeding.silent_s)
        feeding.silent_s = None
        return Late(leg=leg.id)

    def overtaken(self, suspect: Leg, before: SessionState) -> None:
        """The hedge was complete first. Whether the suspect is well is found out when nobody waits for it."""
        hops = [(leg.peer, leg.blocks) for leg in before.hedge]
        others = [leg for leg in before.legs if leg.id != suspect.id]
        self._narrator.overtaken(suspect, position=before.committed)
        self._narrator.route_found(suspect.blocks, hops, others, took_ms=0.0)
        self._router.report_failure(suspect.peer, FailureKind.SLOW)

        def seen(life: Liveness) -> None:
            if not life.is_there:
                self._router.report_failure(suspect.peer, FailureKind.SILENT)
            elif life.busy_s < self._settings.suspect_after_s:
                self._router.report_success(suspect.peer)
            # One that has been busy with a single task for so long is left alone for a while: it may hang in it.

        self._legs.look_later(suspect.peer, self._feedings[suspect.id].forward, seen)

    def _fed(self, feeding: Feeding, state: SessionState) -> Happening:
        leg = feeding.feed.leg
        self._router.report_success(leg.peer)
        if leg.id == state.suspect:
            self._narrator.hedge_dropped(leg, state.hedge)
        if feeding.replay_done is not None:
            feeding.replay_done()
        return Fed(leg=leg.id, upto=feeding.feed.end)

    def _failed(self, feeding: Feeding, error: Exception, state: SessionState) -> Happening:
        leg, now = feeding.feed.leg, time.monotonic()
        in_flight = self._legs.is_open(leg)
        idle_s = max(0.0, self._legs.idle_s(leg) - (now - feeding.begun))
        within_s = self._legs.limit_s(leg, patient=feeding.feed.patient)
        failure = classify(error, idle_s=idle_s, within_s=within_s)
        self._legs.drop(leg.id)
        self._router.report_failure(leg.peer, failure.kind)
        self._narrator.failed(leg, failure, position=state.committed, in_flight=in_flight, begun=feeding.begun)
        if leg.id == state.suspect and state.hedge:
            others = [other for other in state.legs if other.id != leg.id]
            hops = [(other.peer, other.blocks) for other in state.hedge]
            self._narrator.route_found(leg.blocks, hops, others, took_ms=0.0)
        return LegFailed(leg=leg.id, kind=failure.kind)

    def _forward_of(self, leg: Leg, request: StepRequest) -> Forward:
        record = self._router.record_of(leg.peer)
        dtype = None if record is None else record.torch_dtype
        return Forward(uid=self._router.block_uids[leg.blocks.start], hidden_size=request.hidden, dtype=dtype)

    def _chunk_of(self, leg: Leg, request: StepRequest) -> int:
        return max(_least_chunk(request), self._legs.chunk_tokens(leg.peer, batch=request.batch))


def _least_chunk(request: StepRequest) -> int:
    # The server adds deep prompts to the first chunk, so that one must not be shorter than they are.
    return 1 if request.prompts is None else int(request.prompts.shape[2])
