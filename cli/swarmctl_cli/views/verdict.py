"""The swarm in one word and one sentence, and the command that helps: the first lines of `status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from swarmctl.coverage import CoverageReport
from swarmctl.snapshot import BootstrapFacts, NodeFacts, NodeState, Snapshot
from swarmctl_cli.views import measure


class Health(str, Enum):
    """HEALTHY: the policy is met and every node is up. DEGRADED: it works, less is up than wanted. DOWN: a gap."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"


STYLES = {Health.HEALTHY: "bold green", Health.DEGRADED: "bold yellow", Health.DOWN: "bold red"}

_STARTABLE = (NodeState.STOPPED, NodeState.CRASHED, NodeState.STALE)
_ON_THE_WAY = (NodeState.STARTING, NodeState.JOINING, NodeState.UNPROBED, NodeState.UNOBSERVED)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`sentence` gives the reason for `health`; `hints` are commands, the most useful first."""

    health: Health
    sentence: str
    hints: tuple[str, ...] = ()


def judge(snapshot: Snapshot, report: CoverageReport, *, command: str = "swarmctl") -> Verdict:
    """The verdict of one moment. `command`: how the user calls the program, with the `-c` that was given."""
    gone = [peer for peer in snapshot.bootstraps if not peer.process.running]
    anything = any(node.process.running or node.state is NodeState.ONLINE for node in snapshot.nodes)
    if gone and len(gone) == len(snapshot.bootstraps) and anything:
        # What is served is not known, and nobody could use it: a client needs a bootstrap peer to find the servers.
        sentence = f"no bootstrap peer runs, so there is no way into the swarm; {_peers(gone)}"
        return Verdict(health=Health.DOWN, sentence=sentence, hints=(*_away(snapshot, command), f"{command} up"))
    missing = [node for node in snapshot.nodes if node.state is not NodeState.ONLINE]
    hints = _away(snapshot, command) + _hints(missing, all_missing=len(missing) == len(snapshot.nodes), command=command)
    sentence = coverage(report) + _names(missing)
    if gone and anything:
        sentence += f"; bootstrap {_peers(gone)}"
        startable = any(peer.process.unknown is None for peer in gone)
        hints = (
            *((f"{command} up",) if startable else ()),
            *(hint for hint in hints if not hint.startswith(f"{command} up")),
        )
    if report.gaps:
        return Verdict(health=Health.DOWN, sentence=sentence, hints=hints)
    if report.thin:
        help_of_file = (f"{command} verify redundancy --source config",)
        return Verdict(health=Health.DEGRADED, sentence=sentence, hints=hints or help_of_file)
    health = Health.DEGRADED if missing or (gone and anything) else Health.HEALTHY
    return Verdict(health=health, sentence=sentence, hints=hints)


def coverage(report: CoverageReport) -> str:
    """The worst that can be said of the blocks: those without a server, else those with too few, else how many."""
    if report.gaps:
        return f"blocks {', '.join(str(gap) for gap in report.gaps)} have no server"
    if report.thin:
        thin = (f"blocks {short.blocks} on {measure.count(short.replicas, report.by.value)}" for short in report.thin)
        return f"{'; '.join(thin)}, {report.minimum} wanted"
    return f"every block on >= {measure.count(min(report.replicas), report.by.value)}"


def _away(snapshot: Snapshot, command: str) -> tuple[str, ...]:
    """What to type where hosts do not answer."""
    silent = [peer.host for peer in snapshot.bootstraps if peer.process.unknown is not None]
    silent += [node.host for node in snapshot.nodes if node.process.unknown is not None]
    return (f"{command} host check {' '.join(dict.fromkeys(silent))}",) if silent else ()


def _names(missing: Sequence[NodeFacts]) -> str:
    if not missing:
        return ""
    by_state: dict[NodeState, list[str]] = {}
    for node in missing:
        by_state.setdefault(node.state, []).append(node.name)
    parts = [f"{measure.listing(names)} {state.value}" for state, names in by_state.items()]
    return f"; {', '.join(parts)}"


def _peers(gone: Sequence[BootstrapFacts]) -> str:
    return ", ".join(f"{peer.name} {peer.state}" for peer in gone)


def _hints(missing: Sequence[NodeFacts], *, all_missing: bool, command: str) -> tuple[str, ...]:
    startable = [node for node in missing if node.state in _STARTABLE]
    hints = []
    if startable:
        only = "" if all_missing else "".join(f" --only {node.name}" for node in startable)
        hints.append(f"{command} up{only}")
    sick = [node.name for node in missing if node.state in (NodeState.UNRESPONSIVE, NodeState.MISPLACED)]
    if sick:
        hints.append(f"{command} restart {' '.join(sick)}")
    crashed = [node.name for node in missing if node.state in (NodeState.CRASHED, NodeState.FLAPPING)]
    if crashed:
        hints.append(f"{command} logs {' '.join(crashed)}")
    if not hints and any(node.state in _ON_THE_WAY for node in missing):
        hints.append(f"{command} status --watch")
    return tuple(hints)
