"""A process that dies when its parent does, also when the parent is killed with SIGKILL.

The kernel's parent-death signal does it, in three places: the child programs call `install` first, so that
whatever they fork is tethered; `wrap` puts this file in front of a program that they execute (libp2p's daemon);
and the node runner wraps the child program itself. A chain of such links leaves nothing behind.

The kernel counts a parent as dead when the *thread* that made the child ends. So fork, and start wrapped programs,
from a thread that lives as long as the child should: the main thread, or one that is joined at the very end.

This file imports only the standard library and nothing of the package, because `wrap` runs it by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def arm(parent: int) -> None:
    """Let the kernel kill this process with SIGKILL when the thread of `parent` that made it ends.

    Kills this process at once if `parent` is its parent no longer: the signal for that death will never come.
    The setting survives `exec`, not `fork`.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


# Fork hooks are the process's, and cannot be taken back: they are registered once, for all callers of `install`.
_forking: list[int] = []
_pid_files: set[str] = set()


def install(pids: str | None = None) -> None:
    """Tether every process that this one forks from now on, and the processes that those fork.

    They also get the default SIGTERM and SIGINT back: the handlers of the parent speak for the parent alone.
    With `pids` this process and each of them append their pid to that file, a line each; see `swarmctl.scratch`.
    `subprocess` without `preexec_fn` does not run fork hooks; use `wrap` there.
    """
    if pids is not None and pids not in _pid_files:
        _pid_files.add(pids)
        _note(pids)
    if not _forking:
        _forking.append(os.getpid())
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _before_fork() -> None:
    _forking[0] = os.getpid()


def _after_fork() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arm(_forking[0])
    for pids in _pid_files:
        _note(pids)


def _note(pids: str) -> None:
    # Where the folder is gone, so is the node, and nobody will read it.
    with contextlib.suppress(OSError):
        handle = os.open(pids, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(handle, f"{os.getpid()}\n".encode())
        os.close(handle)


def wrap(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv`, tethered to the calling process; `argv[0]` is looked up in PATH."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *argv]  # noqa: PTH100


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of the machine's init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _exec(arguments: Sequence[str]) -> None:
    arm(int(arguments[0]))
    try:
        os.execvp(arguments[1], list(arguments[1:]))
    except OSError as error:
        sys.stderr.write(f"cannot run {arguments[1]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    _exec(sys.argv[1:])
