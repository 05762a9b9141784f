"""Processes of this machine, told apart by pid *and* start time, because the kernel uses a pid again.

Reads `/proc` and nothing else, so it is Linux only; a pass over all processes takes a few milliseconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "SWARMCTL_NODE"
"""Environment variable of everything that a node starts; its value is the node's folder."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = frozenset("ZXx")
_STOPPED = frozenset("Tt")


@dataclass(frozen=True, kw_only=True)
class ProcessSeen:
    """A living process.

    `started`: clock ticks since boot; `group` and `parent` are pids; `command` is what the kernel keeps of its name.
    """

    pid: int
    started: int
    parent: int
    group: int
    command: str
    cpu_s: float
    rss_bytes: int


def read_process(pid: int) -> ProcessSeen | None:
    """The process with this pid, or None if there is none; a zombie is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in parentheses and may hold spaces and parentheses itself.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in _DEAD:
        return None
    return ProcessSeen(
        pid=pid,
        started=int(fields[19]),
        parent=int(fields[1]),
        group=int(fields[2]),
        command=head.partition("(")[2],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def read_processes() -> dict[int, ProcessSeen]:
    """All living processes that this user can see, by pid."""
    found = (read_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def start_of(pid: int) -> int:
    """The start time of a living process in clock ticks since boot.

    Raises:
        ProcessLookupError: when there is no such process.
    """
    process = read_process(pid)
    if process is None:
        raise ProcessLookupError(f"no process {pid}")
    return process.started


def is_alive(pid: int | None, started: int | None) -> bool:
    """True if exactly this process lives: the pid in use by another one does not count."""
    if pid is None or started is None:
        return False
    process = read_process(pid)
    return process is not None and process.started == started


def is_stopped(pid: int | None, started: int | None) -> bool:
    """True if exactly this process lives and is stopped by a signal."""
    if not is_alive(pid, started):
        return False
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] in _STOPPED


def send(pid: int | None, started: int | None, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False if it is gone, or the pid belongs to another one now."""
    if pid is None or started is None:
        return False
    try:
        # The handle pins the process, so that it cannot be replaced between the check and the signal.
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(pid, started):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def members(
    table: Mapping[int, ProcessSeen], group: int | None, started: int | None, mark: str
) -> tuple[ProcessSeen, ...]:
    """The living processes of a node's group; empty when the group's number belongs to somebody else by now.

    `started` is the start time of the group's first process. Once that is gone, only processes that carry the
    node's `mark` in their environment are taken for the node's.
    """
    if group is None or started is None:
        return ()
    inside = tuple(process for process in table.values() if process.group == group)
    leader = table.get(group)
    if leader is not None:
        return inside if leader.started == started else ()
    return tuple(process for process in inside if _carries(process.pid, mark))


def marked(mark: str) -> tuple[ProcessSeen, ...]:
    """Every living process that carries a node's `mark`, whichever group or parent it has."""
    return tuple(process for process in read_processes().values() if _carries(process.pid, mark))


def below(table: Mapping[int, ProcessSeen], pid: int) -> tuple[ProcessSeen, ...]:
    """All descendants of a process, nearest first."""
    found: list[ProcessSeen] = []
    parents = {pid}
    while parents:
        children = [process for process in table.values() if process.parent in parents]
        found.extend(children)
        parents = {child.pid for child in children}
    return tuple(found)


def kill(targets: tuple[ProcessSeen, ...]) -> int:
    """SIGKILL each of these processes that still lives; returns how many did."""
    return sum(send(target.pid, target.started, signal.SIGKILL) for target in targets)


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{MARK}={mark}".encode() in environment.split(b"\0")
