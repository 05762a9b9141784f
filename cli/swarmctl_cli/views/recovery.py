"""`verify recovery`: the cells by family, what became of each, and how to repeat what is not proved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl.events import WaitingForPeers
from swarmctl.matrix import Cell
from swarmctl.trial import Result, Subject, Trial, Verdict, summarise
from swarmctl_cli.views import columns, measure
from swarmctl_cli.views.symbols import Symbols

STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.WITHIN: "cyan",
    Verdict.DIFFERENT: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.NOT_HIT: "yellow",
}
PROVED = frozenset({Verdict.IDENTICAL, Verdict.WITHIN})
"""The verdicts that say that a session lost nothing."""

_PARTS = ("FAULT", "MOMENT", "VICTIM", "COVER", "TRAFFIC")
_NUMBERS = ("DETECT", "REPLAY", "PAUSE", "STEP", "REPLAYED", "LOST")
_SPARE = ("REPLAYED", "REPLAY", "STEP", "DETECT", "LOST", "PAUSE")
"""What a narrow terminal can do without; a cell's name and its verdict are always there."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A result and the trial that it judges; None where the cell came to no trial."""

    result: Result
    trial: Trial | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell with what each client made of it. `shown` is ours, or the stock client's where it ran alone."""

    cell: Cell
    shown: Outcome
    stock: Outcome | None = None


