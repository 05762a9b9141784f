"""The way from a wish to outcomes for `verify recovery`: what may be struck, who agrees to it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from swarmctl.errors import Refused, SwarmctlError, UsageError
from swarmctl.matrix import Cell
from swarmctl.trial import CellDone, Progress
from swarmctl_cli.attempt import Attempt, Wanted
from swarmctl_cli.context import Run
from swarmctl_cli.errors import Interrupted
from swarmctl_cli.reports import Files, publish
from swarmctl_cli.views import recovery
from swarmctl_cli.views.measure import count, listing
from swarmctl_cli.views.recovery import Outcome

if TYPE_CHECKING:
    from swarmctl.operations.site import Site
    from swarmctl.operations.trials.foresight import Foresight

_MOST_REASONS = 8


def judge_again(folder: Path, wanted: Wanted) -> list[Outcome]:
    """The outcomes of saved histories, judged as they would be today; starts nothing, and needs no torch.

    Raises:
        UsageError: the folder holds none, a file is damaged, or none is of a wanted cell.
    """
    from swarmctl.operations.trials.saved import read_saved
    from swarmctl.trial import judge

    trials = read_saved(folder)
    meant = wanted.among(trial.cell for trial in trials)
    chosen = sorted((trial for trial in trials if trial.cell in meant), key=lambda trial: _place(trial.cell))
    return [Outcome(result=judge(trial), trial=trial) for trial in chosen]


def _place(cell: Cell) -> tuple[str, tuple[int, ...]]:
    """Where a cell stands in the matrix: files have no order of their own that means anything."""
    parts = (cell.fault, cell.moment, cell.victim, cell.cover, cell.traffic)
    return cell.family, tuple(list(type(part)).index(part) for part in parts)


def foresee(run: Run, site: Site, wanted: Wanted) -> Foresight:
    """What the wanted cells would strike on the operator's swarm.

    Raises:
        UsageError: as `Wanted.cells`.
        Refused: a cell that was named cannot be tried, or none can; nothing has been done.
    """
    from swarmctl.operations.trials.foresight import foresee as judge_cells
    from swarmctl.operations.trials.stage import own_stage

    with own_stage(site) as stage:
        foresight = judge_cells(stage, wanted.cells(own=stage.family))
    if not foresight.victims or (wanted.names and foresight.left_out):
        raise _refusal(run, site, foresight)
    return foresight


def show(run: Run, cells: tuple[Cell, ...], foresight: Foresight | None) -> None:
    """Write what would be tried, and on the operator's swarm who would be struck."""
    strikes = {} if foresight is None else foresight.victims
    left_out = {} if foresight is None else foresight.left_out
    rows = [
        {**recovery.cell_fields(cell), "name": str(cell), "strikes": [str(node) for node in strikes.get(cell, ())]}
        for cell in cells
    ]
    data = {
        "dry_run": True,
        "cells": rows,
        "left_out": [{"name": str(cell), "reason": reason} for cell, reason in left_out.items()],
    }
    run.out.emit(
        data,
        human=lambda: recovery.render_cells(cells, left_out, strikes=strikes, width=run.out.width),
        names=[str(cell) for cell in cells],
        rows=rows,
    )


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
        with follow_trials(run.out) as shown:

            def sink(progress: Progress) -> None:
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
        run.out.say(f"the histories are in {attempt.save}; to judge them again, add: --recheck {attempt.save}")
    return outcomes


def _told(attempt: Attempt, outcomes: list[Outcome]) -> str:
    total = len(attempt.cells) * len(attempt.subjects)
    done = f"{len(outcomes)} of {count(total, 'trial')} done"
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


def _really(attempt: Attempt, tell: Callable[[Progress], None]) -> None:
    from swarmctl.operations.trials.run import local_stages, own_stages, verify

    stages = local_stages() if attempt.site is None else own_stages(attempt.site)
    verify(stages, attempt.cells, subjects=attempt.subjects, progress=tell, save=attempt.save)
