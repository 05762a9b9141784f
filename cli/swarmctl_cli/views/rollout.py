"""How nodes come up and go down: one line each on a live display, one line a change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rich.text import Text

from swarmctl.events import Event, NodeLost, NodePhase, NodeReady, NodeStarted, NodeStopped
from swarmctl_cli.views import measure
from swarmctl_cli.views.symbols import Symbols

_BAR = 20
_QUARTERS = 4


@dataclass(frozen=True, kw_only=True)
class NodeProgress:
    """Where one node is. `phase` is an event's phase, or "ready", "lost", "stopped", "waiting"."""

    phase: str = "waiting"
    done: int = 0
    total: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RolloutView:
    """All nodes of one `up`, `restart` or `down`, in the order in which they were named or first heard of."""

    nodes: Mapping[str, NodeProgress] = field(default_factory=dict)


def reduce(state: RolloutView, event: Event) -> RolloutView:
    """The view after `event`; events of other kinds change nothing."""
    match event:
        case NodeStarted(node=node, pid=pid, port=port):
            return _with(state, node, NodeProgress(phase="starting", note=f"pid {pid}, port {port}"))
        case NodePhase(node=node, phase=phase, done=done, total=total):
            return _with(state, node, NodeProgress(phase=phase, done=done, total=total))
        case NodeReady(node=node, took_s=took_s, probe_ms=probe_ms):
            return _with(state, node, NodeProgress(phase="ready", note=_ready(took_s, probe_ms)))
        case NodeLost(node=node, reason=reason):
            return _with(state, node, NodeProgress(phase="lost", note=reason))
        case NodeStopped(node=node, how=how, took_s=took_s):
            return _with(state, node, NodeProgress(phase="stopped", note=_stopped(how, took_s)))
        case _:
            return state


def render(state: RolloutView, width: int, symbols: Symbols) -> Text:
    """One line a node; a bar where blocks are being loaded."""
    gutter = max((len(name) for name in state.nodes), default=0)
    bar = max(4, min(_BAR, width - gutter - 40))
    lines = [_line(name.ljust(gutter), node, bar, symbols) for name, node in state.nodes.items()]
    return Text("\n").join(lines)


def line(event: Event) -> str | None:
    """One sentence for a log; None for events that say too little for a line of their own.

    Of the loading of many blocks every quarter is said, so that eighty blocks do not make eighty lines.
    """
    match event:
        case NodeStarted(node=node, pid=pid, port=port):
            return f"{node}: started (pid {pid}, port {port})"
        case NodePhase(node=node, phase="loading", done=done, total=total) if total:
            if done and done * _QUARTERS // total == (done - 1) * _QUARTERS // total:
                return None
            return f"{node}: loading, block {done} of {total}"
        case NodePhase(phase="starting" | "online"):
            return None
        case NodePhase(node=node, phase=phase):
            return f"{node}: {phase}"
        case NodeReady(node=node, took_s=took_s, probe_ms=probe_ms):
            return f"{node}: {_ready(took_s, probe_ms)}"
        case NodeLost(node=node, reason=reason):
            return f"{node}: lost: {reason}"
        case NodeStopped(node=node, how=how, took_s=took_s):
            return f"{node}: {_stopped(how, took_s)}"
        case _:
            return None


def _with(state: RolloutView, name: str, node: NodeProgress) -> RolloutView:
    return replace(state, nodes={**state.nodes, name: node})


def _ready(took_s: float, probe_ms: float | None) -> str:
    answered = "" if probe_ms is None else f", a token through it took {measure.millis(probe_ms)}"
    return f"online after {measure.age(took_s)}{answered}"


def _stopped(how: str, took_s: float) -> str:
    return "was not running" if how == "already" else f"{how} in {measure.age(took_s)}"


def _line(label: str, node: NodeProgress, bar: int, symbols: Symbols) -> Text:
    if node.phase == "ready":
        return Text.assemble((f"{symbols.tick} ", "green"), label, "  ", node.note)
    if node.phase == "lost":
        return Text.assemble((f"{symbols.cross} ", "bold red"), label, "  ", ("lost: ", "bold red"), node.note)
    if node.phase == "stopped":
        return Text.assemble((f"{symbols.tick} ", "dim"), label, "  ", (node.note, "dim"))
    text = Text.assemble("  ", label, "  ", (node.phase, "cyan"))
    if node.phase == "online":
        text.append(", waiting for its record in the DHT and a first token", style="dim")
    elif node.total:
        full = bar * node.done // node.total
        text.append(f"  {symbols.bar * full}", style="cyan")
        text.append(symbols.rule * (bar - full), style="dim")
        text.append(f"  block {node.done} of {node.total}")
    elif node.note:
        text.append(f"  {node.note}", style="dim")
    return text
