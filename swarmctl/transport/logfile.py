"""Reading a node's log by whole lines, across the moment when it is set aside."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from swarmctl.transport.base import LogChunk, LogLine, LogPosition

CALL_BYTES = 512 * 1024
CALL_LINES = 5_000
"""What one call returns at most. Over a slow line (1 Mbit/s) half a megabyte takes four of the ten seconds that an
answer may take."""

# Logs of the first version have times without fractions, and only on the runner's own lines.
_TIME = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?)Z ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A file's place in the bytes that were read: `begin` is where its byte `offset` stands."""

    file: int
    begin: int
    offset: int


def read(
    path: Path, *, after: LogPosition | None = None, tail: int | None = None, since: float | None = None
) -> LogChunk:
    """See `Transport.read_log`."""
    data, parts = _load(path, after)
    if not parts:
        return LogChunk(entries=(), position=after)
    end = data.rfind(b"\n") + 1
    if after is None:
        start = 0 if since is None else _first_since(data, since)
        if tail is not None:
            start = max(start, _last_lines(data, end, tail - (len(data) > end)))
        at = _time_before(data, start)
    else:
        start, at = 0, after.at
    entries, stop, at = _lines(data, min(start, end), end, at)
    part = parts[bisect_right(parts, stop, key=lambda one: one.begin) - 1]
    position = LogPosition(file=part.file, offset=part.offset + stop - part.begin, at=at)
    rest = data[max(end, start) :] if stop == end else b""
    unfinished = _line(rest, at) if rest else None
    return LogChunk(entries=entries, position=position, more=stop < end, unfinished=unfinished)


def _load(path: Path, after: LogPosition | None) -> tuple[bytes, list[_Part]]:
    """The log that was set aside and the one that is written, or of both what stands after a position."""
    files = _open(path)
    known = [os.fstat(descriptor).st_ino for descriptor in files]
    # A position in neither: the log was set aside twice meanwhile, and what there is has not been read.
    place = known.index(after.file) if after is not None and after.file in known else None
    data, parts = b"", []
    for number, descriptor in enumerate(files):
        offset = after.offset if after is not None and number == place else 0
        with os.fdopen(descriptor, "rb") as source:
            if place is not None and number < place:
                continue
            offset = offset if _is_line_start(source.fileno(), offset) else 0
            source.seek(offset)
            # The last line of a log that was set aside has ended, whatever it looks like.
            data += b"\n" if data and not data.endswith(b"\n") else b""
            parts.append(_Part(file=known[number], begin=len(data), offset=offset))
            data += source.read()
    return data, parts


def _open(path: Path) -> list[int]:
    """The files that there are, the older one first."""
    aside = path.with_name(f"{path.name}.1")
    current, older = _descriptor(path), _descriptor(aside)
    if current is not None and older is not None and os.path.sameopenfile(current, older):
        # Set aside between the two; a new one may have begun.
        os.close(current)
        current = _descriptor(path)
    return [descriptor for descriptor in (older, current) if descriptor is not None]


def _descriptor(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _is_line_start(descriptor: int, offset: int) -> bool:
    """False for a file that was emptied since, or that has only the number of the one that was read."""
    return offset == 0 or os.pread(descriptor, 1, offset - 1) == b"\n"


def _first_since(data: bytes, since: float) -> int:
    """Where the first line begins that is not older; the end if all are."""
    moment = datetime.fromtimestamp(since, timezone.utc).isoformat(timespec="milliseconds")[:23].encode()
    # As texts these compare as the moments that they are.
    return next((found.start() for found in _TIME.finditer(data) if found[1] >= moment), len(data))


def _last_lines(data: bytes, end: int, count: int) -> int:
    """Where the last `count` whole lines before `end` begin."""
    start = end
    for _ in range(max(0, count)):
        if start == 0:
            break
        start = data.rfind(b"\n", 0, start - 1) + 1
    return start


def _time_before(data: bytes, start: int) -> float | None:
    """The time of the last line before `start` that has one."""
    while start > 0:
        start = data.rfind(b"\n", 0, start - 1) + 1
        if (found := _TIME.match(data, start)) is not None:
            return _seconds(found[1])
    return None


def _lines(data: bytes, start: int, end: int, at: float | None) -> tuple[tuple[LogLine, ...], int, float | None]:
    """As many lines as one call returns, but one at least; where they end; and the time of the last one."""
    entries: list[LogLine] = []
    stop = start
    while stop < end and len(entries) < CALL_LINES:
        line_end = data.index(b"\n", stop)
        if entries and line_end - start > CALL_BYTES:
            break
        line = _line(data[stop:line_end], at)
        entries.append(line)
        stop, at = line_end + 1, line.at
    return tuple(entries), stop, at


def _line(raw: bytes, at: float | None) -> LogLine:
    if (found := _TIME.match(raw)) is not None:
        raw, at = raw[found.end() :], _seconds(found[1]) or at
    # What a terminal would leave of a line that a progress bar has written over.
    seen = raw.rstrip(b"\r").rpartition(b"\r")[2]
    over = len(seen) - CALL_BYTES
    text = seen[:CALL_BYTES].decode("utf-8", errors="replace")
    return LogLine(at=at, text=f"{text}… ({over} bytes more)" if over > 0 else text)


def _seconds(moment: bytes) -> float | None:
    try:
        return datetime.fromisoformat(moment.decode()).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
