"""When to strike, and whom: follows the events and requests of one run. Pure: it knows no clock, and strikes nobody.

    opening blow     the cast's victims, at the cell's moment        (REPLAY: a kill, so that there is a replay)
    second blow      whoever took over, for Victim.HEIR and Moment.REPLAY

Steps are counted by `StepDone`: the step that runs is the one after the last that was done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import assert_never

from swarmctl.blocks import NodeName
from swarmctl.events import Event, HedgeStarted, Hop, RouteChanged, StepDone
from swarmctl.matrix import Cell, Fault, Moment, Victim
from swarmctl.operations.trials.casting import Cast


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What to do now: `fault` to each of `nodes`. `step`: steps done before it; `in_flight`: a request is under way."""

    fault: Fault
    nodes: tuple[NodeName, ...]
    step: int
    in_flight: bool


@dataclass
class Moments:
    """The blows of one run of `steps` steps; each method returns the blow that is due, once, or None.

    `left`: a request has left for `hop`. `answered`: its answer has come, and is lost if there is a blow (Fault.LATE).
    `note`: an event of the session. `paused`: between two `generate` calls of a session, `call` of which are done.
    """

    cell: Cell
    cast: Cast
    steps: int
    calls: int = 1
    done: int = 0
    blows: list[Blow] = field(default_factory=list)
    _heirs: set[NodeName] = field(default_factory=set)

    def left(self, hop: Hop, position: int, replay: bool) -> Blow | None:
        """See the class."""
        return None if self._strikes_late else self._by_request(hop, position, replay)

    def answered(self, hop: Hop, position: int, replay: bool) -> Blow | None:
        """See the class."""
        return self._by_request(hop, position, replay) if self._strikes_late else None

    def note(self, event: Event) -> Blow | None:
        """See the class."""
        match event:
            case RouteChanged() | HedgeStarted():
                if self.blows:
                    self._heirs |= {hop.node for hop in event.now if hop.node is not None}
            case StepDone():
                self.done += 1
                return self._after_step()
        return None

    def paused(self, call: int) -> Blow | None:
        """See the class."""
        match self.cell.moment:
            case Moment.IDLE:
                due = -(-self.calls // 2)
            case Moment.AGED:
                due = self.calls - 1
            case _:
                return None
        return self._open(in_flight=False) if not self.blows and call >= due else None

    @property
    def due(self) -> int:
        """How many steps are done before the moment; a fault that waits for a request falls in the next one."""
        match self.cell.moment:
            case Moment.PREFILL | Moment.CHUNK:
                return 0
            case Moment.LAST:
                return self.steps - 1
            case Moment.MID_STEP | Moment.BETWEEN | Moment.REPLAY | Moment.IDLE | Moment.AGED:
                return self.steps // 2
            case _:
                assert_never(self.cell.moment)

    @property
    def missed(self) -> str | None:
        """Why not every blow fell, or None if all did."""
        if not self.blows:
            whom = " and ".join(self.cast.victims)
            return f"the moment {self.cell.moment.value} never came for {whom} in {self.done} of {self.steps} steps"
        if len(self.blows) < self._wanted:
            heirs = ", ".join(sorted(self._heirs)) or "nobody"
            return f"{heirs} took over, and the moment to strike there never came"
        return None

    # --- the decisions --------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> int:
        return 2 if self.cell.victim is Victim.HEIR or self.cell.moment is Moment.REPLAY else 1

    @property
    def _strikes_late(self) -> bool:
        # The blow that opens a trial of a replay is a kill.
        return self.cell.fault is Fault.LATE and (bool(self.blows) or self.cell.moment is not Moment.REPLAY)

    def _by_request(self, hop: Hop, position: int, replay: bool) -> Blow | None:
        if not self.blows:
            return self._open(in_flight=True) if self._is_opening(hop, position, replay) else None
        return self._follow(hop.node, in_flight=True) if self._is_heirs(hop, replay) else None

    def _is_opening(self, hop: Hop, position: int, replay: bool) -> bool:
        if hop.node != self.cast.victims[0] or replay or self.done < self.due:
            return False
        match self.cell.moment:
            case Moment.PREFILL:
                return position == 0
            case Moment.CHUNK:
                return position > 0
            case Moment.MID_STEP | Moment.LAST | Moment.REPLAY:
                return True
            case Moment.BETWEEN | Moment.IDLE | Moment.AGED:
                return False
            case _:
                assert_never(self.cell.moment)

    def _is_heirs(self, hop: Hop, replay: bool) -> bool:
        if hop.node not in self._heirs:
            return False
        match self.cell.moment:
            case Moment.REPLAY:
                return replay
            case Moment.PREFILL | Moment.CHUNK | Moment.LAST:
                # There is no later step of this kind, so the heir is struck as soon as it is fed.
                return True
            case Moment.MID_STEP | Moment.IDLE | Moment.AGED:
                return not replay and self.done > self.blows[0].step
            case Moment.BETWEEN:
                return False
            case _:
                assert_never(self.cell.moment)

    def _after_step(self) -> Blow | None:
        if self.cell.moment is not Moment.BETWEEN:
            return None
        if not self.blows:
            return self._open(in_flight=False) if self.done >= self.due else None
        # The step that met the first blow is over, so its heir is in the route.
        heir = next(iter(sorted(self._heirs)), None)
        return None if heir is None else self._follow(heir, in_flight=False)

    def _open(self, *, in_flight: bool) -> Blow:
        fault = Fault.KILL if self.cell.moment is Moment.REPLAY else self.cell.fault
        return self._strike(fault, self.cast.victims, in_flight=in_flight)

    def _follow(self, heir: NodeName | None, *, in_flight: bool) -> Blow | None:
        if heir is None or len(self.blows) >= self._wanted:
            return None
        return self._strike(self.cell.fault, (heir,), in_flight=in_flight)

    def _strike(self, fault: Fault, nodes: tuple[NodeName, ...], *, in_flight: bool) -> Blow:
        blow = Blow(fault=fault, nodes=nodes, step=self.done, in_flight=in_flight)
        self.blows.append(blow)
        return blow
