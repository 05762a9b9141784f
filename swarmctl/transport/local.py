"""The transport to this very machine."""

from __future__ import annotations

import getpass
import os
import platform
import signal as signals
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from swarmctl import __version__, build
from swarmctl.blocks import NodeName
from swarmctl.errors import DeadlineExceeded
from swarmctl.store import Launch, Layout
from swarmctl.transport import hosted, journal, logfile, oplock
from swarmctl.transport.base import AgentFacts, Completed, HostedNode, LogChunk, LogPosition, Order
from swarmctl.transport.hosted import Runtime
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.oplock import HeldLock, LockNote


class LocalTransport:
    """This machine, as a `Transport`."""

    def __init__(self, layout: Layout, runtime: Runtime) -> None:
        self._layout = layout
        self._runtime = runtime
        self._started: set[int] = set()
        self._commands: set[int] = set()
        self._held: HeldLock | None = None
        self._guard = threading.Lock()

    @property
    def layout(self) -> Layout:
        """See `Transport`."""
        return self._layout

    def facts(self) -> AgentFacts:
        """See `Transport`."""
        return AgentFacts(
            version=__version__,
            build=build.digest(),
            python=self._runtime.python,
            python_version=platform.python_version(),
            hostname=socket.gethostname(),
            user=user(),
            now=time.time(),
            state=str(self._layout.state),
            run=str(self._layout.run),
        )

    def close(self) -> None:
        """See `Transport`; commands that still run are killed."""
        self.release_lock()
        with self._guard:
            for group in self._commands:
                os.killpg(group, signals.SIGKILL)

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """See `Transport`."""
        try:
            # A session of its own, so that a time-out reaches what the command has started too.
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            return Completed(code=127, stdout="", stderr=f"{argv[0]}: {error.strerror}\n")
        # Its number is not used again before it is reaped, which is after it was taken out of the set.
        with self._guard:
            self._commands.add(process.pid)
        try:
            stdout, stderr = self._outputs(process, stdin, timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signals.SIGKILL)
            _, stderr = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise DeadlineExceeded(
                f"{argv[0]} did not end within {timeout_s:g} s", reasons=stderr.splitlines()[-3:]
            ) from None
        return Completed(code=process.returncode, stdout=stdout, stderr=stderr)

    def _outputs(self, process: subprocess.Popen[str], stdin: str | None, timeout_s: float) -> tuple[str, str]:
        try:
            return process.communicate(stdin, timeout=timeout_s)
        finally:
            with self._guard:
                self._commands.discard(process.pid)

    def survey(self, names: Sequence[NodeName] | None = None) -> tuple[HostedNode, ...]:
        """See `Transport`."""
        self._reap()
        return hosted.survey(self.layout, names)

    def start_runner(self, launch: Launch) -> None:
        """See `Transport`."""
        pid = hosted.start(self.layout, launch, self._runtime)
        with self._guard:
            self._started.add(pid)

    def signal(self, node: NodeName, order: Order) -> bool:
        """See `Transport`."""
        return hosted.signal(self.layout, node, order)

    def clear(self, node: NodeName, *, purge: bool = False) -> tuple[str, ...]:
        """See `Transport`."""
        self._reap()
        return hosted.clear(self.layout, node, purge=purge)

    def read_log(
        self,
        node: NodeName,
        *,
        after: LogPosition | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """See `Transport`."""
        return logfile.read(self.layout.node(node).log, after=after, tail=tail, since=since)

    def take_lock(self, note: LockNote) -> LockNote | None:
        """See `Transport`."""
        taken = oplock.take(self.layout, note)
        if isinstance(taken, LockNote):
            return taken
        self._held = taken
        return None

    def has_lock(self) -> bool:
        """See `Transport`."""
        return self._held is not None and self._held.is_ours()

    def beat(self) -> None:
        """Note that the operator who holds the lock has been heard of."""
        if self._held is not None:
            self._held.beat()

    def release_lock(self) -> None:
        """See `Transport`."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def read_lock(self) -> LockNote | None:
        """See `Transport`."""
        return oplock.read(self.layout)

    def break_lock(self) -> LockNote | None:
        """See `Transport`."""
        return oplock.break_it(self.layout)

    def append_events(self, entries: Sequence[Entry]) -> None:
        """See `Transport`."""
        journal.append(self.layout, tuple(entries))

    def read_events(self, offset: int = 0) -> EntryChunk:
        """See `Transport`."""
        return journal.read(self.layout, offset)

    def drop_swarm(self) -> None:
        """See `Transport`."""
        hosted.drop_swarm(self.layout)

    def _reap(self) -> None:
        # Runners that this process started are its children until it ends; an ended one stays a zombie otherwise.
        with self._guard:
            for pid in tuple(self._started):
                try:
                    done, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    done = pid
                if done:
                    self._started.discard(pid)


def user() -> str:
    """The name of this process's user; its number if it has no name here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
