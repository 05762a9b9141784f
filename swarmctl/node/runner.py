"""One node's runner: starts the child program, writes down what it started, and ends with nothing left of it.

Everything the child starts stays below the runner: the child is tethered to it (`swarmctl.tether`), has a process
group of its own, and orphans are handed to the runner by the kernel instead of to init. One thread waits for signals;
a second one copies the child's output into the log.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from swarmctl import ports, processes, scratch, store, tether
from swarmctl.node import child
from swarmctl.node.log import Pump, RotatingLog
from swarmctl.store import Launch, NodeFiles, Record

# A petals server announces OFFLINE at once and ends in about a second; on a machine under full load it took eight.
GRACE_S = 15.0
_SWEEP_S = 5.0
_AWAITED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_RESTORED = (*_AWAITED, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT)

STOPPED = "stopped"


class Runner:
    """Runs one node once. The caller holds the node's lock and stands in its folder.

    `child` replaces the command line of the child program. `grace_s`: from SIGTERM to SIGKILL.
    """

    def __init__(
        self,
        *,
        launch: Launch,
        files: NodeFiles,
        child: Sequence[str] | None,
        log: RotatingLog,
        grace_s: float = GRACE_S,
    ) -> None:
        self._launch = launch
        self._files = files
        self._child = child
        self._log = log
        self._grace_s = grace_s
        self._status: int | None = None
        self._pump: Pump | None = None
        pid = os.getpid()
        self._record = Record(
            node=launch.node,
            kind=launch.kind,
            peer=launch.peer,
            port=launch.port,
            blocks=launch.blocks,
            runner_pid=pid,
            runner_started=processes.start_of(pid),
            child_pid=None,
            child_started=None,
            started_at=_now(),
            addresses=(launch.address,),
        )

    def run(self) -> int:
        """Run to the end; returns the exit status of the runner."""
        # Blocked, so that each is met in `_supervise` and none is lost; the child gets them unblocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tether.adopt_orphans()
        self._write(self._record)
        for left in (self._files.progress, self._files.observed):
            left.unlink(missing_ok=True)
        refusal = self._refusal()
        if refusal is None:
            self._start()
            ended = self._supervise()
        else:
            ended = refusal
        if self._pump is not None and not self._pump.finish(_SWEEP_S):
            self._log.say("a process outside the node still holds its output open; what it writes is lost")
        scratch.sweep(self._files.sockets)
        self._log.say(ended)
        self._write(replace(self._record, ended=ended, ended_at=_now()))
        return 0 if self._record.asked_to_stop else 1

    def _refusal(self) -> str | None:
        ip, port = self._launch.listen_ip, self._launch.port
        try:
            if ports.is_free(ip, port):
                return None
        except OSError as error:
            reason = f"{ip} is not an address of this machine" if error.errno == errno.EADDRNOTAVAIL else error.strerror
            return f"did not start: cannot listen on {ip}:{port}: {reason}"
        return f"did not start: port {port} on {ip} is taken by another program"

    def _start(self) -> None:
        self._files.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = tuple(self._child or child.command(self._launch, self._files))
        reading, writing = os.pipe()
        wrapped = tether.wrap(argv)
        pid = os.posix_spawn(
            wrapped[0],
            wrapped,
            child.environment(self._launch, self._files, os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, writing, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESTORED,
        )
        os.close(writing)
        self._pump = Pump(reading, self._log)
        # Not yet reaped, so its start time can be read even if it has ended: a zombie keeps its entry.
        seen = processes.read_process(pid)
        self._write(replace(self._record, child_pid=pid, child_started=seen.started if seen else 0, argv=argv))
        self._log.say(f"started {self._launch.kind} {self._launch.node} (pid {pid}): {' '.join(argv)}")

    def _supervise(self) -> str:
        kill_at: float | None = None
        while self._status is None:
            got = signal.sigtimedwait(_AWAITED, 1.0)
            self._reap()
            now = time.monotonic()
            if got is not None and got.si_signo != signal.SIGCHLD:
                # Asked a second time: somebody is in a hurry.
                kill_at = now if kill_at is not None else now + self._grace_s
                self._ask_child_to_stop()
            if kill_at is not None and now >= kill_at:
                break
        unanswered = self._status is None
        left = self._sweep()
        ended = self._how_it_ended(unanswered=unanswered)
        return f"{ended}; {left} of its processes could not be killed" if left else ended

    def _ask_child_to_stop(self) -> None:
        if not self._record.asked_to_stop:
            self._write(replace(self._record, asked_to_stop=True))
            self._log.say("asked to stop")
        if self._status is None and self._record.child_pid is not None:
            os.kill(self._record.child_pid, signal.SIGTERM)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._record.child_pid:
                self._status = status

    def _sweep(self) -> int:
        """Kill what is left of the group, and orphans that were handed to this process; returns how many resist."""
        deadline = time.monotonic() + _SWEEP_S
        while True:
            table = processes.read_processes()
            group = processes.members(
                table, self._record.child_pid, self._record.child_started, mark=str(self._files.folder)
            )
            left = {*group, *processes.below(table, self._record.runner_pid)}
            processes.kill(tuple(left))
            self._reap()
            if not left or time.monotonic() >= deadline:
                return len(left)
            time.sleep(0.01)

    def _how_it_ended(self, *, unanswered: bool) -> str:
        if self._record.asked_to_stop:
            return f"killed after {self._grace_s:g} s without an answer to SIGTERM" if unanswered else STOPPED
        order = store.read_kill_order(self._files)
        if order is not None and (order.child_pid, order.child_started) == (
            self._record.child_pid,
            self._record.child_started,
        ):
            return order.reason
        code = os.waitstatus_to_exitcode(self._status or 0)
        if code >= 0:
            return f"exited with code {code}"
        return f"killed by signal {-code} ({signal.Signals(-code).name})"

    def _write(self, record: Record) -> None:
        self._record = record
        store.write_json(self._files.record, record)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
