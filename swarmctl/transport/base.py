"""What swarmctl needs of a host, whichever way it is reached; each method is one round trip.

Commands are argument lists, never shell text. Whatever must hold across several files and processes of a node (its
lock, a pid with its start time) is done by one method on the host itself, so that distance opens no race.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from swarmctl.blocks import NodeName, PeerId
from swarmctl.processes import ProcessSeen
from swarmctl.store import Health, Launch, Layout, Observation, Progress, Record
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.oplock import LockNote

KILLED = "killed by swarmctl (SIGKILL)"
"""How the record of a node reads that was killed on purpose."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended. `code` is 127 if there is no such program, and -N if signal N ended it."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class AgentFacts:
    """What a host says of itself, and of the swarmctl that is installed there.

    `build` is `swarmctl.build.digest`; `python` runs swarmctl's programs there; `now`: UTC epoch seconds by the host's
    own clock, when it was asked; `state` and `run` are the folders of all swarms.
    """

    version: str
    build: str
    python: str
    python_version: str
    hostname: str
    user: str
    now: float
    state: str
    run: str


class Order(Enum):
    """What a node can be told. STOP: leave in good order. KILL: crash, for drills; the record will say so.

    END: SIGKILL for runner and child, for a node that does not follow STOP.
    """

    STOP = "stop"
    KILL = "kill"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class HostedNode:
    """What a host knows of one node at one moment.

    `held`: a runner has the node's lock; it may not have written its record yet. `runner_alive`: the record's runner
    lives. `child_gone`: the child that the record names is dead, so that nobody serves any more, whatever its runner
    still has to clear up. `processes`: runner, child and everything below, without zombies. `peer`: from the key's
    sidecar.
    """

    name: NodeName
    launch: Launch | None = None
    record: Record | None = None
    progress: Progress | None = None
    observation: Observation | None = None
    health: Health | None = None
    peer: PeerId | None = None
    held: bool = False
    runner_alive: bool = False
    child_gone: bool = False
    processes: tuple[ProcessSeen, ...] = ()

    @property
    def running(self) -> bool:
        """True from the moment a runner is on its way until the node has ended; leftovers count as running."""
        if self.record is None:
            return self.held or bool(self.processes)
        if self.runner_alive:
            return self.record.ended is None and not self.child_gone
        return bool(self.processes)

    @property
    def dying(self) -> bool:
        """True from the child's death until its runner has written down why it died."""
        waits = self.record is None or self.record.ended is not None or self.backing_off
        return self.runner_alive and self.child_gone and not waits

    @property
    def backing_off(self) -> bool:
        """True while the runner waits for the moment to start the child again; it does not run then."""
        record = self.record
        return self.runner_alive and record is not None and record.ended is None and record.next_start_at is not None

    @property
    def orphaned(self) -> bool:
        """True if the runner is gone and something that it started is not."""
        return bool(self.processes) and not self.held and not self.runner_alive

    @property
    def settled(self) -> bool:
        """True if nothing of the node is left and nothing is on its way."""
        return not self.held and not self.processes

    @property
    def ended(self) -> str | None:
        """Why it ended; None while it runs, if it never did, while its runner finds out, or is to start it again."""
        if self.record is None or self.running or self.dying or self.backing_off:
            return None
        return self.record.ended or "its runner is gone: killed, or the host was restarted"


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a node's log, without its end and its time.

    `at`: epoch seconds by the host's clock, of the line itself or else of the last one before it that has a time.
    """

    at: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """Where reading stopped: which file (a rotated log is another one), and the byte after the last whole line.

    `at`: the time of the line that ends there.
    """

    file: int
    offset: int
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Whole lines of a node's log, and where to go on.

    `more`: there is more to read at once. `unfinished`: what stands after the last whole line; it comes again as a
    whole line when it has ended.
    """

    entries: tuple[LogLine, ...]
    position: LogPosition | None
    more: bool = False
    unfinished: LogLine | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The texts of the whole lines."""
        return tuple(entry.text for entry in self.entries)


class Transport(Protocol):
    """One host.

    Methods block and may be called from several threads. All raise `HostUnreachable` if the host does not answer.
    """

    @property
    def layout(self) -> Layout:
        """Where the swarm's files are on that host."""

    def facts(self) -> AgentFacts:
        """What the host says of itself, asked now."""

    def close(self) -> None:
        """Let go of the host: of its lock, if it is held, and of the connection."""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """Run a command to its end.

        Raises:
            DeadlineExceeded: after `timeout_s`; the command and what it started have been killed.
        """

    def survey(self, names: Sequence[NodeName] | None = None) -> tuple[HostedNode, ...]:
        """These nodes, or all that have files here, with their processes; a name without files is left out."""

    def start_runner(self, launch: Launch) -> None:
        """Write the launch file and start a runner that outlives the caller; returns before the child runs.

        Raises:
            Locked: when the node has a runner already; nothing is changed.
        """

    def signal(self, node: NodeName, order: Order) -> bool:
        """Pass an order on; False if there was nobody to take it (yet)."""

    def clear(self, node: NodeName, *, purge: bool = False) -> tuple[str, ...]:
        """Verify that nothing of the node is left, then remove its record and sockets; `purge` removes all its files.

        Returns what is still there, one line each, and then nothing was removed.
        """

    def read_log(
        self,
        node: NodeName,
        *,
        after: LogPosition | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """Lines after a position; without one, of the log and the one set aside before it.

        `tail` and `since` (UTC epoch seconds) say where to begin where there is no position: at the first line that is
        not older, and not more than `tail` lines from the end, the unfinished one among them. One call returns half a
        megabyte at most; then `more` is set.
        """

    def take_lock(self, note: LockNote) -> LockNote | None:
        """Take the swarm's operator lock on this host, until `release_lock`, `close`, or the end of this process.

        Returns None, or the note of the one who has it.
        """

    def has_lock(self) -> bool:
        """True if this transport has taken the lock, and nobody has broken it since."""

    def release_lock(self) -> None:
        """Let go of the lock; may be called without it."""

    def read_lock(self) -> LockNote | None:
        """Who has the swarm's operator lock on this host, or None if nobody has."""

    def break_lock(self) -> LockNote | None:
        """Take the lock away from whoever has it; returns who that was."""

    def append_events(self, entries: Sequence[Entry]) -> None:
        """Add to the swarm's log of events on this host."""

    def read_events(self, offset: int = 0) -> EntryChunk:
        """The swarm's events on this host, from a byte of the log on."""

    def drop_swarm(self) -> None:
        """Remove the swarm's folder, if no node has files in it: the lock that is held, and the log of events."""
