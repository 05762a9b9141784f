"""The host's side of a transport: what is done to one swarm's nodes on the machine that this runs on."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal as signals
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from swarmctl import locks, ports, processes, scratch, store
from swarmctl.blocks import NodeName
from swarmctl.errors import Locked, NodeFailed, Refused
from swarmctl.processes import ProcessSeen
from swarmctl.store import KillOrder, Launch, Layout, NodeFiles, Record, read_peer, write_peer
from swarmctl.transport import journal
from swarmctl.transport.base import KILLED, HostedNode, Order
from swarmctl.transport.oplock import LOCK_NAME

T = TypeVar("T")

# The lock's number in the runner; after stdin, stdout and stderr.
_LOCK_FD = 3
_PORT_IS_OURS_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a runner is called on this host. `child` replaces the command line of the child program, for tests."""

    python: str
    child: tuple[str, ...] | None = None


def survey(layout: Layout, names: Sequence[NodeName] | None) -> tuple[HostedNode, ...]:
    """See `Transport.survey`."""
    wanted = layout.names() if names is None else [name for name in names if layout.node(name).folder.is_dir()]
    table = processes.read_processes()
    return tuple(_look(layout.node(name), name, table) for name in wanted)


def _look(files: NodeFiles, name: NodeName, table: dict[int, ProcessSeen]) -> HostedNode:
    # The lock before the record: a runner that starts in between is seen as on its way, not as gone.
    held = locks.is_held(files.lock)
    record = _readable(store.read_record, files)
    runner = table.get(record.runner_pid) if record is not None else None
    if record is not None and runner is not None and runner.started != record.runner_started:
        runner = None
    return HostedNode(
        name=name,
        launch=_readable(store.read_launch, files),
        record=record,
        progress=_readable(store.read_progress, files),
        observation=_readable(store.read_observation, files),
        health=_readable(store.read_health, files),
        peer=read_peer(files),
        held=held,
        runner_alive=runner is not None,
        child_gone=_child_gone(record),
        processes=_of_node(table, runner, record, files),
    )


def _child_gone(record: Record | None) -> bool:
    # Not from the table, which was read before the record and may not have the child yet.
    if record is None or record.child_pid is None:
        return False
    return not processes.is_alive(record.child_pid, record.child_started)


def _readable(read: Callable[[NodeFiles], T | None], files: NodeFiles) -> T | None:
    """What `read` finds; None for a file that another version has written, which must not hide the other nodes."""
    try:
        return read(files)
    except (KeyError, TypeError, AttributeError):
        return None


def _of_node(
    table: dict[int, ProcessSeen], runner: ProcessSeen | None, record: Record | None, files: NodeFiles
) -> tuple[ProcessSeen, ...]:
    if record is None:
        return ()
    group = processes.members(table, record.child_pid, record.child_started, mark=str(files.folder))
    tree = (runner, *processes.below(table, runner.pid)) if runner is not None else ()
    return tuple({process.pid: process for process in (*tree, *group)}.values())


def start(layout: Layout, launch: Launch, runtime: Runtime) -> int:
    """See `Transport.start_runner`; returns the runner's pid, a child of this process until this one ends."""
    files = layout.node(NodeName(launch.node))
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _own_folder(layout.run)
    held = locks.take(files.lock)
    if held is None:
        raise Locked(f"node {launch.node} has a runner already", hints=[f"swarmctl ps {launch.node}"])
    try:
        store.write_json(files.launch, launch)
        if files.identity.is_file() and read_peer(files) != launch.peer:
            write_peer(files, launch.peer)
        for left in files.of_one_run:
            left.unlink(missing_ok=True)
        return _spawn(files, runtime, held)
    finally:
        os.close(held)


def _spawn(files: NodeFiles, runtime: Runtime, held: int) -> int:
    argv = [runtime.python, "-m", "swarmctl.node", "--launch", str(files.launch), "--lock-fd", str(_LOCK_FD)]
    if runtime.child is not None:
        argv += ["--child", *runtime.child]
    log = os.open(files.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Above the numbers that the file actions write to, whatever this process has open.
    held_high, log_high = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (held, log))
    os.close(log)
    try:
        return os.posix_spawnp(
            runtime.python,
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log_high, 1),
                (os.POSIX_SPAWN_DUP2, log_high, 2),
                (os.POSIX_SPAWN_DUP2, held_high, _LOCK_FD),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(
                signals.SIGINT,
                signals.SIGTERM,
                signals.SIGHUP,
                signals.SIGQUIT,
                signals.SIGPIPE,
                signals.SIGCHLD,
            ),
        )
    except OSError as error:
        raise NodeFailed(f"cannot run {runtime.python}: {error.strerror}", hints=["swarmctl doctor"]) from error
    finally:
        os.close(held_high)
        os.close(log_high)


