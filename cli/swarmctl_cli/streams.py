"""The program's standard streams, so that a disk that is full or a stream that is closed ends it in one clear line."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from swarmctl.errors import SwarmctlError


class StdoutLost(SwarmctlError):
    """Nothing more can be written to stdout, so that whoever reads it did not get all."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"cannot write to stdout: {cause.strerror or cause}")


def take_over() -> None:
    """Put streams of this module in the place of `sys.stdout` and `sys.stderr`, once.

    A character that a stream cannot show is written as its code, since it must not end the program. A stream that the
    caller has closed takes everything and shows nothing.
    """
    sys.stdout = _as(_Stdout, sys.stdout)
    sys.stderr = _as(_Stderr, sys.stderr)


class _Stdout(io.TextIOWrapper):
    """Raises `StdoutLost` at the first write that fails, and takes what comes after it to nowhere."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise self._lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> Exception:
        _to_nowhere(self)
        # A closed pipe has a reader who has seen enough, and typer ends the program without a word.
        return error if error.errno == errno.EPIPE else StdoutLost(error)


class _Stderr(io.TextIOWrapper):
    """Words that cannot be written are lost; that is no reason to do anything else than without them."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            _to_nowhere(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _to_nowhere(self)


def _as(kind: type[io.TextIOWrapper], stream: TextIO | Any) -> TextIO | Any:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return kind(
        stream.buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=stream.line_buffering
    )


def _to_nowhere(stream: TextIO) -> None:
    """What waits in the stream would fail again when the interpreter ends, with words and an exit code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    with suppress(OSError):
        stream.flush()
