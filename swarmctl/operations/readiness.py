"""Waiting for nodes to become ready: each step is told as an event, a death ends the wait at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from swarmctl.blocks import NodeName
from swarmctl.errors import DeadlineExceeded, NodeFailed
from swarmctl.events import Event, EventSink, NodeLost, NodePhase, NodeReady, NodeStarted
from swarmctl.operations.site import Hosted, Site
from swarmctl.operations.status import DYING, snapshot_of
from swarmctl.poll import Pending, wait_until
from swarmctl.snapshot import NodeFacts, NodeState, ProcessFact, Snapshot

LOG_TAIL = 15
_POLL_S = 0.2
_PATIENCE_S = 120.0


@dataclass
class Timeline:
    """The events of one operation, with the seconds since it began."""

    site: Site
    sink: EventSink
    began: float

    def emit(self, kind: type[Event], **fields: object) -> None:
        """Pass one event on."""
        self.sink(kind(at_s=self.since_s(), **fields))

    def since_s(self) -> float:
        """Seconds since the operation began."""
        return self.site.clock.monotonic() - self.began


@dataclass
class _Waiting:
    """What has been told of a node that is waited for."""

    started: bool = False
    phase: tuple[str, int, int] | None = None


@dataclass
class Watch:
    """Waits for nodes. One watch serves a whole `up`, so that nothing is told twice."""

    timeline: Timeline
    deadline_s: float
    _told: dict[NodeName, _Waiting] = field(default_factory=dict)
    _ready: set[NodeName] = field(default_factory=set)

    @property
    def left_s(self) -> float:
        """Seconds until the operation's deadline; never below zero."""
        return max(0.0, self.deadline_s - self.timeline.since_s())

    def until_ready(self, names: Iterable[NodeName], *, what: str) -> Snapshot:
        """Wait until all these nodes are ready, and return the picture in which they are.

        Raises:
            NodeFailed: as soon as one of them has ended; with its last log lines.
            DeadlineExceeded: when the operation's deadline passes; names each node that is not ready, and its state.
        """
        site = self.timeline.site
        wanted = tuple(names)

        def observe() -> Snapshot | Pending:
            hosted = site.survey()
            snapshot = snapshot_of(site.spec, hosted, site.clock.now())
            waiting = tuple(line for name in wanted if (line := self._look(name, hosted.get(name), snapshot)))
            return Pending(reasons=waiting + snapshot.warnings) if waiting else snapshot

        try:
            return wait_until(observe, what=what, within_s=self.left_s, clock=site.clock, every_s=_POLL_S)
        except DeadlineExceeded as error:
            behind = [name for name in wanted if name not in self._ready]
            raise DeadlineExceeded(
                f"gave up after {self.deadline_s:g} s waiting for {', '.join(behind)}",
                reasons=error.reasons,
                hints=_after_giving_up(behind[0], self.deadline_s),
                context={"nodes": behind, "deadline_s": self.deadline_s},
            ) from None

    def _look(self, name: NodeName, hosted: Hosted | None, snapshot: Snapshot) -> str | None:
        """What the node still lacks, or None if it is ready."""
        if hosted is None:
            return f"{name}: nothing is known of it"
        if hosted.node.dying:
            return f"{name}: {DYING}"
        if not hosted.node.running:
            self._lost(name, hosted, hosted.node.ended or "its runner ended before it could write a record")
        self._tell(name, hosted)
        server = next((node for node in snapshot.nodes if node.name == name), None)
        lacking = _server_lacks(server) if server is not None else _bootstrap_lacks(hosted)
        if lacking is not None:
            return f"{name}: {lacking}"
        if name not in self._ready:
            self._ready.add(name)
            probe_ms = server.probe.latency_ms if server and server.probe else None
            self.timeline.emit(NodeReady, node=name, took_s=self.timeline.since_s(), probe_ms=probe_ms)
        return None

    def _tell(self, name: NodeName, hosted: Hosted) -> None:
        told = self._told.setdefault(name, _Waiting())
        record, progress = hosted.node.record, hosted.node.progress
        if record is not None and not told.started:
            told.started = True
            self.timeline.emit(NodeStarted, node=name, pid=record.runner_pid, peer=record.peer, port=record.port)
        if progress is None:
            return
        phase = (progress.phase, progress.done, progress.total)
        if phase != told.phase:
            told.phase = phase
            self.timeline.emit(NodePhase, node=name, phase=phase[0], done=phase[1], total=phase[2])

    def _lost(self, name: NodeName, hosted: Hosted, ended: str) -> NoReturn:
        tail = self.timeline.site.transport(hosted.host).read_log(name, tail=LOG_TAIL).lines
        self.timeline.emit(NodeLost, node=name, reason=ended, log_tail=tail)
        raise NodeFailed(
            f"node {name} on {hosted.host} ended before it was ready: {ended}",
            reasons=tail,
            hints=[f"swarmctl logs {name}", *_advice(ended)],
            context={"node": name, "host": hosted.host, "ended": ended},
        )


def _after_giving_up(name: NodeName, waited_s: float) -> list[str]:
    # Twice as long, and never less than a start from a cold disk may take.
    longer = f"swarmctl up --timeout {max(_PATIENCE_S, 2 * waited_s):.0f}"
    hints = [f"they go on; wait longer with: {longer}", f"swarmctl logs {name}"]
    # A node that had no time is not one that hangs.
    return [*hints, f"if it hangs: swarmctl restart {name}"] if waited_s >= _PATIENCE_S else hints


def _advice(ended: str) -> tuple[str, ...]:
    # Nobody else kills with 9 while a node starts.
    if "SIGKILL" in ended:
        return ("the kernel may have run out of memory; `dmesg` says so",)
    return ()


def _server_lacks(facts: NodeFacts) -> str | None:
    if facts.state is NodeState.ONLINE:
        return None
    if facts.state is NodeState.UNRESPONSIVE and facts.probe is not None:
        return f"ONLINE in the DHT, but the probe failed: {facts.probe.reason or 'no answer'}"
    if facts.state is NodeState.MISPLACED and facts.announcement is not None:
        return f"announces blocks {facts.announcement.blocks}, wanted are {facts.blocks}"
    return f"{facts.state.value}, {_phase(facts.process)}"


def _phase(process: ProcessFact) -> str:
    since = f" since {process.uptime_s:.0f} s" if process.uptime_s is not None else ""
    return f"phase {process.phase or 'starting'}{since}"


def _bootstrap_lacks(hosted: Hosted) -> str | None:
    node = hosted.node
    if not node.running or node.record is None:
        return "its runner is on its way"
    if node.progress is None or node.progress.phase != "online":
        return f"does not listen yet, phase {node.progress.phase if node.progress else 'starting'}"
    # `start` removes the last run's observation, so one that is there is of this run.
    return None if node.observation is not None else "listens, and has not observed the DHT yet"
