"""A plain table: padded columns, nothing cut, nothing wrapped, so that `awk` and eyes both find their way.

Whole columns are left out of a table that may be narrow and is; a line below it says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

Cell = str | Text


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as lines, for a view that writes something between them. `left_out`: the columns that did not fit."""

    header: Text
    rows: tuple[Text, ...]
    left_out: tuple[str, ...] = ()

    @property
    def footer(self) -> tuple[Text, ...]:
        """What must stand below the rows, so that nobody takes the table for the whole of it; often nothing."""
        if not self.left_out:
            return ()
        names = ", ".join(self.left_out)
        return (Text(f"columns left out: {names} (wider terminal, or -o json)", style="dim"),)


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
    spare: Sequence[str] = (),
) -> Text:
    """As `lay_out`, in one piece."""
    table = lay_out(header, rows, right=right, width=width, spare=spare)
    return Text("\n").join((table.header, *table.rows, *table.footer))


def lay_out(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
    spare: Sequence[str] = (),
) -> Table:
    """Header and rows, two spaces between columns.

    Args:
        header: the columns' names.
        rows: a cell for each column.
        right: columns that are aligned to the right.
        width: what a line should fit in; None for no limit.
        spare: columns that are left out, in this order, while a line does not fit. What is shown is shown whole.
    """
    table = [[Text(name, style="bold") for name in header]]
    table += [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = {name: max(cell_len(row[i].plain) for row in table) for i, name in enumerate(header)}
    shown = list(header)
    for name in spare:
        if width is None or sum(widths[one] + 2 for one in shown) - 2 <= width:
            break
        shown.remove(name)
    places = [(header.index(name), widths[name], name in right) for name in shown]
    first, *others = (_line(row, places) for row in table)
    return Table(header=first, rows=tuple(others), left_out=tuple(name for name in header if name not in shown))


def _line(row: Sequence[Text], places: Sequence[tuple[int, int, bool]]) -> Text:
    line = Text()
    for index, width, to_the_right in places:
        padding = Text(" " * (width - cell_len(row[index].plain)))
        line.append_text(padding + row[index] if to_the_right else row[index] + padding)
        line.append("  ")
    line.rstrip()
    return line
