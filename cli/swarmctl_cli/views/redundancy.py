"""`verify redundancy`: the answer, what may fail, and the smallest set of spans that would repair what is thin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl.blocks import BlockRange
from swarmctl.coverage import CoverageReport, Holder, Repair, Verdict
from swarmctl.snapshot import NodeState, Snapshot
from swarmctl_cli.views import blockmap, columns, measure
from swarmctl_cli.views.symbols import Symbols
from swarmctl_cli.views.verdict import coverage, judge

_STYLES = {Verdict.REDUNDANT: "bold green", Verdict.THIN: "bold yellow", Verdict.GAP: "bold red"}


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to do about thin blocks. `down`: declared nodes that do not serve; `repairs` is what is missing with them.

    `hints` are commands.
    """

    repairs: tuple[Repair, ...] = ()
    down: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def remedy(snapshot: Snapshot, report: CoverageReport, declared: CoverageReport, *, command: str) -> Remedy:
    """The remedy for a live swarm: start what the file declares, and only then add to the file.

    `report` is about what runs, `declared` about the whole file; `command` is how the user calls the program.
    """
    if report.verdict is Verdict.REDUNDANT:
        return Remedy(repairs=report.repairs)
    down = tuple(f"{node.name} {node.state.value}" for node in snapshot.nodes if node.state is not NodeState.ONLINE)
    hints = judge(snapshot, report, command=command).hints or (f"{command} status",)
    return Remedy(repairs=declared.repairs if down else report.repairs, down=down, hints=hints)


def render(
    report: CoverageReport,
    holders: Sequence[Holder],
    *,
    source: str,
    remedy: Remedy,
    width: int,
    symbols: Symbols,
) -> RenderableType:
    """The whole report. `source` says in words what was judged."""
    lanes = [blockmap.Lane(label=one.node, blocks=one.blocks, counts=True, style="green") for one in holders]
    parts: list[Text] = [
        Text.assemble((report.verdict.value, _STYLES[report.verdict]), "  ", coverage(report)),
        Text(f"judged: {source}", style="dim"),
        Text(),
        blockmap.render(report.replicas, lanes, minimum=report.minimum, width=width, symbols=symbols),
        Text(),
        *_losses(report),
    ]
    if remedy.down:
        enough = "" if remedy.repairs else "; with them every block has enough replicas"
        parts += [Text(), Text(f"Declared, but not up: {', '.join(remedy.down)}{enough}.")]
    if remedy.repairs:
        added = "Smallest repair beyond them, spans to add:" if remedy.down else "Smallest repair, spans to add:"
        parts += [Text(), Text(added), _repairs(remedy.repairs, report)]
    parts += [Text.assemble(("hint: ", "cyan"), hint) for hint in remedy.hints]
    return Group(*parts)


def document(report: CoverageReport, *, source: str) -> dict[str, Any]:
    """The `data` of `verify redundancy -o json`."""
    return {
        "verdict": report.verdict.value,
        "source": source,
        "by": report.by.value,
        "min": report.minimum,
        "target": report.target,
        "tolerance": report.tolerance,
        "blocks": [
            {"block": block, "replicas": replicas, "servers": servers}
            for block, (replicas, servers) in enumerate(zip(report.replicas, report.servers, strict=True))
        ],
        "gaps": [str(gap) for gap in report.gaps],
        "thin": [{"blocks": str(s.blocks), "replicas": s.replicas, "wanted": s.wanted} for s in report.thin],
        "below_target": [
            {"blocks": str(s.blocks), "replicas": s.replicas, "wanted": s.wanted} for s in report.below_target
        ],
        "may_lose": {"nodes": list(report.may_lose_nodes), "hosts": list(report.may_lose_hosts)},
        "sole": {"nodes": _ranges(report.sole_holders), "hosts": _ranges(report.sole_hosts)},
        "repairs": [_repair_fields(repair) for repair in report.repairs],
    }


def _losses(report: CoverageReport) -> list[Text]:
    if report.verdict is Verdict.GAP:
        gaps = ", ".join(str(gap) for gap in report.gaps)
        return [Text(f"The model does not run: no server for blocks {gaps}.", style="bold red")]
    domain = report.by.value
    lines = [f"Survives the loss of any {measure.count(report.tolerance, domain)}."]
    if report.tolerance == 0:
        lines = [f"There is a {domain} whose loss would stop it."]
    lines.append(f"One node may go:  {_names(report.may_lose_nodes)}")
    lines.append(f"One host may go:  {_names(report.may_lose_hosts)}")
    lines += [f"Must stay:        node {name}, alone on {_text(spans)}" for name, spans in report.sole_holders.items()]
    lines += [f"Must stay:        host {name}, alone on {_text(spans)}" for name, spans in report.sole_hosts.items()]
    return [Text(line) for line in lines]


def _repairs(repairs: Sequence[Repair], report: CoverageReport) -> Text:
    rows = []
    for repair in repairs:
        if repair.pieces:
            rows += [(str(p.blocks), f"{repair.times} x", measure.listing(p.candidates, "or")) for p in repair.pieces]
        else:
            enough = len(repair.candidates) >= repair.times
            where = measure.listing(repair.candidates, "or") if enough else _no_room(repair, report)
            rows.append((str(repair.blocks), f"{repair.times} x", where))
    return columns.render(("BLOCKS", "TIMES", f"ON {report.by.value.upper()}"), rows)


def _no_room(repair: Repair, report: CoverageReport) -> str:
    free = f"the file has only {measure.listing(repair.candidates)}" if repair.candidates else "the file has none"
    return f"needs {measure.count(repair.times, report.by.value)} holding none of it; {free}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _text(spans: Sequence[BlockRange]) -> str:
    return ", ".join(str(span) for span in spans)


def _ranges(sole: Mapping[Any, Sequence[BlockRange]]) -> dict[str, list[str]]:
    return {str(name): [str(span) for span in spans] for name, spans in sole.items()}


def _repair_fields(repair: Repair) -> dict[str, Any]:
    return {
        "blocks": str(repair.blocks),
        "times": repair.times,
        "candidates": list(repair.candidates),
        "pieces": [{"blocks": str(p.blocks), "candidates": list(p.candidates)} for p in repair.pieces],
    }
