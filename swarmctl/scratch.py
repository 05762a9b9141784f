"""What a node's processes leave outside their folders when they are killed: torch's shared memory, unix sockets.

torch names a shared block `torch_<pid>_…`; its own cleaner is one of the processes that a SIGKILL of the group ends.
Every process of a node therefore writes its pid down (`tether.install`), and whoever ends the node removes what the
dead ones left. A block whose process lives is never touched: it may be somebody else's, under a pid used again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PIDS = "pids"


def pids_file(sockets: Path) -> Path:
    """Where the processes of a node write their pids, one a line."""
    return sockets / PIDS


def sweep(sockets: Path) -> None:
    """Remove the folder of a node that has ended, its sockets, and the shared memory of its dead processes."""
    for pid in _dead(pids_file(sockets)):
        for block in SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with suppress(OSError):
                block.unlink()
    shutil.rmtree(sockets, ignore_errors=True)
    with suppress(OSError):
        sockets.parent.rmdir()  # the swarms' common folder, if this was the last one in it


def sweep_clients(run: Path) -> None:
    """Remove what clients left that were killed; a client's folder is `client-<pid>`."""
    for folder in run.glob("client-*"):
        pid = folder.name.removeprefix("client-")
        if pid.isdigit() and not _lives(int(pid)):
            sweep(folder)


def living_clients(run: Path) -> tuple[int, ...]:
    """The processes of clients that still live; what they hold cannot be swept yet."""
    return tuple(pid for folder in run.glob("client-*") for pid in _written(pids_file(folder)) if _lives(pid))


def _dead(written: Path) -> tuple[int, ...]:
    return tuple(pid for pid in _written(written) if not _lives(pid))


def _written(pids: Path) -> tuple[int, ...]:
    try:
        words = pids.read_text(encoding="ascii", errors="ignore").split()
    except OSError:
        return ()
    return tuple(sorted({int(word) for word in words if word.isdigit()}))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # A zombie holds nothing any more; it only waits for its parent, which may take its time. One that is just
        # ending has no memory left, and looks alive in all else.
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z" and Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0] != "0"
    except OSError:
        return False
