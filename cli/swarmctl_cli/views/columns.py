"""A plain table: padded columns, nothing cut, nothing wrapped, so that `awk` and eyes both find their way."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

Cell = str | Text


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
    spare: Sequence[str] = (),
) -> Text:
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
    return Text("\n").join(_line(row, places) for row in table)


def _line(row: Sequence[Text], places: Sequence[tuple[int, int, bool]]) -> Text:
    line = Text()
    for index, width, to_the_right in places:
        padding = Text(" " * (width - cell_len(row[index].plain)))
        line.append_text(padding + row[index] if to_the_right else row[index] + padding)
        line.append("  ")
    line.rstrip()
    return line
