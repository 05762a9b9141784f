"""Tells what a session does, as events: what was lost in the running step, who took over, how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.events import (
    Event,
    EventSink,
    HedgeDropped,
    HedgeStarted,
    Hop,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    ReplayDone,
    ReplayStarted,
    RouteChanged,
    RouteChosen,
    StepDone,
    WaitingForPeers,
)
from swarmctl.recovery import FailureKind, GiveUp, Leg
from swarmctl.upstream.failures import Failure

_SAY_WAITING_S = 5.0


def nobody(_event: Event) -> None:
    """A sink for nobody."""


class Narrator:
    """The story of one session. Times are seconds since it was made; `begin_step` forgets the last step's failures."""

    def __init__(self, sink: EventSink, names: Mapping[PeerId, NodeName]) -> None:
        self._sink = sink
        self._names = dict(names)
        self._began = time.monotonic()
        self._steps = 0
        self.begin_step()

    def begin_step(self) -> None:
        """A step begins, and nothing has failed in it yet."""
        self._step_began = time.monotonic()
        self._first_failure: float | None = None
        self._lost: list[Hop] = []
        self._failed: list[PeerId] = []
        self._replayed = 0
        self._said_waiting_at: float | None = None
        self._suspected_at: float | None = None
        self._silent_before_s = 0.0

    @property
    def is_failover(self) -> bool:
        """True if a server has failed in the running step."""
        return self._first_failure is not None

    def hop(self, blocks: BlockRange, peer: PeerId) -> Hop:
        """A span with the name of its server."""
        return Hop(blocks=blocks, peer=peer, node=self._names.get(peer))

    def label(self, peer: PeerId) -> str:
        """A peer as people know it."""
        return str(self._names.get(peer) or f"…{peer[-6:]}")

    def route_found(
        self, need: BlockRange, hops: Sequence[tuple[PeerId, BlockRange]], kept: Sequence[Leg], took_ms: float
    ) -> None:
        """`hops` will serve `need`, beside the legs that are `kept`."""
        now = tuple(self.hop(blocks, peer) for peer, blocks in hops)
        if not self.is_failover and not kept:
            self._emit(RouteChosen, route=now, took_ms=took_ms)
            return
        lost = [hop for hop in self._lost if hop.blocks.intersection(need) is not None]
        was = self.hop(need, lost[-1].peer if lost else now[0].peer)
        whole = (*(self.hop(leg.blocks, leg.peer) for leg in kept), *now)
        route = tuple(sorted(whole, key=lambda hop: hop.blocks.start))
        self._emit(RouteChanged, was=was, now=now, route=route, took_ms=took_ms)

    def suspected(self, leg: Leg, silent_s: float) -> None:
        """An answer is late."""
        self._suspected_at, self._silent_before_s = time.monotonic(), silent_s
        self._emit(PeerSuspected, hop=self.hop(leg.blocks, leg.peer), silent_ms=silent_s * 1e3)

    def hedge_started(self, suspect: Leg, hops: Sequence[tuple[PeerId, BlockRange]]) -> None:
        """`hops` are fed beside the suspect."""
        now = tuple(self.hop(blocks, peer) for peer, blocks in hops)
        self._emit(HedgeStarted, hop=self.hop(suspect.blocks, suspect.peer), now=now)

    def hedge_dropped(self, suspect: Leg, hedge: Sequence[Leg]) -> None:
        """The suspect has answered; told only if there was a hedge."""
        if hedge:
            dropped = tuple(self.hop(leg.blocks, leg.peer) for leg in hedge)
            hop = self.hop(suspect.blocks, suspect.peer)
            self._emit(HedgeDropped, hop=hop, dropped=dropped, waited_ms=self._silent_ms())

    def overtaken(self, suspect: Leg, *, position: int) -> None:
        """The hedge was complete before the suspect had answered."""
        hop = self.hop(suspect.blocks, suspect.peer)
        self._note_loss(hop, self._suspected_at or time.monotonic())
        self._failed.append(suspect.peer)
        self._emit(PeerOvertaken, hop=hop, position=position, silent_ms=self._silent_ms())

    def _silent_ms(self) -> float:
        since = 0.0 if self._suspected_at is None else time.monotonic() - self._suspected_at
        return (self._silent_before_s + since) * 1e3

    def _note_loss(self, hop: Hop, at: float) -> None:
        if self._first_failure is None:
            self._first_failure = at
        self._lost.append(hop)

    def failed(self, leg: Leg, failure: Failure, *, position: int, in_flight: bool, begun: float) -> None:
        """A leg is given up; `begun`: the monotonic moment at which its feeding began."""
        now, hop = time.monotonic(), self.hop(leg.blocks, leg.peer)
        self._note_loss(hop, now)
        if failure.kind is not FailureKind.EXPIRED:
            self._failed.append(leg.peer)
        self._emit(
            PeerFailed,
            hop=hop,
            kind=failure.kind.value,
            reason=failure.reason,
            position=position,
            in_flight=in_flight,
            detect_ms=(now - begun) * 1e3,
        )

    def replay(self, leg: Leg, *, tokens: int, chunks: int) -> Callable[[], None]:
        """A fresh leg is being fed its history; call the result when that is done."""
        hop, begun = self.hop(leg.blocks, leg.peer), time.monotonic()
        self._emit(ReplayStarted, hop=hop, tokens=tokens, chunks=chunks)

        def done() -> None:
            if self.is_failover or self._suspected_at is not None:
                self._replayed += tokens
            self._emit(ReplayDone, hop=hop, tokens=tokens, took_ms=(time.monotonic() - begun) * 1e3)

        return done

    def waiting(self, need: BlockRange, remaining_s: float) -> None:
        """Nobody serves `need`; told at once and then now and again."""
        now = time.monotonic()
        if self._said_waiting_at is None or now - self._said_waiting_at >= _SAY_WAITING_S:
            self._said_waiting_at = now
            self._emit(WaitingForPeers, blocks=need, remaining_s=remaining_s)

    def gave_up(self, verdict: GiveUp, *, position: int, waited_s: float) -> None:
        """The step ends without an answer."""
        self._emit(RecoveryGivenUp, blocks=verdict.need, position=position, tried=verdict.tried, waited_s=waited_s)

    def committed(self, *, position: int, tokens: int, batch: int) -> None:
        """The step is done on all legs."""
        now = time.monotonic()
        took_ms = (now - self._step_began) * 1e3
        self._steps += 1
        if self._first_failure is not None:
            self._emit(
                RecoveryDone,
                position=position,
                failed=tuple(dict.fromkeys(self._failed)),
                replayed_tokens=self._replayed,
                pause_ms=(now - self._first_failure) * 1e3,
                step_ms=took_ms,
            )
        self._emit(StepDone, step=self._steps, position=position, tokens=tokens, batch=batch, took_ms=took_ms)

    def _emit(self, fact: type[Event], /, **values: object) -> None:
        self._sink(fact(at_s=time.monotonic() - self._began, **values))
