"""`host check`: a row a host, a column a check, the table of who reaches whom, and a sentence for each fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl_cli.views import columns
from swarmctl_cli.views.symbols import Symbols

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red", "silent": "bold red"}
_WORST = ("ok", "warning", "fault", "silent")
# What is left out first where the terminal is narrow.
_SPARE = ("logout", "sockets", "keys", "p2pd", "disk", "model")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finding, as plain values: see `swarmctl.operations.hosts.findings.Finding`."""

    host: str
    topic: str
    level: str
    found: str
    sentence: str | None
    hint: str | None


def render(
    findings: Sequence[Row],
    *,
    hosts: Sequence[str],
    topics: Sequence[str],
    reaches: Callable[[str, str], bool | None],
    width: int,
    symbols: Symbols,
) -> RenderableType:
    """The whole. `reaches`: whether a source came through to a host, None if that was not tried."""
    sources = [*hosts, *dict.fromkeys(row.host for row in findings if row.host not in hosts)]
    shown = [topic for topic in topics if any(row.topic == topic for row in findings)]
    table = [[Text(host), *(_cell(findings, host, topic, symbols) for topic in shown)] for host in sources]
    parts: list[RenderableType] = [columns.render(("HOST", *shown), table, width=width, spare=_SPARE)]
    if any(reaches(one, other) is not None for one in sources for other in hosts):
        pairs = [[Text(one), *(_reached(reaches(one, other), symbols) for other in hosts)] for one in sources]
        parts += [Text(), columns.render((f"FROM {symbols.arrow} TO", *hosts), pairs)]
    worth = [row for row in findings if row.sentence is not None]
    if worth:
        parts.append(Text())
    for row in worth:
        mark = "!" if row.level == "warning" else symbols.cross
        parts.append(Text.assemble((mark, _STYLES[row.level]), f" {row.sentence}"))
        if row.hint is not None:
            parts.append(Text.assemble("  ", ("hint: ", "cyan"), row.hint))
    faulty = {row.host for row in worth if row.level != "warning"}
    parts += [Text(), Text(_verdict(sources, faulty))]
    return Group(*parts)


def _verdict(sources: Sequence[str], faulty: set[str]) -> str:
    if not faulty:
        return "all hosts are fit" if len(sources) > 1 else f"{sources[0]} is fit"
    return f"not fit: {', '.join(one for one in sources if one in faulty)}"


def _cell(findings: Sequence[Row], host: str, topic: str, symbols: Symbols) -> Text:
    rows = [row for row in findings if (row.host, row.topic) == (host, topic)]
    if not rows:
        return Text("-", style="dim")
    worst = max(rows, key=lambda row: _WORST.index(row.level))
    if worst.level == "ok":
        return Text(worst.found)
    mark = "!" if worst.level == "warning" else symbols.cross
    return Text(f"{mark} {worst.found}".rstrip(), style=_STYLES[worst.level])


def _reached(came_through: bool | None, symbols: Symbols) -> Text:
    if came_through is None:
        return Text("-", style="dim")
    return Text(symbols.tick, style="green") if came_through else Text(symbols.cross, style="bold red")
