"""`doctor`: one line a condition, its remedy under it, then what is patched and why."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl_cli.views.symbols import Symbols

Row = tuple[str, str, str, str | None]
"""Name, level (ok, warning, failed), what was found, hint."""

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def render(checks: Sequence[Row], patches: Sequence[tuple[str, str, str]], symbols: Symbols) -> RenderableType:
    """The checks, and the patches as `(name, target, why)`."""
    gutter = max(len(name) for name, *_ in checks)
    marks = {"ok": symbols.tick, "warning": "!", "failed": symbols.cross}
    parts: list[Text] = []
    for name, level, found, hint in checks:
        mark = marks[level].ljust(max(len(mark) for mark in marks.values()))
        parts.append(Text.assemble((mark, _STYLES[level]), f"  {name.ljust(gutter)}  {found}"))
        if hint is not None and level != "ok":
            parts.append(Text.assemble(" " * (len(mark) + gutter + 4), ("hint: ", "cyan"), hint))
    parts += [Text(), Text("Upstream names that swarmctl rebinds while it works:")]
    for name, target, why in patches:
        parts += [Text.assemble("  ", (name, "bold"), f"  {target}"), Text(f"      {why}", style="dim")]
    return Group(*parts)
