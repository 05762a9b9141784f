"""`verify recovery` while it runs: what is said for good, one line a cell, and what is being waited for now."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten

from rich.text import Text
from typing_extensions import assert_never

from swarmctl.matrix import Cell
from swarmctl.trial import CellDone, CellStarting, Progress, Result, StageStarting, Subject
from swarmctl_cli.views import measure, recovery
from swarmctl_cli.views.symbols import Symbols

_REASON_CHARS = 120


@dataclass(frozen=True, kw_only=True)
class NodeUp:
    """A node serves, `took_s` after its start was asked for.

    `ready` of `total` nodes of a swarm that is being prepared; both 0 for one that came back for a cell.
    """

    node: str
    took_s: float
    ready: int = 0
    total: int = 0


Told = Progress | NodeUp
"""What a run of cells tells: its own steps, and who comes up in between."""


def line(progress: Told, symbols: Symbols) -> Text | None:
    """What stays on the screen; None for what the next line tells anyway."""
    match progress:
        case StageStarting(family=family, nodes=nodes):
            what = f"{measure.count(len(nodes), 'node')}: {', '.join(nodes)}" if nodes else "a swarm"
            return Text(f"{family}: preparing {what}")
        case NodeUp():
            return Text(_up(progress))
        case CellStarting():
            return None
        case CellDone(result=result, index=index, total=total):
            return _done(result, index, total, symbols)
        case _:
            assert_never(progress)


def begins(progress: Told, elapsed_s: float) -> str | None:
    """What a log says when a cell begins, `elapsed_s` after the run did; a live display shows `running` instead."""
    if not isinstance(progress, CellStarting):
        return None
    return f"{running(progress)}: begins, {measure.age(elapsed_s)} into the run"


def running(progress: Progress) -> str | None:
    """What is being waited for; None between two cells."""
    match progress:
        case StageStarting(family=family):
            return f"{family}: preparing a swarm"
        case CellStarting(cell=cell, subject=subject, index=index, total=total):
            return f"{_place(index, total)} {_who(cell, subject)}"
        case CellDone():
            return None
        case _:
            assert_never(progress)


def _up(node: NodeUp) -> str:
    told = f"{node.node} is ready after {measure.age(node.took_s)}"
    return f"{told}, {node.ready} of {node.total}" if node.total else told


def _done(result: Result, index: int, total: int, symbols: Symbols) -> Text:
    said = Text.assemble(
        f"{_place(index, total)} ",
        (recovery.mark(result.verdict, symbols), recovery.STYLES[result.verdict]),
        f"  {_who(result.cell, result.subject)}",
    )
    numbers = []
    result = recovery.measured(result)
    if result.pause_ms is not None:
        numbers.append(f"pause {measure.millis(result.pause_ms)}")
    if result.step_ms_median is not None:
        numbers.append(f"step {measure.millis(result.step_ms_median)}")
    if numbers:
        said.append(f"  {', '.join(numbers)}", style="dim")
    if result.reason:
        # The whole reason is in the table below; here it may quote a server at length.
        said.append(f"  {shorten(recovery.reason_of(result), _REASON_CHARS, placeholder=' …')}")
    return said


def _place(index: int, total: int) -> str:
    return f"[{index + 1:{len(str(total))}d}/{total}]"


def _who(cell: Cell, subject: Subject) -> str:
    return f"{cell} (stock)" if subject is Subject.STOCK else str(cell)
