"""Lines of nodes' logs: `name | text`, each node's name in a colour of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from rich.text import Text

COLOURS = ("#0087af", "#af5faf", "#5f8700", "#af8700", "#5f87d7", "#d75f87")
"""Each can be read on black and on white (a contrast of 3 or more), and none is the red of errors."""

_LEVEL = re.compile(r"\b(?:(ERROR|CRITICAL|FATAL|Traceback)|(WARN(?:ING)?))\b")
_MOMENT_COLUMNS = len("2026-12-07T08:27:22.123Z")


class LogLines:
    """Renders lines of `names`, each in its node's colour. A single node has no name before it."""

    def __init__(self, names: Sequence[str], *, timestamps: bool = False) -> None:
        self._gutter = max(map(len, names), default=0) if len(names) > 1 else 0
        self._styles = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
        self._timestamps = timestamps

    def plain(self, name: str, at: float | None, text: str) -> str:
        """One line; `at`: epoch seconds, None if nobody knows."""
        return "".join((*self._head(name, at), text))

    def line(self, name: str, at: float | None, text: str) -> Text:
        """As `plain`, in colour."""
        name_before, moment_before = self._head(name, at)
        line = Text.assemble((name_before, self._styles[name]), (moment_before, "dim"))
        # A node that colours its words has chosen its colours; other escape sequences would act on the terminal.
        return line.append_text(Text.from_ansi(text) if "\x1b" in text else _marked(text))

    def _head(self, name: str, at: float | None) -> tuple[str, str]:
        shown = f"{'' if at is None else moment(at):{_MOMENT_COLUMNS}} " if self._timestamps else ""
        return f"{name.ljust(self._gutter)} | " if self._gutter else "", shown


def moment(at: float) -> str:
    """`2026-12-07T08:27:22.123Z`."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _marked(text: str) -> Text:
    line = Text(text)
    for found in _LEVEL.finditer(text):
        line.stylize("bold red" if found[1] else "yellow", *found.span())
    return line
