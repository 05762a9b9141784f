"""A host in memory, for tests of whatever stands on a transport: nodes start, become ready and end as told.

A `survey` moves every running node one phase on if time has passed since the last one, so that code which waits in a
loop sees a start from its beginning to its end without a process, a file or a second of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from swarmctl import __version__, build
from swarmctl.blocks import NodeName, PeerId
from swarmctl.clock import Clock
from swarmctl.errors import HostUnreachable, Locked
from swarmctl.processes import ProcessSeen
from swarmctl.store import Launch, Layout, Observation, ObservedServer, Progress, Record
from swarmctl.transport.base import KILLED, AgentFacts, Completed, HostedNode, LogChunk, LogLine, LogPosition, Order
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.oplock import LockNote

PHASES = ("starting", "loading", "joining", "online")
_RECORD_LIVES_S = 30.0


def identity_of(path: str) -> PeerId:
    """The peer id that the fake gives to a key file, from the name of the node's folder."""
    return PeerId(f"Qm{path.rsplit('/', 2)[-2]}")


@dataclass
class _Node:
    launch: Launch
    record: Record | None
    moved_at_s: float
    phase: int = 0
    lines: list[LogLine] = field(default_factory=list)
    peer: PeerId | None = None

    @property
    def alive(self) -> bool:
        return self.record is not None and self.record.ended is None