def _own_folder(run: Path) -> None:
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A link is judged by who made it, not by where it leads.
    owner = run.lstat().st_uid
    if owner != os.geteuid():
        raise Refused(
            f"{run} belongs to somebody else, who could replace the sockets in it",
            reasons=[f"owner is user {owner}, this is user {os.geteuid()}"],
            hints=["set XDG_RUNTIME_DIR to a folder of your own"],
        )


def signal(layout: Layout, node: NodeName, order: Order) -> bool:
    """See `Transport.signal`."""
    files = layout.node(node)
    record = _readable(store.read_record, files)
    if record is None:
        return False
    if order is Order.KILL:
        return _kill_child(files, record)
    if order is Order.STOP:
        if processes.send(record.runner_pid, record.runner_started, signals.SIGTERM):
            return True
        return _kill_all(files, record)
    runner = processes.send(record.runner_pid, record.runner_started, signals.SIGKILL)
    return _kill_all(files, record) or runner


def _kill_child(files: NodeFiles, record: Record) -> bool:
    if record.child_pid is None or record.child_started is None or record.ended is not None:
        return False
    # Before the signal: the runner may look for it the moment the child is dead.
    order = KillOrder(child_pid=record.child_pid, child_started=record.child_started, reason=KILLED)
    store.write_json(files.kill_order, order)
    return _kill_group(files, record)


def _kill_group(files: NodeFiles, record: Record) -> bool:
    # The child first and by its own start time: the rest of its group is tethered to it and dies anyway.
    child = processes.send(record.child_pid, record.child_started, signals.SIGKILL)
    table = processes.read_processes()
    rest = processes.members(table, record.child_pid, record.child_started, mark=str(files.folder))
    return bool(processes.kill(rest)) or child


def _kill_all(files: NodeFiles, record: Record) -> bool:
    group = _kill_group(files, record)
    return bool(processes.kill(processes.marked(str(files.folder)))) or group


def clear(layout: Layout, node: NodeName, *, purge: bool) -> tuple[str, ...]:
    """See `Transport.clear`."""
    files = layout.node(node)
    if not files.folder.is_dir():
        return ()
    held = locks.take(files.lock)
    if held is None:
        return (f"the runner of {node} is still there",)
    try:
        left = _leftovers(files)
        if left:
            return left
        scratch.sweep(files.sockets)
        if purge:
            shutil.rmtree(files.folder)
            _drop_if_empty(layout.root)
        else:
            # With the halves that a writer killed in the middle of `write_json` has left.
            halves = files.folder.glob(".*.json.*")
            for left_over in (*files.of_one_run, *halves):
                left_over.unlink(missing_ok=True)
        _drop_if_empty(layout.run)
        return ()
    finally:
        os.close(held)


def drop_swarm(layout: Layout) -> None:
    """See `Transport.drop_swarm`."""
    root = layout.root
    if not root.is_dir() or any(entry.name not in (LOCK_NAME, journal.NAME) for entry in root.iterdir()):
        return
    for left in (root / LOCK_NAME, root / journal.NAME):
        left.unlink(missing_ok=True)
    _drop_if_empty(root)


def _leftovers(files: NodeFiles) -> tuple[str, ...]:
    record, launch = _readable(store.read_record, files), _readable(store.read_launch, files)
    marked = processes.marked(str(files.folder))
    left = [f"process {process.pid} ({process.command}) is still there" for process in marked]
    # Later on, the port may well be somebody else's.
    ours = record is not None and _ended_just_now(record)
    if ours and launch is not None and not ports.is_free(launch.listen_ip, launch.port):
        left.append(f"port {launch.port} is still open")
    return tuple(left)


def _ended_just_now(record: Record) -> bool:
    if not record.asked_to_stop or record.ended_at is None:
        return False
    age = datetime.now(timezone.utc) - datetime.fromisoformat(record.ended_at)
    return age.total_seconds() < _PORT_IS_OURS_S


def _drop_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
