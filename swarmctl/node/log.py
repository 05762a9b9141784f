"""A node's log: one file that is set aside at a size, and the thread that copies the child's output into it."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

LIMIT_BYTES = 10 * 1024 * 1024
_CHUNK_BYTES = 65536
_LINE_END = ord("\n")


class RotatingLog:
    """Appends to `path`; beyond `limit_bytes` the file becomes `<path>.1` (replacing that) and a new one begins.

    Each line begins with the moment at which its first byte came, in UTC: `2026-12-07T08:27:22.123Z `. The log is set
    aside between two lines. `descriptors` are open files of this process that follow the log to its new file, so that
    what a library prints lands there too, without a time. May be written from several threads.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES, descriptors: tuple[int, ...] = ()) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._descriptors = descriptors
        self._guard = threading.Lock()
        self._at_line_start = True
        self._open()

    def __enter__(self) -> RotatingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, data: bytes) -> None:
        """Append bytes, at once also where they end no line. A full disk loses them rather than stopping the node."""
        with self._guard:
            self._append(data)

    def say(self, sentence: str) -> None:
        """Append a line of the runner's own."""
        with self._guard:
            self._append(f"{'' if self._at_line_start else chr(10)}swarmctl: {sentence}\n".encode())

    def _append(self, data: bytes) -> None:
        stamped = _stamp(data, at_line_start=self._at_line_start)
        over = self._size + len(stamped) - self._limit_bytes
        # A program that never ends its line (a progress bar) must not fill the disk either.
        if over > 0 and (self._at_line_start or over > _CHUNK_BYTES):
            self._rotate()
            stamped = _stamp(data, at_line_start=True)
        try:
            written = os.write(self._file, stamped)
        except OSError:
            return
        self._size += written
        if written:
            self._at_line_start = stamped[written - 1] == _LINE_END

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        # A run that was cut off in the middle of a line must not have this one's first words in it.
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            with contextlib.suppress(OSError):
                self._size += os.write(self._file, b"\n")
        self._at_line_start = True
        for descriptor in self._descriptors:
            os.dup2(self._file, descriptor)

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        os.close(self._file)
        self._open()


class Pump:
    """Copies a pipe into a log until every writer has closed it. Owns `source`, the pipe's reading end."""

    def __init__(self, source: int, log: RotatingLog) -> None:
        self._source = source
        self._log = log
        self._thread = threading.Thread(target=self._copy, name="log", daemon=True)
        self._thread.start()

    def finish(self, within_s: float) -> bool:
        """Wait for the last bytes; False if a writer still holds the pipe after `within_s`."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _copy(self) -> None:
        with os.fdopen(self._source, "rb", buffering=0) as source:
            while data := source.read(_CHUNK_BYTES):
                start = 0
                # Written line by line only where the file may have to be set aside between two of them.
                if (cut := data.rfind(b"\n") + 1) and cut < len(data):
                    self._log.write(data[:cut])
                    start = cut
                self._log.write(data[start:])


def _stamp(data: bytes, *, at_line_start: bool) -> bytes:
    """`data` with the time before each line that begins in it; all of it came at once."""
    if not data:
        return data
    moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z ").encode()
    last = data[-1:] if data.endswith(b"\n") else b""
    body = data[: len(data) - len(last)].replace(b"\n", b"\n" + moment)
    return (moment if at_line_start else b"") + body + last
