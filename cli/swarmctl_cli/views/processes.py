"""`ps`: what runs, one row a node, and with `wide` each of its processes below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from swarmctl_cli.views import columns, measure


@dataclass(frozen=True, kw_only=True)
class ProcessLine:
    """One row. `port` and `started_at` (ISO, UTC) are None for the processes of a node; bytes and seconds."""

    name: str
    host: str
    kind: str
    pid: int | None
    processes: int | None
    rss_bytes: int
    cpu_s: float
    port: int | None = None
    started_at: str | None = None
    command: str = ""


def render(lines: Sequence[ProcessLine]) -> Text:
    """The table; the sums of a node are over all its processes, the runner's among them."""
    if not lines:
        return Text("nothing runs")
    header = ["NODE", "HOST", "KIND", "PID", "PROCESSES", "MEMORY", "CPU", "PORT", "STARTED"]
    wide = any(line.command for line in lines)
    rows = [
        [
            line.name,
            line.host,
            line.kind,
            _or_dash(line.pid),
            _or_dash(line.processes),
            measure.size(line.rss_bytes),
            measure.age(line.cpu_s),
            _or_dash(line.port),
            _moment(line.started_at),
            *([line.command] if wide else []),
        ]
        for line in lines
    ]
    return columns.render(
        [*header, *(["COMMAND"] if wide else [])], rows, right=frozenset({"PID", "PROCESSES", "MEMORY", "CPU", "PORT"})
    )


def _moment(iso: str | None) -> str:
    """`2024-05-01 12:00:00Z`; moments are UTC everywhere."""
    return "-" if iso is None else f"{iso[:19].replace('T', ' ')}Z"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
