"""What is done on the stage while the sessions of a cell are played, and whether it bit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from swarmctl.blocks import NodeName
from swarmctl.events import Event, FaultInjected, RouteChosen, StepDone
from swarmctl.matrix import Cell, Fault, Moment, Traffic, Victim
from swarmctl.operations.trials.casting import Cast
from swarmctl.operations.trials.client import TrialClient
from swarmctl.operations.trials.faults import inject, struck
from swarmctl.operations.trials.moments import Blow
from swarmctl.operations.trials.playing import Direction, Take
from swarmctl.poll import Pending, wait_until

if TYPE_CHECKING:
    from swarmctl.upstream.occupancy import Occupant

_BITES_S = 30.0
_GATHER_S = 60.0
# How long a full server stays so once it is needed: longer than the client lets it make room, so that it asks again.
_FULL_S = 3.0
# By how much a session outlives its server's limit.
_BEYOND_S = 1.0
# petals' default of what one session may have.
_SESSION_TOKENS = 2048


class Strikes(Direction):
    """The strikes of one cell; a context, at whose end all is undone that can be.

    `watch` says which sessions are played; the last one is followed, in a crowd each of them. `told`: the sessions
    tell what they notice, and gather here.
    """

    def __init__(self, client: TrialClient, cell: Cell, cast: Cast, *, told: bool = True) -> None:
        self._told = told
        self._client = client
        self._stage = client.stage
        self._cell = cell
        self._cast = cast
        self._followed: Sequence[Take] = ()
        self._routed: set[int] = set()
        self._gathering: threading.Barrier | None = None
        self._done: list[tuple[Fault, NodeName]] = []
        self._occupants: list[Occupant] = []
        self._lock = threading.Lock()
        self._leaving: threading.Timer | None = None
        self._idled = False

    def watch(self, takes: Sequence[Take]) -> None:
        """Direct these takes."""
        self._followed = takes if self._cell.traffic is Traffic.CROWD else takes[-1:]
        if self._told and len(self._followed) > 1:
            self._gathering = threading.Barrier(len(self._followed))
        for take in takes:
            take.direction = self

    def __enter__(self) -> Strikes:
        if self._cell.fault is Fault.FULL:
            self._occupy(self._cast.cover)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._gathering is not None:
            self._gathering.abort()
        if self._leaving is not None:
            self._leaving.cancel()
        self._leave()
        self._stage.restore()

    # --- what the sessions ask for --------------------------------------------------------------------------

    def heard(self, event: Event, take: Take) -> None:
        """Let the cover in when all routes are chosen; let the sessions of a crowd wait for each other."""
        place = next((at for at, one in enumerate(self._followed) if one is take), None)
        if place is None:
            return
        if isinstance(event, RouteChosen):
            with self._lock:
                self._routed.add(place)
                all_are = len(self._routed) == len(self._followed)
            if all_are:
                self._client.favour(self._cast.cover)
        leader = self._followed[-1].moments
        if isinstance(event, StepDone) and self._gathering is not None and leader and event.step == max(1, leader.due):
            # One that has failed is not waited for again.
            with suppress(threading.BrokenBarrierError):
                self._gathering.wait(_GATHER_S)

    def strike(self, blow: Blow, take: Take) -> None:
        """See `Direction`."""
        for node in blow.nodes:
            self._done.append((blow.fault, node))
            inject(self._stage, blow.fault, node)
            take.keep(FaultInjected(fault=blow.fault.value, node=node, token=blow.step, in_flight=blow.in_flight))
        if self._occupants:
            self._leaving = threading.Timer(_FULL_S, self._leave)
            self._leaving.start()
        if not blow.in_flight:
            self._settle(blow)

    def pause(self, call: int, take: Take) -> None:
        """Let time pass for a server whose own limits are the fault."""
        if self._cell.fault is not Fault.EXPIRE or take.moments is None:
            return
        clock, settings = self._stage.site.clock, self._stage.settings(self._cast.victims[0])
        if self._cell.moment is Moment.AGED:
            opened = next((event.at_s for event in take.events if isinstance(event, RouteChosen)), 0.0)
            part = call / (take.moments.calls - 1)
            ripe_s = take.began_s + opened + part * (settings.session_timeout_s + _BEYOND_S)
            clock.sleep(ripe_s - clock.monotonic())
        elif take.moments.blows and not self._idled:
            self._idled = True
            clock.sleep(settings.step_timeout_s + _BEYOND_S)

    def again(self, take: Take) -> bool:
        """Bring the first victim back, where everybody was struck."""
        if self._cell.victim is not Victim.ALL:
            return False
        first = self._cast.victims[0]
        self._stage.ready([first])
        self._client.await_known([first])
        return True

    # --- whether it bit -------------------------------------------------------------------------------------

    def missed(self) -> str | None:
        """Why the fault did not bite; None if it did, or if a session failed, which is worse.

        Whether the sessions noticed anything, the judge reads in their events.
        """
        moments = self._followed[-1].moments
        assert moments is not None
        if any(take.ids is None for take in self._followed):
            return None
        if moments.missed is not None:
            return moments.missed
        for fault, node in self._done:
            reason = struck(self._stage, fault, node)
            if reason is not None:
                return reason
        return None

    # --- on the stage ---------------------------------------------------------------------------------------

    def _settle(self, blow: Blow) -> None:
        """Between two steps a fault is to be over before the next one begins, as far as it ends at all."""
        if blow.fault is Fault.FORGET:
            self._client.await_known([], gone=blow.nodes)
            return

        def look() -> bool | Pending:
            reasons = [struck(self._stage, blow.fault, node) for node in blow.nodes]
            left = tuple(reason for reason in reasons if reason is not None)
            return Pending(reasons=left) if left else True

        clock = self._stage.site.clock
        wait_until(look, what=f"{blow.fault.value} to bite", within_s=_BITES_S, clock=clock, every_s=0.02)
        if blow.fault is Fault.RESTART:
            self._stage.ready(blow.nodes)

    def _occupy(self, nodes: Iterable[NodeName]) -> None:
        from swarmctl.upstream.occupancy import Occupant

        for node in nodes:
            settings, blocks, peer = self._stage.settings(node), self._stage.nodes[node], self._stage.peer(node)
            record = self._client.router.record_of(peer)
            announced = 0 if record is None or record.cache_room is None else record.cache_room // len(blocks)
            self._occupants.append(
                Occupant(
                    self._client.router,
                    peer,
                    node,
                    blocks,
                    hidden_size=self._stage.site.spec.model.hidden_size,
                    cache_tokens=settings.attn_cache_tokens or announced,
                    max_length=settings.inference_max_length or _SESSION_TOKENS,
                )
            )

    def _leave(self) -> None:
        with self._lock:
            occupants, self._occupants = self._occupants, []
        for occupant in occupants:
            occupant.close()
