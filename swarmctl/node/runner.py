"""One node's runner: starts the child program, writes down what it started, and ends with nothing left of it.

Everything the child starts stays below the runner: the child is tethered to it (`swarmctl.tether`), has a process
group of its own, and orphans are handed to the runner by the kernel instead of to init. One thread waits for signals;
a second one copies the child's output into the log.

A child that has ended by itself, or works no more (`node.vitals`), is started again after a while, within limits
(`node.restarts`). That ends when the runner is asked to stop, when somebody killed the child on purpose (a kill
order), at the limit, and at once if no child has ever come online: then something is wrong that will not pass.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from swarmctl import ports, processes, scratch, store, tether
from swarmctl.node import child
from swarmctl.node.log import Pump, RotatingLog
from swarmctl.node.restarts import FIRST_DELAY_S, WINDOW_S, Restarts
from swarmctl.node.vitals import SICK_S, Complaint, Vitals
from swarmctl.store import Launch, NodeFiles, Record

# A petals server announces OFFLINE at once and ends in about a second; on a machine under full load it took eight.
GRACE_S = 15.0
_SWEEP_S = 5.0
_LOOK_S = 1.0
_AWAITED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_RESTORED = (*_AWAITED, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT)

STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the runner waits, in seconds.

    `grace_s`: from SIGTERM to SIGKILL. `backoff_s`: before the first restart. `hung_s` (None: by the kind of node) and
    `sick_s`: see `node.vitals`.
    """

    grace_s: float = GRACE_S
    backoff_s: float = FIRST_DELAY_S
    hung_s: float | None = None
    sick_s: float = SICK_S