class FakeTransport:
    """A `Transport` without a host. `commands` answers `run`; by default identities and ports are made up.

    `stuck` names phases that nodes do not get beyond; `doomed` gives the way in which nodes end when they start
    to load; those in `stock` answer no heartbeat of ours. `neighbours`: the hosts whose servers bootstrap peers here
    see. `remembered_s`: for how long the DHT goes on showing a server that was killed.
    """

    def __init__(
        self, layout: Layout, clock: Clock, *, commands: Callable[[Sequence[str]], Completed] | None = None
    ) -> None:
        self.layout = layout
        self.commands_run: list[tuple[str, ...]] = []
        self.stuck: dict[NodeName, str] = {}
        self.doomed: dict[NodeName, str] = {}
        self.stock: set[NodeName] = set()
        self._clock = clock
        self._commands = commands or _answer
        self._nodes: dict[NodeName, _Node] = {}
        self._ticks = 100
        self.neighbours: tuple[FakeTransport, ...] = (self,)
        self.remembered_s = 0.0
        self._has_lock = False
        self._entries: list[Entry] = []
        self.lock_note: LockNote | None = None
        self.away: str | None = None
        self.skew_s = 0.0

    def facts(self) -> AgentFacts:
        """See `Transport`; the version is this one, the clock off by `skew_s`."""
        self._be_there()
        return AgentFacts(
            version=__version__,
            build=build.digest(),
            python="python",
            python_version="3.11.0",
            hostname="fake",
            user="nobody",
            now=self._clock.now().timestamp() + self.skew_s,
            state=str(self.layout.state),
            run=str(self.layout.run),
        )

    def close(self) -> None:
        """See `Transport`."""
        self.release_lock()

    def _be_there(self) -> None:
        """Fail if the host is `away`, which says why."""
        if self.away is not None:
            raise HostUnreachable(self.away)

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """See `Transport`."""
        self._be_there()
        self.commands_run.append(tuple(argv))
        return self._commands(argv)

    def survey(self, names: Sequence[NodeName] | None = None) -> tuple[HostedNode, ...]:
        """See `Transport`; everything that runs moves one phase on if time has passed."""
        self._be_there()
        for name, node in self._nodes.items():
            self._advance(name, node)
        wanted = sorted(self._nodes) if names is None else [name for name in names if name in self._nodes]
        return tuple(self._look(name, self._nodes[name]) for name in wanted)

    def start_runner(self, launch: Launch) -> None:
        """See `Transport`."""
        self._be_there()
        name = NodeName(launch.node)
        before = self._nodes.get(name)
        if before is not None and before.alive:
            raise Locked(f"node {name} has a runner already")
        self._ticks += 1
        record = Record(
            node=launch.node,
            kind=launch.kind,
            peer=launch.peer,
            port=launch.port,
            blocks=launch.blocks,
            runner_pid=self._ticks,
            runner_started=self._ticks,
            child_pid=self._ticks + 10_000,
            child_started=self._ticks,
            started_at=self._clock.now().isoformat(),
            addresses=(launch.address,),
        )
        lines = before.lines if before is not None else []
        self._nodes[name] = _Node(
            launch=launch, record=record, moved_at_s=self._clock.monotonic(), lines=lines, peer=launch.peer
        )
        self.log(name, f"started {launch.kind} {name}")

    def signal(self, node: NodeName, order: Order) -> bool:
        """See `Transport`; a node ends at once, and also what it announced unless it was killed."""
        self._be_there()
        if node not in self._nodes or not self._nodes[node].alive:
            return False
        self.end(node, KILLED if order is Order.KILL else "stopped", asked=order is not Order.KILL)
        return True

    def clear(self, node: NodeName, *, purge: bool = False) -> tuple[str, ...]:
        """See `Transport`."""
        self._be_there()
        known = self._nodes.get(node)
        if known is None:
            return ()
        if known.alive:
            return (f"the runner of {node} is still there",)
        if purge:
            del self._nodes[node]
        else:
            known.record = None
        return ()

    def read_log(
        self,
        node: NodeName,
        *,
        after: LogPosition | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """See `Transport`."""
        self._be_there()
        if node not in self._nodes:
            return LogChunk(entries=(), position=after)
        lines = self._nodes[node].lines
        if after is not None:
            entries = lines[after.offset :]
        else:
            recent = [line for line in lines if since is None or (line.at is not None and line.at >= since)]
            entries = recent[max(0, len(recent) - tail) :] if tail is not None else recent
        return LogChunk(entries=tuple(entries), position=LogPosition(file=1, offset=len(lines)))

    def take_lock(self, note: LockNote) -> LockNote | None:
        """See `Transport`; a test puts another operator's note into `lock_note`."""
        self._be_there()
        if self.lock_note is not None:
            return self.lock_note
        self.lock_note, self._has_lock = note, True
        return None

    def has_lock(self) -> bool:
        """See `Transport`."""
        self._be_there()
        return self._has_lock and self.lock_note is not None

    def release_lock(self) -> None:
        """See `Transport`."""
        if self._has_lock:
            self.lock_note, self._has_lock = None, False

    def read_lock(self) -> LockNote | None:
        """See `Transport`."""
        self._be_there()
        return self.lock_note

    def break_lock(self) -> LockNote | None:
        """See `Transport`."""
        broken, self.lock_note = self.lock_note, None
        return broken

    def append_events(self, entries: Sequence[Entry]) -> None:
        """See `Transport`."""
        self._be_there()
        self._entries.extend(entries)

    def read_events(self, offset: int = 0) -> EntryChunk:
        """See `Transport`; an offset is a number of entries here."""
        self._be_there()
        return EntryChunk(entries=tuple(self._entries[offset:]), offset=len(self._entries))

    def drop_swarm(self) -> None:
        """See `Transport`."""
        self._be_there()
        self._entries.clear()

    def end(self, node: NodeName, ended: str, *, asked: bool = False) -> None:
        """Let a node end in this way."""
        known = self._nodes[node]
        if known.record is not None:
            moment = self._clock.now().isoformat()
            known.record = replace(known.record, ended=ended, ended_at=moment, asked_to_stop=asked)
        self.log(node, ended)

    def give_key(self, node: NodeName, peer: PeerId | None) -> None:
        """Put another key in a node's place, as somebody does who copies files."""
        self._nodes[node].peer = peer

    def log(self, node: NodeName, line: str) -> None:
        """Let a node write a line."""
        self._nodes[node].lines.append(LogLine(at=self._clock.now().timestamp() + self.skew_s, text=line))

    def _advance(self, name: NodeName, node: _Node) -> None:
        now_s = self._clock.monotonic()
        if not node.alive or now_s <= node.moved_at_s:
            return
        node.moved_at_s = now_s
        if PHASES[node.phase] != self.stuck.get(name) and node.phase < len(PHASES) - 1:
            node.phase += 1
        if node.phase > 0 and name in self.doomed:
            self.end(name, self.doomed[name])

    def _look(self, name: NodeName, node: _Node) -> HostedNode:
        record = node.record
        seen: tuple[ProcessSeen, ...] = ()
        if record is not None and node.alive:
            seen = (_process(record.runner_pid, 1), _process(record.child_pid or 0, record.runner_pid))
        bootstrap = node.launch.kind == "bootstrap"
        return HostedNode(
            name=name,
            launch=node.launch,
            record=record,
            progress=Progress(phase=PHASES[node.phase]) if node.alive else None,
            observation=self._observe(name) if bootstrap and record is not None and node.phase > 0 else None,
            peer=node.peer,
            held=node.alive,
            runner_alive=node.alive,
            processes=seen,
        )

    def _observe(self, observer: NodeName) -> Observation:
        seen = tuple(server for host in self.neighbours for server in host.announced())
        return Observation(observer=observer, written_at=self._clock.now().timestamp(), servers=seen)

    def announced(self) -> tuple[ObservedServer, ...]:
        """What the servers of this host say of themselves in the DHT."""
        now = self._clock.now().timestamp()
        servers = []
        for node in self._nodes.values():
            if node.launch.blocks is None or not self._is_announced(node):
                continue
            online = PHASES[node.phase] == "online"
            blocks = node.launch.block_range
            servers.append(
                ObservedServer(
                    peer=node.launch.peer,
                    state="ONLINE" if online else "JOINING",
                    start_block=blocks.start,
                    end_block=blocks.end,
                    throughput=1.0,
                    expires_at=now + _RECORD_LIVES_S,
                    seen_at=now,
                    probed_at=now if online else None,
                    probe_ok=True if online else None,
                    probe_ms=5.0 if online else None,
                    ours=NodeName(node.launch.node) not in self.stock if online else None,
                )
            )
        return tuple(servers)

    def _is_announced(self, node: _Node) -> bool:
        if node.phase < PHASES.index("joining") or node.record is None:
            return False
        if node.alive:
            return True
        # Whoever stops in good order takes its records back.
        ended_at = datetime.fromisoformat(node.record.ended_at) if node.record.ended_at else self._clock.now()
        ago_s = (self._clock.now() - ended_at).total_seconds()
        return not node.record.asked_to_stop and ago_s < self.remembered_s


def _process(pid: int, parent: int) -> ProcessSeen:
    return ProcessSeen(pid=pid, started=pid, parent=parent, group=pid, command="fake", cpu_s=0.0, rss_bytes=0)


def _answer(argv: Sequence[str]) -> Completed:
    if argv[0] == "mkdir":
        return Completed(code=0, stdout="", stderr="")
    if "swarmctl.upstream.identity" in argv:
        paths = argv[argv.index("swarmctl.upstream.identity") + 1 :]
        return Completed(code=0, stdout="".join(f"{path} {identity_of(path)}\n" for path in paths), stderr="")
    if "swarmctl.ports" in argv:
        wanted = argv[argv.index("swarmctl.ports") + 2 :]
        ports = [port if port != "0" else str(40_000 + place) for place, port in enumerate(wanted)]
        return Completed(code=0, stdout="".join(f"{port}\n" for port in ports), stderr="")
    return Completed(code=127, stdout="", stderr=f"{argv[0]}: No such file or directory\n")
