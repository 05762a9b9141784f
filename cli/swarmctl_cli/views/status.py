"""`status`: the verdict, the block map and the three facts about each node, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl.coverage import CoverageReport
from swarmctl.snapshot import Announcement, BootstrapFacts, NodeFacts, NodeState, Probe, ProcessFact, Snapshot
from swarmctl_cli.views import blockmap, columns, measure
from swarmctl_cli.views.symbols import Symbols
from swarmctl_cli.views.verdict import STYLES, Verdict

_STATE_STYLES = {
    NodeState.ONLINE: "green",
    NodeState.STARTING: "cyan",
    NodeState.JOINING: "cyan",
    NodeState.UNPROBED: "cyan",
    NodeState.UNOBSERVED: "cyan",
    NodeState.STOPPED: "dim",
}
_HEADER = ("NODE", "HOST", "STATE", "BLOCKS", "PROCESS", "RECORD", "PROBE", "THROUGHPUT", "CACHE LEFT")
_SPARE = ("CACHE LEFT", "THROUGHPUT", "HOST")
"""What a narrow terminal can do without, so that the three facts about a node are never cut."""
_KEPT_CHANGES = 8
_NOBODY = "nobody"
"""The source of a snapshot that no bootstrap peer has made an observation for."""


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """One picture, and for `--watch` what changed since the first: `(moment, node, before, after)`."""

    snapshot: Snapshot
    report: CoverageReport
    verdict: Verdict
    changes: tuple[tuple[str, str, str, str], ...] = ()


def reduce(state: StatusView | None, seen: StatusView) -> StatusView:
    """The newest picture, with the changes of state since the one before added to the list."""
    if state is None:
        return seen
    before = {node.name: node.state for node in state.snapshot.nodes}
    moment = seen.snapshot.taken_at[11:19]
    changes = [
        (moment, str(node.name), before[node.name].value, node.state.value)
        for node in seen.snapshot.nodes
        if node.name in before and before[node.name] is not node.state
    ]
    return replace(seen, changes=(*state.changes, *changes)[-_KEPT_CHANGES:])


def render(state: StatusView, width: int, symbols: Symbols) -> RenderableType:
    """The whole screen; without colour it says the same."""
    snapshot, verdict = state.snapshot, state.verdict
    parts: list[Text] = [Text.assemble((verdict.health.value, STYLES[verdict.health]), "  ", verdict.sentence)]
    parts += [Text.assemble(("hint: ", "cyan"), hint) for hint in verdict.hints]
    parts += [Text(_about(snapshot), style="dim"), Text()]
    lanes = [_lane(node) for node in snapshot.nodes]
    blocks = blockmap.render(state.report.replicas, lanes, minimum=state.report.minimum, width=width, symbols=symbols)
    rows = [*map(_bootstrap_row, snapshot.bootstraps), *map(_node_row, snapshot.nodes)]
    parts += [blocks, Text(), columns.render(_HEADER, rows, right=frozenset(_SPARE[:2]), width=width, spare=_SPARE)]
    parts += _strangers(snapshot.strangers) + _notes(snapshot)
    if state.changes:
        arrow = symbols.arrow
        parts += [Text(), *(Text(f"{at}  {node}: {was} {arrow} {now}") for at, node, was, now in state.changes)]
    return Group(*parts)


def document(state: StatusView) -> dict[str, Any]:
    """The `data` of `status -o json`. Ages and durations are seconds, latencies milliseconds."""
    snapshot = state.snapshot
    holders = snapshot.replicas()
    return {
        "verdict": state.verdict.health.value,
        "reason": state.verdict.sentence,
        "observed_age_s": None if snapshot.source == _NOBODY else snapshot.age_s,
        "observed_by": snapshot.source,
        "taken_at": snapshot.taken_at,
        "policy": {"min": state.report.minimum, "target": state.report.target, "by": state.report.by.value},
        "nodes": [_node_fields(node) for node in snapshot.nodes],
        "bootstraps": [_bootstrap_fields(bootstrap) for bootstrap in snapshot.bootstraps],
        "blocks": [
            {"block": block, "replicas": replicas, "servers": [str(n.name) for n in holders if block in n.blocks]}
            for block, replicas in enumerate(state.report.replicas)
        ],
        "strangers": [
            {"peer": one.peer, "state": NodeState.UNMANAGED.value, "record": _record_fields(one)}
            for one in snapshot.strangers
        ],
    }


def _about(snapshot: Snapshot) -> str:
    seen = f"seen {measure.age(snapshot.age_s)} ago by {snapshot.source}"
    if snapshot.source == _NOBODY:
        seen = "nobody observes its DHT"
    return f"swarm {snapshot.swarm}, {measure.count(snapshot.num_blocks, 'block')}, {seen}"


def _lane(node: NodeFacts) -> blockmap.Lane:
    counts = node.state is NodeState.ONLINE
    style = _STATE_STYLES.get(node.state, "red")
    return blockmap.Lane(label=node.name, blocks=node.blocks, counts=counts, style=style)


def _process(process: ProcessFact) -> str:
    if process.unknown is not None:
        return "no word from its host"
    if process.running:
        phase = f" {process.phase}" if process.phase and process.phase != "online" else ""
        return f"pid {process.pid}, {measure.age(process.uptime_s)}{phase}"
    if process.next_start_in_s is not None:
        return f"starts in {measure.age(process.next_start_in_s)}"
    return "ended" if process.ended is not None and not process.asked_to_stop else "-"


def _node_row(node: NodeFacts) -> Sequence[columns.Cell]:
    record, probe = node.announcement, node.probe
    seen = "-"
    if record is not None:
        seen = f"{record.state.value}, {measure.age(record.age_s)}"
        if record.blocks != node.blocks:
            seen = f"{record.state.value} {record.blocks}, {measure.age(record.age_s)}"
    probed = "-" if probe is None else f"{_probed(probe)}, {measure.age(probe.age_s)}"
    left = _tokens_left(record)
    return (
        node.name,
        node.host,
        Text(node.state.value, style=_STATE_STYLES.get(node.state, "bold red")),
        str(node.blocks),
        _process(node.process),
        seen,
        probed,
        measure.rate(record.throughput if record else None),
        "-" if left is None else f"{left} tokens",
    )


def _probed(probe: Probe) -> str:
    if not probe.ok:
        return "failed"
    # Its heartbeat said that it computes; no token of the probe's own has come through since.
    return "busy" if probe.latency_ms is None else measure.millis(probe.latency_ms)


def _bootstrap_row(bootstrap: BootstrapFacts) -> Sequence[columns.Cell]:
    state = Text(bootstrap.state, style="green" if bootstrap.process.running else "bold red")
    return (bootstrap.name, bootstrap.host, state, "-", _process(bootstrap.process), "-", "-", "-", "-")


def _strangers(strangers: Sequence[Announcement]) -> list[Text]:
    if not strangers:
        return []
    rows = [
        (
            Text(NodeState.UNMANAGED.value, style="magenta"),
            str(one.blocks),
            f"{one.state.value}, {measure.age(one.age_s)}",
            str(one.peer),
        )
        for one in strangers
    ]
    return [
        Text(),
        Text("Peers that the file does not name; they count for nothing:"),
        columns.render(("STATE", "BLOCKS", "RECORD", "PEER"), rows),
    ]


def _notes(snapshot: Snapshot) -> list[Text]:
    processes = [(one.name, one.process) for one in snapshot.nodes] + [(b.name, b.process) for b in snapshot.bootstraps]
    notes = [
        Text(f"{name}: {process.ended}")
        for name, process in processes
        if not process.running and process.ended is not None and not process.asked_to_stop
    ]
    notes += [
        Text(f"{name}: crashed {measure.count(process.crashes, 'time')} lately; the last time: {process.last_ended}")
        for name, process in processes
        if process.running and process.crashes
    ]
    notes += [
        Text(f"{node.name}: the probe failed: {node.probe.reason}")
        for node in snapshot.nodes
        # That a process which is gone does not answer is no news.
        if node.process.running and node.probe is not None and not node.probe.ok and node.probe.reason
    ]
    stock = [str(node.name) for node in snapshot.stock()]
    if stock:
        notes.append(_stock_note(stock))
    notes += [Text.assemble(("warning: ", "bold yellow"), warning) for warning in snapshot.warnings]
    return [Text(), *notes] if notes else []


def _stock_note(names: Sequence[str]) -> Text:
    kind = "a stock server" if len(names) == 1 else "stock servers"
    why = "on CUDA the first batch size sticks; with swarmctl's patches again:"
    return Text(f"{', '.join(names)}: {kind}, {why} swarmctl restart {' '.join(names)}")


def _node_fields(node: NodeFacts) -> dict[str, Any]:
    return {
        "node": str(node.name),
        "host": str(node.host),
        "state": node.state.value,
        "blocks": str(node.blocks),
        "peer": node.peer,
        "process": asdict(node.process),
        "record": None if node.announcement is None else _record_fields(node.announcement),
        "probe": None if node.probe is None else asdict(node.probe),
    }


def _bootstrap_fields(bootstrap: BootstrapFacts) -> dict[str, Any]:
    return {
        "node": str(bootstrap.name),
        "host": str(bootstrap.host),
        "state": bootstrap.state,
        "peer": bootstrap.peer,
        "addresses": list(bootstrap.addresses),
        "process": asdict(bootstrap.process),
    }


def _record_fields(record: Announcement) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {
        **fields,
        "state": record.state.value,
        "blocks": str(record.blocks),
        "cache_tokens_left": _tokens_left(record),
    }


def _tokens_left(record: Announcement | None) -> int | None:
    """How many tokens a session over all blocks of this server may still cache."""
    if record is None or record.cache_tokens_left is None:
        return None
    return record.cache_tokens_left // len(record.blocks)
