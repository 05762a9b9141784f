"""The transport to this very machine."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import threading
from collections.abc import Sequence

from swarmctl.blocks import NodeName
from swarmctl.errors import DeadlineExceeded
from swarmctl.store import Launch, Layout
from swarmctl.transport import hosted, logfile
from swarmctl.transport.base import Completed, HostedNode, LogChunk, LogPosition, Order
from swarmctl.transport.hosted import Runtime


class LocalTransport:
    """This machine, as a `Transport`."""

    def __init__(self, layout: Layout, runtime: Runtime) -> None:
        self.layout = layout
        self._runtime = runtime
        self._started: set[int] = set()
        self._guard = threading.Lock()

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
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signals.SIGKILL)
            _, stderr = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise DeadlineExceeded(
                f"{argv[0]} did not end within {timeout_s:g} s", reasons=stderr.splitlines()[-3:]
            ) from None
        return Completed(code=process.returncode, stdout=stdout, stderr=stderr)

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

    def read_log(self, node: NodeName, *, after: LogPosition | None = None, tail: int | None = None) -> LogChunk:
        """See `Transport`."""
        return logfile.read(self.layout.node(node).log, after=after, tail=tail)

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
