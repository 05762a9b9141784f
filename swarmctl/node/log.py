"""A node's log: one file that is set aside at a size, and the thread that copies the child's output into it."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

LIMIT_BYTES = 10 * 1024 * 1024
_CHUNK_BYTES = 65536


class RotatingLog:
    """Appends to `path`; beyond `limit_bytes` the file becomes `<path>.1` (replacing that) and a new one begins.

    It is set aside between two lines. `descriptors` are open files of this process that follow the log to its new
    file, so that what a library prints lands there too. May be written from several threads.
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
        """Append bytes. A full disk loses them rather than stopping the node."""
        with self._guard:
            over = self._size + len(data) - self._limit_bytes
            # A program that never ends its line (a progress bar) must not fill the disk either.
            if over > 0 and (self._at_line_start or over > _CHUNK_BYTES):
                self._rotate()
            try:
                self._size += os.write(self._file, data)
            except OSError:
                return
            self._at_line_start = data.endswith(b"\n")

    def say(self, sentence: str) -> None:
        """Append a line of the runner's own, with the time."""
        moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._guard:
            begun = not self._at_line_start
        self.write(f"{chr(10) if begun else ''}{moment} swarmctl: {sentence}\n".encode())

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
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
