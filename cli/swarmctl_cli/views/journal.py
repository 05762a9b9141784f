"""The log of events: one line each, what happened before who did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.text import Text

_STYLES = {"started": "green", "stopped": "dim", "killed": "yellow", "lost": "bold red", "lock-broken": "bold yellow"}


Row = Mapping[str, Any]
"""The fields of `swarmctl.transport.journal.Entry`."""


def line(entry: Row) -> Text:
    """`2026-12-07 08:27:22Z  started  a0 on gpu-a: port 31340  by ops@desk: up (why)`."""
    moment = datetime.fromtimestamp(entry["at"], timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    what = entry["node"] or ""
    if entry["host"]:
        what += f" on {entry['host']}" if what else entry["host"]
    change = entry["after"] or entry["before"]
    text = Text.assemble((moment, "dim"), "  ", (entry["type"], _STYLES.get(entry["type"], "cyan")), "  ", what)
    if change:
        text.append(f": {change}")
    text.append(f"  by {entry['who']}: {entry['doing']}", style="dim")
    if entry["why"]:
        text.append(f" ({entry['why']})")
    return text


def render(entries: Sequence[Row]) -> Text:
    """All of them, the oldest first."""
    return Text("\n").join(map(line, entries)) if entries else Text("nothing was done to this swarm yet")
