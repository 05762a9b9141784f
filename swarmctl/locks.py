"""A file lock that its holder's death releases, and that a starter can hand over to the process it starts."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

# `is_held` takes the lock for microseconds; whoever wants it meanwhile tries again.
_TRIES = 20
_BETWEEN_TRIES_S = 0.01


def take(path: Path) -> int | None:
    """The open, locked file, or None if somebody else holds it. Closing it (in all who inherited it) releases it.

    The file is made where it is missing, and stays.
    """
    for _ in range(_TRIES):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            time.sleep(_BETWEEN_TRIES_S)
            continue
        # A lock on a file that was removed meanwhile keeps nobody out.
        if is_at(handle, path):
            return handle
        os.close(handle)
    return None


def is_held(path: Path) -> bool:
    """True if somebody holds the lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def is_at(handle: int, path: Path) -> bool:
    """True if the open file is the one that has this path."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
