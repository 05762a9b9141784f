"""A plain table: padded columns, nothing cut, nothing wrapped, so that `awk` and eyes both find their way."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

Cell = str | Text


def render(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: frozenset[int] = frozenset()) -> Text:
    """Header and rows, two spaces between columns. `right`: indices of columns that are aligned to the right."""
    table = [[Text(name, style="bold") for name in header]]
    table += [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[i].plain) for row in table) for i in range(len(header))]
    return Text("\n").join(_line(row, widths, right) for row in table)


def _line(row: Sequence[Text], widths: Sequence[int], right: frozenset[int]) -> Text:
    line = Text()
    for i, cell in enumerate(row):
        padding = " " * (widths[i] - cell_len(cell.plain))
        line.append_text(Text(padding) + cell if i in right else cell + Text(padding))
        line.append("  ")
    line.rstrip()
    return line
