"""Waiting for nodes to become ready: each step is told as an event, and a node that ends is waited for no longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import DeadlineExceeded, HostUnreachable, NodeFailed, PartialFailure, SwarmctlError
from swarmctl.events import Event, EventSink, NodeLost, NodePhase, NodeReady, NodeStarted
from swarmctl.operations.site import Hosted, Site, Survey
from swarmctl.operations.status import snapshot_of, why_down
from swarmctl.poll import Pending, wait_until
from swarmctl.snapshot import NodeFacts, NodeState, ProcessFact, Snapshot

LOG_TAIL = 15
_LINES_OF_MANY = 5
_POLL_S = 0.2
_PATIENCE_S = 120.0
# Long enough for a line that was lost to be opened again, and for the host to be asked once more.
_AWAY_S = 20.0


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
    """Waits for nodes. One watch serves a whole `up`, so that nothing is told twice.

    `failures`: the nodes that will not become ready, in the order in which that was found; `conclude` raises for them.
    """

    timeline: Timeline
    deadline_s: float
    failures: dict[NodeName, SwarmctlError] = field(default_factory=dict)
    _told: dict[NodeName, _Waiting] = field(default_factory=dict)
    _ready: set[NodeName] = field(default_factory=set)
    _away: dict[HostName, float] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds until the operation's deadline; never below zero."""
        return max(0.0, self.deadline_s - self.timeline.since_s())

    def until_ready(self, names: Iterable[NodeName], *, what: str) -> Snapshot:
        """Wait until each of these nodes is ready or has failed, and return the picture in which they are.

        Raises:
            DeadlineExceeded: when the operation's deadline passes; names each node that is not ready, and its state.
        """
        site = self.timeline.site
        wanted = tuple(names)

        def observe() -> Snapshot | Pending:
            hosted = site.survey()
            snapshot = snapshot_of(site.spec, hosted, hosted.at, unreachable=hosted.unreachable)
            open_ = [name for name in wanted if name not in self.failures]
            waiting = tuple(line for name in open_ if (line := self._look(name, hosted, snapshot)))
            return Pending(reasons=waiting + snapshot.warnings) if waiting else snapshot

        try:
            return wait_until(observe, what=what, within_s=self.left_s, clock=site.clock, every_s=_POLL_S)
        except DeadlineExceeded as error:
            behind = [name for name in wanted if name not in self._ready and name not in self.failures]
            raise DeadlineExceeded(
                f"gave up after {self.deadline_s:g} s waiting for {', '.join(behind)}",
                reasons=error.reasons,
                hints=_after_giving_up(behind[0], self.deadline_s),
                context={"nodes": behind, "deadline_s": self.deadline_s},
            ) from None

    def conclude(self) -> None:
        """Raise for what has failed; what has not goes on.

        Raises:
            SwarmctlError: the failure of the only node that has one.
            PartialFailure: one line a node, and its last log lines, for several.
        """
        if not self.failures:
            return
        if len(self.failures) == 1:
            (failure,) = self.failures.values()
            raise failure
        reasons = [line for failure in self.failures.values() for line in (failure.message, *_last(failure.reasons))]
        names = list(self.failures)
        raise PartialFailure(
            f"{len(names)} nodes did not become ready: {', '.join(names)}",
            reasons=reasons,
            hints=["swarmctl up", f"swarmctl logs {names[0]}"],
            context={"nodes": names},
        )

    def _look(self, name: NodeName, survey: Survey, snapshot: Snapshot) -> str | None:
        """What the node still lacks, or None if it is ready, or has failed."""
        away = self._is_away(name, survey)
        if away is not None:
            return away if name not in self.failures else None
        hosted = survey.get(name)
        if hosted is None:
            return f"{name}: nothing is known of it"
        if hosted.node.dying or hosted.node.backing_off:
            return f"{name}: {why_down(hosted.node, self.timeline.site.clock.now())}"
        if not hosted.node.running:
            self._lost(name, hosted, hosted.node.ended or "its runner ended before it could write a record")
            return None
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

    def _is_away(self, name: NodeName, survey: Survey) -> str | None:
        host = self.timeline.site.host_of(name)
        error = survey.errors.get(host) if host is not None else None
        if host is None or error is None:
            if host is not None:
                self._away.pop(host, None)
            return None
        since_s = self._away.setdefault(host, self.timeline.since_s())
        if self.timeline.since_s() - since_s > _AWAY_S:
            self.fail(name, error)
        return f"{name}: {error.message}"

    def fail(self, name: NodeName, error: SwarmctlError) -> None:
        """Give a node up for a reason that lies outside it."""
        self.failures[name] = error
        self.timeline.emit(NodeLost, node=name, reason=error.message, log_tail=())

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

    def _lost(self, name: NodeName, hosted: Hosted, ended: str) -> None:
        try:
            tail = self.timeline.site.transport(hosted.host).read_log(name, tail=LOG_TAIL).lines
        except HostUnreachable as error:
            tail = (f"its log cannot be read: {error.message}",)
        self.timeline.site.note("lost", node=name, host=hosted.host, after=ended)
        self.timeline.emit(NodeLost, node=name, reason=ended, log_tail=tail)
        self.failures[name] = NodeFailed(
            f"node {name} on {hosted.host} ended before it was ready: {ended}",
            reasons=tail,
            hints=[f"swarmctl logs {name}", *_advice(ended), "the others go on; then continue with: swarmctl up"],
            context={"node": name, "host": hosted.host, "ended": ended},
        )


def _last(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines[-_LINES_OF_MANY:]]


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