def rows_of(outcomes: Iterable[Outcome]) -> tuple[Row, ...]:
    """One row a cell, families together, in the order in which they were first tried."""
    found: dict[Cell, dict[Subject, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.result.cell, {})[outcome.result.subject] = outcome
    families = list(dict.fromkeys(cell.family for cell in found))
    rows = []
    for cell, by in sorted(found.items(), key=lambda item: families.index(item[0].family)):
        ours, stock = by.get(Subject.SWARMCTL), by.get(Subject.STOCK)
        if ours is not None:
            rows.append(Row(cell=cell, shown=ours, stock=stock))
        elif stock is not None:
            rows.append(Row(cell=cell, shown=stock))
    return tuple(rows)


def mark(verdict: Verdict, symbols: Symbols) -> str:
    """The verdict as a symbol and its word."""
    return f"{_mark(verdict, symbols)} {verdict.value}"


def render(outcomes: Sequence[Outcome], *, command: str, width: int, symbols: Symbols) -> RenderableType:
    """The table, the summary and what to repeat. `command`: how the user calls `verify recovery`."""
    if not outcomes:
        return Text("no cell was tried")
    parts: list[Text] = [*_table(rows_of(outcomes), width, symbols), Text()]
    parts += [Text(sentence) for sentence in conclusions(outcomes)]
    for result in unproved(outcome.result for outcome in outcomes):
        parts += [
            Text(),
            Text.assemble((mark(result.verdict, symbols), STYLES[result.verdict]), "  ", str(result.cell)),
            Text(f"  {reason_of(result) or 'no reason was recorded'}"),
            Text.assemble(("  again: ", "cyan"), f"{command} {result.cell}"),
        ]
    return Group(*parts)


def render_cells(
    cells: Sequence[Cell],
    left_out: Mapping[Cell, str],
    *,
    strikes: Mapping[Cell, Sequence[str]],
    width: int,
    unjudged: str | None = None,
) -> RenderableType:
    """What would be tried, without a verdict; then what cannot be tried here, each with its reason.

    `strikes`: the nodes that each cell strikes, for a swarm of the user's own; empty for one that is made for it.
    `unjudged`: why it is not known, of any cell, whom it would strike and whether the swarm can spare them.
    """
    header = (*_PARTS, *(("STRIKES",) if strikes else ()))
    rows = [(*_parts(cell), *((", ".join(strikes.get(cell, ())),) if strikes else ())) for cell in cells]
    lines = _by_family(cells, columns.lay_out(header, rows, width=width - 2)) if cells else []
    lines += [Text(), Text(measure.count(len(cells), "cell"))]
    if unjudged is not None:
        lines += [Text(f"None can be judged without the running swarm: {unjudged}")]
    if left_out:
        lines += [Text(), Text("Left out:"), *(Text(f"  {cell}: {reason}") for cell, reason in left_out.items())]
    return Group(*lines)


def conclusions(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """One sentence a client: how many cells came out how, and the worst pause.

    Where nobody was there to take over, a pause is as long as the others make it, so those are told apart.
    """
    sentences = []
    for subject in Subject:
        own = [outcome for outcome in outcomes if outcome.result.subject is subject]
        if own:
            name = "" if subject is Subject.SWARMCTL else "the stock client: "
            waited = [measured(outcome.result) for outcome in own if _waited(outcome)]
            at_once = [measured(outcome.result) for outcome in own if not _waited(outcome)]
            told = [_counted(own), _worst("worst pause", at_once)]
            told.append(_worst("worst wait for a server", waited))
            sentences.append(name + "; ".join(filter(None, told)))
    return tuple(sentences)


def unproved(results: Iterable[Result]) -> tuple[Result, ...]:
    """The cells of our own client that did not end as they should; the stock client is only the control."""
    return tuple(one for one in results if one.subject is Subject.SWARMCTL and one.verdict not in PROVED)


def measured(result: Result) -> Result:
    """The result without times of a failover where the fault did not bite: they would be of something else."""
    if result.verdict is not Verdict.NOT_HIT:
        return result
    return replace(result, detect_ms=None, replay_ms=None, pause_ms=None)


def document(results: Sequence[Result]) -> dict[str, Any]:
    """The `data` of `verify recovery -o json`."""
    return {"cells": [fields(result) for result in results], "summary": _summary(results)}


def fields(result: Result) -> dict[str, Any]:
    """One cell of `-o json`; times in ms, null where there was nothing to measure."""
    result = measured(result)
    return {
        **cell_fields(result.cell),
        "client": result.subject.value,
        "verdict": result.verdict.value,
        "detect_ms": _rounded(result.detect_ms),
        "replay_ms": _rounded(result.replay_ms),
        "pause_ms": _rounded(result.pause_ms),
        "step_ms_median": _rounded(result.step_ms_median),
        "replayed_tokens": result.replayed_tokens,
        "tokens_lost": result.tokens_lost,
        "reason": result.reason,
    }


def reason_of(result: Result) -> str:
    """The reason in one line; it may quote an error of several."""
    return " ".join(result.reason.split())


def cell_fields(cell: Cell) -> dict[str, str]:
    """The parts of a cell's name, as `-o json` has them."""
    return {
        "family": cell.family,
        "fault": cell.fault.value,
        "moment": cell.moment.value,
        "victim": cell.victim.value,
        "cover": cell.cover.value,
        "traffic": cell.traffic.value,
    }


def numbers(result: Result) -> tuple[str, ...]:
    """Detection, replay, pause, a normal step, replayed and lost tokens: as people read them."""
    result = measured(result)
    return (
        measure.millis(result.detect_ms),
        measure.millis(result.replay_ms),
        measure.millis(result.pause_ms),
        measure.millis(result.step_ms_median),
        str(result.replayed_tokens),
        str(result.tokens_lost),
    )


def _mark(verdict: Verdict, symbols: Symbols) -> str:
    return {
        Verdict.IDENTICAL: symbols.tick,
        Verdict.WITHIN: symbols.near,
        Verdict.DIFFERENT: symbols.unequal,
        Verdict.FAILED: symbols.cross,
        Verdict.NOT_HIT: symbols.unknown,
    }[verdict]


def _table(rows: Sequence[Row], width: int, symbols: Symbols) -> list[Text]:
    both = any(row.stock is not None for row in rows)
    first = "VERDICT" if any(row.shown.result.subject is Subject.SWARMCTL for row in rows) else "STOCK"
    header = (*_PARTS, first, *(("STOCK",) if both else ()), *_NUMBERS)
    cells: list[Sequence[columns.Cell]] = []
    for row in rows:
        verdicts = [_verdict(outcome, symbols) for outcome in ((row.shown, row.stock) if both else (row.shown,))]
        cells.append((*_parts(row.cell), *verdicts, *numbers(row.shown.result)))
    table = columns.lay_out(header, cells, right=frozenset(_NUMBERS), width=width - 2, spare=_SPARE)
    return _by_family([row.cell for row in rows], table)


def _by_family(cells: Sequence[Cell], table: columns.Table) -> list[Text]:
    """The table's header, then each family's name over its rows."""
    found = [Text("  ") + table.header]
    numbered = enumerate(cells)
    for family, members in groupby(numbered, key=lambda item: item[1].family):
        found.append(Text(family, style="bold"))
        found += [Text("  ") + table.rows[index] for index, _ in members]
    return [*found, *table.footer]


def _parts(cell: Cell) -> tuple[str, ...]:
    return tuple(list(cell_fields(cell).values())[1:])


def _verdict(outcome: Outcome | None, symbols: Symbols) -> Text:
    if outcome is None:
        return Text("-")
    verdict = outcome.result.verdict
    return Text(mark(verdict, symbols), style=STYLES[verdict])


def _waited(outcome: Outcome) -> bool:
    runs = () if outcome.trial is None else outcome.trial.runs
    return any(isinstance(event, WaitingForPeers) for run in runs for event in run.events)


def _counted(outcomes: Sequence[Outcome]) -> str:
    counts = {verdict: sum(one.result.verdict is verdict for one in outcomes) for verdict in Verdict}
    rest = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if verdict is not Verdict.IDENTICAL]
    others = [words for words in rest if not words.startswith("0 ")]
    total = measure.count(len(outcomes), "cell")
    return ", ".join((f"{counts[Verdict.IDENTICAL]} of {total} identical", *others))


def _worst(label: str, results: Iterable[Result]) -> str:
    paused = [(one.pause_ms, one.step_ms_median) for one in results if one.pause_ms is not None]
    if not paused:
        return ""
    pause_ms, step_ms = max(paused, key=lambda both: both[0])
    steps = f", {pause_ms / step_ms:.1f} normal steps" if step_ms else ""
    return f"{label} {measure.millis(pause_ms)}{steps}"


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    found = summarise([measured(result) for result in results])
    return {
        "proved": found.proved,
        "clients": {
            tally.subject.value: {
                "cells": tally.total,
                Verdict.IDENTICAL.value: tally.identical,
                Verdict.WITHIN.value: tally.within,
                Verdict.DIFFERENT.value: tally.different,
                Verdict.FAILED.value: tally.failed,
                Verdict.NOT_HIT.value: tally.not_hit,
            }
            for tally in found.tallies
        },
        "worst_pause_ms": _rounded(found.worst_pause_ms),
        "worst_cell": None if found.worst_cell is None else str(found.worst_cell),
        "pause_in_steps_median": _rounded(found.pause_in_steps),
    }


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)
