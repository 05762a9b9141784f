"""The way from a wish to outcomes for `verify recovery`: what may be struck, who agrees to it, and what came of it."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from swarmctl.errors import PartialFailure, Refused, SwarmctlError, UsageError
from swarmctl.matrix import Cell
from swarmctl.trial import CellDone, Subject
from swarmctl_cli.attempt import Arrivals, Attempt, Wanted
from swarmctl_cli.context import Run
from swarmctl_cli.errors import Interrupted
from swarmctl_cli.reports import Files, publish
from swarmctl_cli.views import recovery
from swarmctl_cli.views.measure import count, listing
from swarmctl_cli.views.recovery import Outcome
from swarmctl_cli.views.recovery_live import Told

if TYPE_CHECKING:
    from swarmctl.operations.site import Site
    from swarmctl.operations.trials.foresight import Foresight
    from swarmctl.operations.trials.saved import Saved

_MOST_REASONS = 8


def judge_again(
    run: Run, folder: Path, wanted: Wanted, subjects: tuple[Subject, ...]
) -> tuple[list[Outcome], PartialFailure | None]:
    """The outcomes of saved histories, judged as they would be today; starts nothing, and needs no torch.

    With them comes the error that some histories are damaged, which are warned of; None if all can be read.

    Raises:
        UsageError: the folder holds none, or none is of a wanted cell or of these clients.
        SwarmctlError: all are damaged.
    """
    from swarmctl.operations.trials.saved import read_saved
    from swarmctl.trial import judge

    saved = read_saved(folder)
    for line in saved.replaced:
        run.out.warn(line)
    for line in saved.damaged:
        run.out.warn(f"cannot be read: {line}")
    trials = [trial for trial in saved.trials if trial.subject in subjects]
    if not trials:
        raise UsageError(
            f"no history of the {subjects[0].value} client is in {folder}",
            reasons=[f"{count(len(saved.trials), 'history', 'histories')} there, of another client"],
        )
    meant = wanted.among(trial.cell for trial in trials)
    chosen = sorted((trial for trial in trials if trial.cell in meant), key=lambda trial: _place(trial.cell))
    return [Outcome(result=judge(trial), trial=trial) for trial in chosen], _partly(folder, saved)


def _partly(folder: Path, saved: Saved) -> PartialFailure | None:
    if not saved.damaged:
        return None
    damaged = count(len(saved.damaged), "history", "histories")
    return PartialFailure(
        f"{damaged} in {folder} cannot be read; the others are judged",
        reasons=saved.damaged,
        hints=["take the damaged ones away, or record them again with --save"],
    )


def _place(cell: Cell) -> tuple[str, tuple[int, ...]]:
    """Where a cell stands in the matrix: files have no order of their own that means anything."""
    parts = (cell.fault, cell.moment, cell.victim, cell.cover, cell.traffic)
    return cell.family, tuple(list(type(part)).index(part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """What is known of the wanted cells before anything is done to the operator's swarm.

    `cells`: those to show. `foresight`: whom they strike; None where the swarm does not run as its file says.
    `refusal`: why a run would be refused as a whole; None if it would not.
    """

    family: str
    cells: tuple[Cell, ...]
    foresight: Foresight | None = None
    refusal: Refused | None = None

    def agreed(self) -> Foresight:
        """What a run would do.

        Raises:
            Refused: a cell that was named cannot be tried, or none can; nothing has been done.
        """
        if self.refusal is not None:
            raise self.refusal
        assert self.foresight is not None
        return self.foresight


def foresee(run: Run, site: Site, wanted: Wanted) -> Foreseen:
    """What the wanted cells would strike on the operator's swarm, as far as it can be known.

    Raises:
        UsageError: as `Wanted.cells`.
    """
    from swarmctl.operations.trials.foresight import foresee as judge_cells
    from swarmctl.operations.trials.stage import family_of, own_stage

    family = family_of(site)
    cells = wanted.cells(own=family)
    try:
        with own_stage(site) as stage:
            foresight = judge_cells(stage, cells)
    except Refused as refusal:
        return Foreseen(family=family, cells=cells, refusal=refusal)
    refused = not foresight.victims or (wanted.names and foresight.left_out)
    return Foreseen(
        family=family,
        cells=tuple(foresight.victims),
        foresight=foresight,
        refusal=_refusal(run, site, foresight) if refused else None,
    )


def show(run: Run, cells: tuple[Cell, ...], foreseen: Foreseen | None) -> None:
    """Write what would be tried, and on the operator's swarm who would be struck, or why that is not known.

    Raises:
        Refused: on a dry run of what would be refused; stdout has everything by then.
    """
    foresight, refusal = (None, None) if foreseen is None else (foreseen.foresight, foreseen.refusal)
    strikes = {} if foresight is None else foresight.victims
    left_out = {} if foresight is None else foresight.left_out
    unjudged = refusal.message if refusal is not None and foresight is None else None
    rows = [
        {**recovery.cell_fields(cell), "name": str(cell), "strikes": [str(node) for node in strikes.get(cell, ())]}
        for cell in cells
    ]
    error = refusal if run.dry_run else None
    run.out.emit(
        {
            "dry_run": True,
            "cells": rows,
            "left_out": [{"name": str(cell), "reason": reason} for cell, reason in left_out.items()],
            "unjudged": [] if unjudged is None else [{"name": str(cell), "reason": unjudged} for cell in cells],
        },
        human=lambda: recovery.render_cells(cells, left_out, strikes=strikes, unjudged=unjudged, width=run.out.width),
        names=[str(cell) for cell in cells],
        rows=rows,
        error=error,
    )
    if error is not None:
        raise error


def confirm(run: Run, foresight: Foresight) -> None:
    """Say who will be struck, and go on only if somebody agrees.

    Raises:
        Refused: when nobody does.
    """
    swarm = str(run.out.swarm)
    nodes = foresight.nodes
    what = f"{count(len(foresight.victims), 'cell')} will strike {listing(nodes)} of swarm {swarm}"
    for cell, reason in foresight.left_out.items():
        run.out.warn(f"{cell} is left out: {reason}")
    run.out.say(f"{what}, one after another; each is started again")
    if run.yes:
        return
    if run.out.stderr.isatty():
        typed = typer.prompt(f"type the swarm's name to go on ({swarm})", default="", show_default=False, err=True)
        if str(typed).strip() == swarm:
            return
    raise Refused(
        f"nothing of swarm {swarm} was struck, because nobody said yes",
        reasons=[what],
        hints=["look at the cells with --list", "then add --yes"],
    )


def carry_out(run: Run, attempt: Attempt, files: Files) -> list[Outcome]:
    """Have every cell tried. What is there when it breaks off, by Ctrl-C too, is published before that is told.

    Raises:
        UsageError: the folder for the histories cannot be made.
        SwarmctlError: as the operation; KeyboardInterrupt too.
    """
    from swarmctl_cli.live import follow_trials

    _make(attempt.save)
    outcomes: list[Outcome] = []
    try:
        with follow_trials(run.out) as shown, _ctrl_c_answered(run, attempt):

            def sink(progress: Told) -> None:
                if isinstance(progress, CellDone):
                    outcomes.append(Outcome(result=progress.result, trial=progress.trial))
                    run.interrupt_note = _told(attempt, outcomes)
                shown(progress)

            run.interrupt_note = _told(attempt, outcomes)
            (run.try_cells or _really)(attempt, sink)
    except (KeyboardInterrupt, SwarmctlError) as error:
        if outcomes:
            cause = error if isinstance(error, SwarmctlError) else Interrupted("interrupted")
            publish(run, outcomes, files, cause=cause)
        raise
    if attempt.save is not None:
        again = f"swarmctl verify recovery --recheck {shlex.quote(str(attempt.save))}"
        run.out.say(f"the histories are in {attempt.save}; to judge them again: {again}")
    return outcomes


@contextmanager
def _ctrl_c_answered(run: Run, attempt: Attempt) -> Iterator[None]:
    """Ctrl-C is answered when it comes; its exception is told only when everything is down, seconds later."""
    before = signal.getsignal(signal.SIGINT)
    # A handler of somebody else's stays, and so does a Ctrl-C that is to be ignored.
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    mine = os.getpid()
    doing = "taking the swarms down" if attempt.site is None else "starting again who was struck"

    def answer(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        # hivemind's processes are forked off this one, and a terminal interrupts them too.
        if os.getpid() == mine:
            # The signal may have come in the middle of another line's way out.
            with suppress(RuntimeError):
                run.out.say(f"interrupted: {doing} (a few seconds) …")
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _told(attempt: Attempt, outcomes: list[Outcome]) -> str:
    # A cell is done when every client was tried in it, one after the other.
    done = f"{len(outcomes) // len(attempt.subjects)} of {count(len(attempt.cells), 'cell')} done"
    kept = f", their histories are in {attempt.save}" if attempt.save is not None and outcomes else ""
    if attempt.site is None:
        return f"{done}{kept}; the swarms made for the run are gone"
    return f"{done}{kept}; who was struck has been started again, see: swarmctl status"


def _make(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep histories in {folder}", reasons=[str(error)]) from error


def _refusal(run: Run, site: Site, foresight: Foresight) -> Refused:
    swarm = site.spec.name
    reasons = [f"{cell}: {reason}" for cell, reason in foresight.left_out.items()]
    if len(reasons) > _MOST_REASONS:
        # Many cells, few causes.
        reasons = list(dict.fromkeys(foresight.left_out.values()))
    hints = [run.command("verify", "redundancy")]
    if foresight.forbidden:
        hints.append("a policy that spares one at a time: redundancy: {min: 1}, or a replica more of each block")
    what = "some of these cells" if foresight.victims else "any of these cells"
    return Refused(f"swarm {swarm} cannot be used for {what}; nothing was struck", reasons=reasons, hints=hints)


def _really(attempt: Attempt, tell: Callable[[Told], None]) -> None:
    from swarmctl.operations.trials.run import local_stages, own_stages, verify

    arrivals = Arrivals(tell)
    sink = arrivals.event
    stages = local_stages(sink=sink) if attempt.site is None else own_stages(attempt.site, sink=sink)
    verify(stages, attempt.cells, subjects=attempt.subjects, progress=arrivals.step, save=attempt.save)
