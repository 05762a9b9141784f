"""A cell with our client: who is needed is started, the client is led through the route, the fault falls, all is kept.

A trial holds what happened and no opinion: `swarmctl.trial.judge` has it, and may be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarmctl.errors import DeadlineExceeded
from swarmctl.matrix import Cell, Fault, Traffic, Victim
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.trials.casting import Cast, NoCast, assign
from swarmctl.operations.trials.client import Calm, TrialClient
from swarmctl.operations.trials.moments import Moments
from swarmctl.operations.trials.playing import Take
from swarmctl.operations.trials.stage import Stage
from swarmctl.operations.trials.strikes import Strikes
from swarmctl.snapshot import NodeState
from swarmctl.trial import Run, Subject, Trial

# With nobody left a session shall say so soon; where somebody comes back, it shall wait as long as a start takes.
_HASTY_S = 3.0
_PATIENT_S = 120.0

_CELL_S = 90.0
_TIMES_SLOWER = 4
_BUDGET_S = {Traffic.CROWD: 15.0, Traffic.LONG: 10.0}
_USUAL_BUDGET_S = 5.0


def try_ours(client: TrialClient, cell: Cell) -> Trial:
    """Play one cell with our client; `missed` says why the fault did not bite, or could not be tried at all.

    Raises:
        NodeFailed, DeadlineExceeded: the servers that it needs do not come up. CheckFailed: see `undisturbed`.
    """
    stage, clock = client.stage, client.stage.site.clock
    began = clock.monotonic()
    cast = prepare(stage, cell)
    if isinstance(cast, NoCast):
        return not_played(stage, cell, cast.reason, Subject.SWARMCTL, took_s=clock.monotonic() - began)
    client.admit(cast)
    calm = client.undisturbed(cell.traffic)
    client.admit(cast)
    takes = takes_of(cell, cast, calm)
    with Strikes(client, cell, cast) as strikes:
        strikes.watch(takes)
        late = _play(client, cell, takes)
        missed = strikes.missed()
    return Trial(
        cell=cell,
        subject=Subject.SWARMCTL,
        num_blocks=stage.num_blocks,
        runs=tuple(_run(take, before, late) for take, before in zip(takes, calm, strict=True)),
        took_s=clock.monotonic() - began,
        missed=missed,
        budget_s=_BUDGET_S.get(cell.traffic, _USUAL_BUDGET_S),
    )


def prepare(stage: Stage, cell: Cell) -> Cast | NoCast:
    """Assign the parts, and start whoever is missing.

    Raises:
        NodeFailed, DeadlineExceeded: see `Stage.ready`.
    """
    reason = stage.can(cell.fault)
    if reason is not None:
        return NoCast(reason=reason)
    if stage.own:
        # There is nobody to spare: whoever was struck in the cell before is needed to judge who may be struck in this.
        stage.ready(stage.struck_nodes())
    else:
        stage.restore()
    alive = [node.name for node in read_snapshot(stage.site).nodes if node.state is NodeState.ONLINE]
    cast = assign(cell, stage.nodes_for(cell.fault), stage.num_blocks, alive=alive)
    if isinstance(cast, NoCast):
        return cast
    forbidden = stage.forbids(cast.struck)
    if forbidden:
        return NoCast(reason=f"{' and '.join(cast.struck)} may not be struck: {'; '.join(forbidden)}")
    stage.ready(cast.needed)
    return cast


def not_played(stage: Stage, cell: Cell, reason: str, subject: Subject, *, took_s: float) -> Trial:
    """The trial of a cell that cannot be tried here."""
    return Trial(cell=cell, subject=subject, num_blocks=stage.num_blocks, runs=(), took_s=took_s, missed=reason)


def takes_of(cell: Cell, cast: Cast, calm: Sequence[Calm]) -> list[Take]:
    """The sessions to play; the last one is followed."""
    takes = [Take(script=one.script) for one in calm]
    led = takes[-1]
    led.moments = Moments(cell=cell, cast=cast, steps=len(calm[-1].outputs), calls=len(led.script.turns))
    return takes


def _play(client: TrialClient, cell: Cell, takes: Sequence[Take]) -> str | None:
    """Play them; says so if they did not end in time."""
    if cell.fault is Fault.RESTART:
        patience_s = {"recover_timeout_s": _PATIENT_S}
    else:
        patience_s = {"recover_timeout_s": _HASTY_S} if cell.victim is Victim.ALL else {}
    # A large model takes its time; a step that meets a fault computes all of its session once more.
    within_s = _CELL_S + sum(patience_s.values()) + _TIMES_SLOWER * client.undisturbed(cell.traffic)[-1].took_s
    try:
        client.play(cell.traffic, takes, client.client(**patience_s), within_s=within_s)
    except DeadlineExceeded as late:
        return str(late)
    return None


def _run(take: Take, calm: Calm, late: str | None) -> Run:
    from swarmctl.upstream.closeness import distances

    return Run(
        events=tuple(take.events),
        expected=calm.ids,
        local=calm.local,
        ids=take.ids,
        error=None if take.ids is not None else late or take.error or "it was not played, because one before it failed",
        distances=distances(take.outputs, calm.outputs),
        margins=calm.margins,
    )
