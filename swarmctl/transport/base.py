"""What swarmctl needs of a host, whichever way it is reached: six methods, each one round trip.

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
from swarmctl.store import Launch, Layout, Observation, Progress, Record

KILLED = "killed by swarmctl (SIGKILL)"
"""How the record of a node reads that was killed on purpose."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended. `code` is 127 if there is no such program, and -N if signal N ended it."""

    code: int
    stdout: str
    stderr: str


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
        return self.runner_alive and self.child_gone and self.record is not None and self.record.ended is None

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
        """Why it ended; None while it runs, if it never did, and while its runner finds out."""
        if self.record is None or self.running or self.dying:
            return None
        return self.record.ended or "its runner is gone: killed, or the host was restarted"


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """Where reading stopped: which file (a rotated log is another one), and the byte after the last whole line."""

    file: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Whole lines of a node's log, without line ends, and where to go on."""

    lines: tuple[str, ...]
    position: LogPosition | None


class Transport(Protocol):
    """One host.

    Methods block and may be called from several threads. All raise `HostUnreachable` if the host does not answer.
    """

    layout: Layout
    """Where the swarm's files are on that host."""

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

    def read_log(self, node: NodeName, *, after: LogPosition | None = None, tail: int | None = None) -> LogChunk:
        """Lines after a position, or the last `tail` lines (None: all) of the log and the one set aside before it."""
