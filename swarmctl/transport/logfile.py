"""Reading a node's log by whole lines, across the moment when it is set aside."""

from __future__ import annotations

import os
from pathlib import Path

from swarmctl.transport.base import LogChunk, LogPosition


def read(path: Path, *, after: LogPosition | None, tail: int | None) -> LogChunk:
    """See `Transport.read_log`."""
    aside = path.with_name(f"{path.name}.1")
    current = _rest(path, None)
    if current is None:
        return LogChunk(lines=(), position=after)
    if after is None:
        lines = current.lines
        if tail is None or len(lines) < tail:
            older = _rest(aside, None)
            lines = (older.lines if older else ()) + lines
        # `[-0:]` would be everything.
        return LogChunk(
            lines=lines if tail is None else lines[len(lines) - min(tail, len(lines)) :], position=current.position
        )
    if current.position is not None and current.position.file == after.file:
        return _rest(path, after) or LogChunk(lines=(), position=after)
    older = _rest(aside, after)
    finished = older.lines if older is not None and older.position and older.position.file == after.file else ()
    return LogChunk(lines=finished + current.lines, position=current.position)


def _rest(path: Path, after: LogPosition | None) -> LogChunk | None:
    try:
        source = path.open("rb")
    except FileNotFoundError:
        return None
    with source:
        status = os.fstat(source.fileno())
        # Shorter than where reading stopped: somebody emptied it.
        offset = after.offset if after and after.file == status.st_ino and after.offset <= status.st_size else 0
        source.seek(offset)
        data = source.read(status.st_size - offset)
    whole = data[: data.rfind(b"\n") + 1]
    lines = tuple(_visible(line) for line in whole.decode("utf-8", errors="replace").split("\n")[:-1])
    return LogChunk(lines=lines, position=LogPosition(file=status.st_ino, offset=offset + len(whole)))


def _visible(line: str) -> str:
    """What a terminal would leave of a line that a progress bar has written over."""
    return line.rstrip("\r").rpartition("\r")[2]
