"""What a cell asks of its sessions beside what every session must keep to, and whether they met its fault. Pure.

All of this is of our own client's events; the stock client tells none.
"""

from __future__ import annotations

from collections.abc import Iterator

from swarmctl.blocks import PeerId
from swarmctl.checkers import Step, kind_of, steps_of
from swarmctl.events import (
    HedgeStarted,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryGivenUp,
    RouteChanged,
)
from swarmctl.matrix import Cell, Fault, Moment, Traffic, Victim
from swarmctl.trial.values import Run, Trial

# The server stays where it is, and well: nobody has a reason to give it up.
_HARMLESS = (Fault.SLOW, Fault.FORGET, Fault.EXPIRE)
# One that has no room, serves other blocks, or was not even dialled, was not struck.
_ONLY_ASKED = ("busy", "refused", "undialled")


def objections(cell: Cell, run: Run) -> Iterator[str]:
    """What is wrong with a session for this cell."""
    steps = tuple(steps_of(run.events))
    if cell.fault in _HARMLESS:
        yield from _given_up_though_well(cell, run)
    if cell.fault is Fault.EXPIRE:
        for step in steps:
            yield from _moved_though_well(step)
    for step in steps:
        gave_up = next((event for event in step.events if isinstance(event, RecoveryGivenUp)), None)
        if cell.victim is not Victim.ALL and gave_up is not None:
            yield f"blocks {gave_up.blocks} were given up, and a server for them was left or came back"
    if cell.victim is Victim.ALL and _struck(steps) and not any(step.waited or _gave_up(step) for step in steps):
        yield "no replica was left, and the session neither waited for one nor gave up"


def doubt(trial: Trial) -> str | None:
    """Why the sessions' events do not show that the fault bit; None if they do.

    An answer that is right because nothing happened proves nothing.
    """
    lacking = [why for run in trial.runs if (why := _not_shown(trial.cell, run)) is not None]
    # A crowd's sessions all lose the server; of several, one after the other, one meets the fault.
    enough = not lacking if trial.cell.traffic is Traffic.CROWD else len(lacking) < len(trial.runs)
    if enough:
        return None
    count = f"in {len(lacking)} of {len(trial.runs)} sessions " if len(trial.runs) > 1 else ""
    return count + lacking[0]


def _given_up_though_well(cell: Cell, run: Run) -> Iterator[str]:
    failed = [event for event in run.events if isinstance(event, PeerFailed)]
    # So that there is a replay, a server is killed first.
    killed = {event.hop.peer for event in failed[:1]} if cell.moment is Moment.REPLAY else set[PeerId]()
    for event in failed:
        if event.kind != "expired" and event.hop.peer not in killed:
            yield f"{event.hop.label} was given up as {event.kind}, and was well: {event.reason}"


def _moved_though_well(step: Step) -> Iterator[str]:
    expired = [loss.hop for loss in step.losses if kind_of(loss) == "expired"]
    routes = [event.route for event in step.events if isinstance(event, RouteChanged)]
    for hop in expired:
        if routes and hop.peer not in {other.peer for other in routes[-1]}:
            yield f"{hop.label} had only ended an old stream, and its blocks went to another server"


def _not_shown(cell: Cell, run: Run) -> str | None:
    steps = tuple(steps_of(run.events))
    kinds = [kind_of(loss) for step in steps for loss in step.losses]
    match cell.fault:
        case Fault.FORGET:
            return None  # nothing is the right answer to it; whoever took the announcement away knows that it was gone
        case Fault.SLOW:
            late = any(isinstance(event, PeerSuspected | HedgeStarted | PeerOvertaken) for event in run.events)
            return None if late else "no answer was late enough to be noticed"
        case Fault.EXPIRE:
            return None if "expired" in kinds else "no stream had expired"
        case Fault.FULL if "busy" not in kinds and not any(step.waited for step in steps):
            return "the replacement had room"
        case _:
            wanted = 2 if cell.victim in (Victim.TWO, Victim.HEIR) or cell.moment is Moment.REPLAY else 1
            # Two victims fall in one step, an heir perhaps in a later one than its predecessor.
            groups = [(step,) for step in steps] if cell.victim is Victim.TWO else [steps]
            lost = max((len(_struck(group)) for group in groups), default=0)
            return None if lost >= wanted else f"{lost} of {wanted} servers were lost"


def _struck(steps: tuple[Step, ...]) -> set[PeerId]:
    return {loss.hop.peer for step in steps for loss in step.losses if kind_of(loss) not in _ONLY_ASKED}


def _gave_up(step: Step) -> bool:
    return isinstance(step.events[-1], RecoveryGivenUp)
