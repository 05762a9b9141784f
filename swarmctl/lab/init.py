"""The first process of a host of the lab: makes its files its own, then waits, and buries what dies.

`python init.py CONFIG.json`, in namespaces that `unshare` has made. Everything on the host ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# linux/mount.h
_MS_BIND, _MS_REC = 4096, 16384

_libc = ctypes.CDLL(None, use_errno=True)

READY = "ready"
"""The file in the host's folder that says that its files are in place."""


def hide(disks: Mapping[str, str], visible: Sequence[str]) -> None:
    """Put a host's own folder over each of these paths; what is `visible` below one of them stays where it was."""
    # Held open from before, because their paths lead nowhere once something is mounted above them.
    kept = {path: os.open(path, os.O_PATH) for path in visible if any(_is_below(path, over) for over in disks)}
    sources = {over: os.open(source, os.O_PATH) for over, source in disks.items()}
    for over, source in sources.items():
        _bind(source, over)
    for path, handle in sorted(kept.items()):
        Path(path).mkdir(parents=True, exist_ok=True)
        _bind(handle, path)


def _is_below(path: str, over: str) -> bool:
    return path == over or path.startswith(f"{over.rstrip('/')}/")


def _bind(handle: int, target: str) -> None:
    # Not by the program, which would look the path up that the handle once had, and find what lies over it now.
    if _libc.mount(f"/proc/self/fd/{handle}".encode(), target.encode(), None, _MS_BIND | _MS_REC, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def main() -> int:
    """Set the host up, say so, and reap until the end."""
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = os.open(config["folder"], os.O_PATH)
    socket.sethostname(config["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hide(config["disks"], config["visible"])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    os.close(os.open(READY, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    sys.exit(main())
