"""What a server checks of itself, and writes to `health.json` every second for its runner.

    the path of a request    a one-token forward through its first block, by way of the task pool that requests use
    its place in the swarm   petals' announcer lives, the DHT's process answers, bootstrap peers know of it, and the
                             DHT has its record; where not, it announces itself again

Handlers are not on that path: libp2p dials no peer from itself. petals looks after its handlers, and the bootstrap
peers' probe goes through them.

A server that is busy is well. Its own forward waits in the queue behind all requests, for as long as they take; it
counts as lost only while nothing is computed. One task is computed for minutes at the very most: petals gives up a
request after three, so that nobody waits for one any more that has taken ten.

To go: petals checks what it computes, and its announcer outlives an error.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swarmctl.store import Health, write_json
from swarmctl.upstream.heartbeat import TaskMeter

logger = logging.getLogger(__name__)

_ROUND_S = 1.0
_FORWARD_EVERY_S = 10.0
# A failed forward is repeated soon, and one failure may be the request's own.
_AGAIN_S = 2.0
_FAILURES = 2
# So long a forward may wait while nothing at all is computed.
_LOST_S = 30.0
_STUCK_TASK_S = 600.0
# petals loads its blocks anew when one of its processes has died; a disk that is busy now takes longer than at first.
_RELOAD_S, _RELOAD_TIMES = 300.0, 3.0
_STOP_S = 2.0
# petals computes requests for a forward after those for inference; this is what its handlers ask for.
_PRIORITY = 2.0
_FILL = 0.01

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is wrong. `fatal`: a new process would do better; else it is only told."""

    reason: str
    fatal: bool = True


class _Parcel:
    """Goes through a pool's pipe in the place of a task and is that very task at the other end: same process."""

    _sent: dict[int, Any] = {}  # noqa: RUF012  # the process's, as the pipe is

    def __init__(self, task: Any) -> None:
        self._number = task.uid
        self._sent[self._number] = task

    def __reduce__(self) -> tuple[Any, ...]:
        return _Parcel._take, (self._number,)

    @classmethod
    def _take(cls, number: int) -> Any:
        return cls._sent.pop(number)


def begin_forward(container: Any) -> Future[Any]:
    """One token, on its way through the first block of a petals `ModuleContainer`, among all other requests.

    The result is a list with one tensor `[1, 1, hidden_size]`.
    """
    from petals.server.task_pool import Task

    backend = next(iter(container.module_backends.values()))
    pool = backend.forward_pool
    hidden = torch.full((1, 1, backend.config.hidden_size), _FILL, dtype=backend.dtype)
    # petals' own futures lead from one process to another; within one they never end.
    future: Future[Any] = Future()
    future._uid = uuid.uuid4().int  # type: ignore[attr-defined]
    task = Task(_PRIORITY, time.monotonic(), future, (hidden, ""))
    pool.submitted_tasks.put(_Parcel(task))
    pool.batch_sender.send(None)
    if (task.priority, task.time_submitted) < pool.priority:
        pool.priority = (task.priority, task.time_submitted)
    return future


@dataclass
class _Waiting:
    future: Future[Any]
    container: Any
    begun: float
    took_s: float | None = None


