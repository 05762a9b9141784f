"""The operator lock of a swarm, on the host where it is kept: one at a time changes the swarm.

The lock is the kernel's (flock) and belongs to a process: the operator's own on this machine, or the agent that serves
its connection. So it ends with its holder, and nothing has to be cleaned up after a crash. An agent whose operator has
fallen silent ends by itself; until then the lock is shown with the time since the operator's last sign of life.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swarmctl import locks, processes
from swarmctl.store import Layout

LOCK_NAME = ".lock"
"""The file in the swarm's folder that an operation holds (flock) while it changes the swarm."""


@dataclass(frozen=True, kw_only=True)
class LockNote:
    """Who holds the lock: `who` (user@machine), `doing` (the command), `why` (the operator's word), since when (UTC).

    `pid` and `started` are the process on this host that has the lock. `silent_s`: how long ago its operator was heard
    of, when read; 0 for one on this very machine.
    """

    who: str
    doing: str
    since: str
    why: str | None = None
    pid: int = 0
    started: int = 0
    silent_s: float = 0.0


class HeldLock:
    """The lock, held by this process until `release`."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    def is_ours(self) -> bool:
        """False once somebody has broken it."""
        return locks.is_at(self._handle, self._path)

    def beat(self) -> None:
        """Note that the operator has been heard of."""
        os.utime(self._handle)

    def release(self) -> None:
        """Let go of it."""
        os.close(self._handle)


def take(layout: Layout, note: LockNote) -> HeldLock | LockNote:
    """The lock, or the note of the one who has it."""
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = layout.root / LOCK_NAME
    handle = locks.take(path)
    if handle is None:
        return read(layout) or LockNote(who="somebody", doing="something", since="just now")
    pid = os.getpid()
    noted = replace(note, pid=pid, started=processes.start_of(pid))
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(noted)).encode(), 0)
    return HeldLock(path, handle)


def read(layout: Layout) -> LockNote | None:
    """Who holds the lock, or None if nobody does."""
    path = layout.root / LOCK_NAME
    if not locks.is_held(path):
        return None
    try:
        note = LockNote(**json.loads(path.read_text(encoding="utf-8")))
        return replace(note, silent_s=max(0.0, time.time() - path.stat().st_mtime))
    except (OSError, ValueError, TypeError):
        # Held, and not written yet.
        return LockNote(who="somebody", doing="something", since="just now")


def break_it(layout: Layout) -> LockNote | None:
    """Take the lock away from its holder, who notices before its next act; returns who that was."""
    note = read(layout)
    if note is not None:
        (layout.root / LOCK_NAME).unlink(missing_ok=True)
    return note
