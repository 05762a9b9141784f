"""What is left of a swarm or a client, and its end: by pid and start time, never by name."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from swarmctl import processes
from swarmctl.processes import ProcessSeen
from swarmctl.store import Layout, read_launch

_PATIENCE_S = 20.0


def processes_of(layout: Layout) -> tuple[ProcessSeen, ...]:
    """Everything that lives and was started for a node of this swarm: runners, children, and what those started."""
    found = {one.pid: one for one in processes.read_processes().values() if _runs_in(one.pid, layout.root)}
    for name in layout.names():
        found |= {one.pid: one for one in processes.marked(str(layout.node(name).folder))}
    return tuple(found.values())


def ports_of(layout: Layout) -> dict[str, int]:
    """The port that each node of this swarm was last started with."""
    launches = {name: read_launch(layout.node(name)) for name in layout.names()}
    return {name: launch.port for name, launch in launches.items() if launch is not None}


def left_of_swarm(layout: Layout, ports: Iterable[int]) -> list[str]:
    """One line for each thing that a swarm which is down must not have left; `ports` are those it had."""
    found = [f"process {one.pid} ({one.command})" for one in processes_of(layout)]
    found += [f"port {port} answers" for port in ports if _answers(port)]
    found += [f"socket or folder {path}" for path in sorted(layout.run.rglob("*"))]
    for name in layout.names():
        files = layout.node(name)
        news = (files.record, files.progress, files.observed, files.kill_order)
        found += [f"file {path}" for path in news if path.exists()]
    return found


def children_of(pid: int) -> tuple[ProcessSeen, ...]:
    """Everything below a process that lives, nearest first."""
    return processes.below(processes.read_processes(), pid)


def reap(layout: Layout) -> tuple[str, ...]:
    """SIGKILL whatever of this swarm still lives, until nothing does; returns what did, for a test to complain of.

    Raises:
        AssertionError: when something survives that.
    """
    found: dict[int, str] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while left := processes_of(layout):
        assert time.monotonic() < deadline, f"cannot be killed: {left}"
        for one in left:
            found[one.pid] = f"process {one.pid} ({one.command})"
            processes.send(one.pid, one.started, signal.SIGKILL)
        _collect_zombies(tuple(found))
        os.sched_yield()
    return tuple(found.values())


def _collect_zombies(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _runs_in(pid: int, folder: Path) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return b"swarmctl" in line and f"{folder}{os.sep}".encode() in line


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