class Computing:
    """Forwards of one token, one at a time, and what they say of the process that computes."""

    def __init__(
        self, meter: TaskMeter, *, begin: Callable[[Any], Future[Any]] = begin_forward, clock: Clock = time.monotonic
    ) -> None:
        self._meter = meter
        self._begin = begin
        self._clock = clock
        self._waiting: _Waiting | None = None
        self._next_at = 0.0
        self._failures: list[str] = []
        self._seen_done = -1
        self._computed_at = 0.0
        self.took_ms: float | None = None

    def look(self, container: Any) -> Trouble | None:
        """What is wrong with a container that takes requests; begins a forward when it is time for one."""
        now = self._clock()
        if self._waiting is not None and self._waiting.container is not container:
            self._waiting = None  # petals has made a new container, and answers nothing of the old one
        if self._waiting is not None and self._waiting.future.done():
            self._settle(self._waiting, now)
        if self._waiting is None and now >= self._next_at:
            self._begin_one(container, now)
        busy_s = self._meter.busy_s(container.runtime)
        if busy_s > 0 or self._meter.done != self._seen_done:
            self._seen_done, self._computed_at = self._meter.done, now
        return self._trouble(now, busy_s)

    def _begin_one(self, container: Any, now: float) -> None:
        waiting = _Waiting(future=self._begin(container), container=container, begun=now)

        def note(_future: Future[Any]) -> None:
            waiting.took_s = self._clock() - waiting.begun

        waiting.future.add_done_callback(note)
        self._waiting = waiting

    def _settle(self, waiting: _Waiting, now: float) -> None:
        self._waiting = None
        try:
            _check(waiting.future.result())
        except Exception as error:  # noqa: BLE001  # whatever a block raises, it is a finding
            self._failures.append(" ".join(str(error).split()) or type(error).__name__)
            self._next_at = now + _AGAIN_S
        else:
            self._failures.clear()
            self.took_ms = None if waiting.took_s is None else waiting.took_s * 1e3
            self._next_at = now + _FORWARD_EVERY_S

    def _trouble(self, now: float, busy_s: float) -> Trouble | None:
        if busy_s > _STUCK_TASK_S:
            return Trouble(reason=f"it has been computing one task for {busy_s:.0f} s")
        if len(self._failures) >= _FAILURES:
            return Trouble(reason=f"its own forwards of one token fail: {self._failures[-1]}")
        if self._waiting is None:
            return None
        lost_s = now - max(self._waiting.begun, self._computed_at)
        if lost_s > _LOST_S:
            return Trouble(reason=f"a forward of one token waits, and nothing was computed for {lost_s:.0f} s")
        return None


def _check(answer: Any) -> None:
    (output,) = answer
    if output.ndim != 3 or output.shape[:2] != (1, 1):
        raise ValueError(f"a token came out with the shape {list(output.shape)}")
    if not torch.isfinite(output).all():
        raise ValueError("a token came out with values that are not finite")


class Loading:
    """How long the container has taken no requests, and whether that is too long; the first loading never is."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = clock()
        self._allowed_s: float | None = None

    def look(self, container: Any) -> Trouble | None:
        """None if the container is ready."""
        now = self._clock()
        if container is not None and container.ready.is_set():
            if self._allowed_s is None and self._since is not None:
                self._allowed_s = max(_RELOAD_S, _RELOAD_TIMES * (now - self._since))
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        late = self._allowed_s is not None and now - self._since > self._allowed_s
        return Trouble(reason=f"it loads its blocks, for {now - self._since:.0f} s", fatal=late)


class Watch:
    """All checks together, and the thread that writes them down. `member` is an `upstream.membership.Membership`."""

    def __init__(self, server: Any, meter: TaskMeter, member: Any, file: Path) -> None:
        self._server = server
        self._meter = meter
        self._member = member
        self._file = file
        self._loading = Loading()
        self._computing = Computing(meter)
        self._told: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Check, and write, meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopped.wait(_ROUND_S):
            try:
                trouble = self._look()
            except Exception as error:  # noqa: BLE001  # told in the file
                # A check that is broken must not take a server with it that works.
                trouble = Trouble(reason=f"it cannot be checked: {error!r}", fatal=False)
            self._tell(trouble)
            self._write(trouble)

    def _look(self) -> Trouble | None:
        container = self._server.module_container
        loading = self._loading.look(container)
        if loading is not None:
            return loading
        place = self._member.look(container)
        return self._computing.look(container) or place

    def _tell(self, trouble: Trouble | None) -> None:
        reason = trouble.reason.rstrip("0123456789 s") if trouble is not None and trouble.fatal else None
        if reason != self._told and trouble is not None:
            logger.warning("not well: %s", trouble.reason)
        elif reason is None and self._told is not None:
            logger.info("well again")
        self._told = reason

    def _write(self, trouble: Trouble | None) -> None:
        container = self._server.module_container
        health = Health(
            written_at=time.time(),
            ok=trouble is None or not trouble.fatal,
            reason=trouble.reason if trouble is not None else None,
            forward_ms=self._computing.took_ms,
            busy_s=self._meter.busy_s(container.runtime) if container is not None else 0.0,
            announced=self._member.announced,
        )
        try:
            write_json(self._file, health)
        except OSError:
            # A full disk is not the server's fault; that the file is touched shows that this thread lives.
            _touch(self._file)


def _touch(file: Path) -> None:
    try:
        os.utime(file)
    except OSError as error:
        logger.warning("cannot write %s: %s", file, error)