class Runner:
    """Runs one node. The caller holds the node's lock and stands in its folder.

    `child` replaces the command line of the child program.
    """

    def __init__(
        self,
        *,
        launch: Launch,
        files: NodeFiles,
        child: Sequence[str] | None,
        log: RotatingLog,
        patience: Patience | None = None,
    ) -> None:
        self._launch = launch
        self._files = files
        self._child = child
        self._log = log
        self._patience = patience or Patience()
        self._restarts = Restarts(launch.max_restarts, first_delay_s=self._patience.backoff_s)
        self._vitals = self._new_vitals()
        # Seconds of service of the children before this one, and whether any of them came online.
        self._served_s = 0.0
        self._has_served = False
        self._killed_on_purpose = False
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
        # Blocked, so that each is met by a `sigtimedwait` and none is lost; the child gets them unblocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tether.adopt_orphans()
        self._write(self._record)
        ended = self._live()
        self._log.say(ended)
        self._write(replace(self._record, ended=ended, ended_at=_now(), next_start_at=None))
        return 0 if self._record.asked_to_stop else 1

    def _live(self) -> str:
        """One child after the other; returns why there is no next one."""
        while True:
            ended = self._one_child()
            if self._is_final():
                return ended
            delay_s = self._restarts.after_crash(self._served_s)
            crashes, limit = self._restarts.lately(self._served_s), self._launch.max_restarts
            self._write(replace(self._record, crashes=crashes, last_ended=ended))
            if delay_s is None:
                return f"{ended}; given up after {limit} restarts within {WINDOW_S / 60:g} minutes of service"
            self._log.say(f"{ended}; starts again in {delay_s:g} s, restart {crashes} of {limit}")
            if not self._wait(delay_s):
                return STOPPED

    def _is_final(self) -> bool:
        if self._record.asked_to_stop or self._killed_on_purpose or self._launch.max_restarts == 0:
            return True
        return not self._has_served

    def _wait(self, delay_s: float) -> bool:
        """Let the time before the next start pass; False if asked to stop meanwhile."""
        at = datetime.now(timezone.utc) + timedelta(seconds=delay_s)
        self._write(replace(self._record, next_start_at=at.isoformat()))
        deadline = time.monotonic() + delay_s
        while (left_s := deadline - time.monotonic()) > 0:
            got = signal.sigtimedwait(_AWAITED, left_s)
            self._reap()
            if is_request(got):
                self._note_request()
                return False
        return True

    def _one_child(self) -> str:
        """Start a child, see it to its end, clear up after it; returns why it ended."""
        for left in (self._files.progress, self._files.observed, self._files.health):
            left.unlink(missing_ok=True)
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        self._start()
        ended = self._supervise()
        if self._pump is not None and not self._pump.finish(_SWEEP_S):
            self._log.say("a process outside the node still holds its output open; what it writes is lost")
        scratch.sweep(self._files.sockets)
        return ended

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
        pid, output = child.spawn(argv, child.environment(self._launch, self._files, os.environ), restored=_RESTORED)
        self._pump = Pump(output, self._log)
        self._status, self._vitals = None, self._new_vitals()
        # Not yet reaped, so its start time can be read even if it has ended: a zombie keeps its entry.
        seen = processes.read_process(pid)
        again = self._record.child_pid is not None
        self._write(
            replace(
                self._record,
                child_pid=pid,
                child_started=seen.started if seen else 0,
                argv=argv,
                started_at=_now(),
                restarts=self._record.restarts + again,
                next_start_at=None,
            )
        )
        self._log.say(f"started {self._launch.kind} {self._launch.node} (pid {pid}): {' '.join(argv)}")

    def _new_vitals(self) -> Vitals:
        patience = self._patience
        return Vitals(self._files, self._launch.kind, hung_s=patience.hung_s, sick_s=patience.sick_s)

    def _supervise(self) -> str:
        kill_at: float | None = None
        complaint: Complaint | None = None
        while self._status is None:
            got = signal.sigtimedwait(_AWAITED, _LOOK_S)
            self._reap()
            now = time.monotonic()
            if is_request(got):
                # Asked a second time: somebody is in a hurry.
                kill_at = now if self._record.asked_to_stop else now + self._patience.grace_s
                self._note_request()
                self._terminate()
            elif kill_at is None and (complaint := self._examine(now)) is not None:
                kill_at = now + self._patience.grace_s if complaint.answers else now
                self._send_away(complaint)
            if kill_at is not None and now >= kill_at:
                break
        unanswered = self._status is None
        self._count_service(time.monotonic())
        left = self._sweep()
        ended = self._how_it_ended(complaint, unanswered=unanswered)
        return f"{ended}; {left} of its processes could not be killed" if left else ended

    def _examine(self, now: float) -> Complaint | None:
        """What is wrong with the child that lives; where none is started again, it is left as it is."""
        complaint = self._vitals.look(now)
        online_since = self._vitals.online_since
        if online_since is not None:
            crashes = self._restarts.lately(self._served_s + now - online_since)
            if crashes != self._record.crashes:
                self._write(replace(self._record, crashes=crashes))
        return complaint if self._launch.max_restarts > 0 and self._status is None else None

    def _send_away(self, complaint: Complaint) -> None:
        self._log.say(f"the child {complaint.reason}; it is {'asked to stop' if complaint.answers else 'killed'}")
        if complaint.answers:
            self._terminate()

    def _count_service(self, now: float) -> None:
        # It may have come online, and died, since the last look.
        self._vitals.look(now)
        if self._vitals.online_since is not None:
            self._has_served = True
            self._served_s += now - self._vitals.online_since

    def _note_request(self) -> None:
        if not self._record.asked_to_stop:
            self._write(replace(self._record, asked_to_stop=True))
            self._log.say("asked to stop")

    def _terminate(self) -> None:
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

    def _how_it_ended(self, complaint: Complaint | None, *, unanswered: bool) -> str:
        if self._record.asked_to_stop:
            silence = f"killed after {self._patience.grace_s:g} s without an answer to SIGTERM"
            return silence if unanswered else STOPPED
        order = store.read_kill_order(self._files)
        if order is not None and (order.child_pid, order.child_started) == (
            self._record.child_pid,
            self._record.child_started,
        ):
            self._killed_on_purpose = True
            return order.reason
        if complaint is not None:
            return complaint.reason
        code = os.waitstatus_to_exitcode(self._status or 0)
        if code >= 0:
            return f"exited with code {code}"
        return f"killed by signal {-code} ({signal.Signals(-code).name})"

    def _write(self, record: Record) -> None:
        self._record = record
        try:
            store.write_json(self._files.record, record)
        except OSError as error:
            # A full disk must not take a server with it that works.
            self._log.say(f"cannot write {self._files.record}: {error.strerror}")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def is_request(got: signal.struct_siginfo | None) -> bool:
    """True if a signal that was waited for asks the node to stop.

    A process that was paused past the end of `sigtimedwait` is told of a signal that nobody has sent (CPython hands
    out what it has not filled in), so only those that are awaited count.
    """
    return got is not None and got.si_signo in (signal.SIGTERM, signal.SIGINT)
