"""One open line to the agent on a host: requests go out, answers come back in any order, each to who waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import IO, Any

from swarmctl.transport import wire

BEAT_S = 5.0
"""How often the agent is told that somebody is still there; it gives up after `agent.SILENCE_S`."""

_LEAVE_S = 2.0


class ChannelEnded(Exception):
    """The program at the other end is gone. `code`: its exit status; `words`: what it has written to stderr."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"ended with {code}")
        self.code = code
        self.words = words


class NoAnswer(Exception):
    """No answer in time; the line may still be good."""


class Channel:
    """Runs `argv`, which connects stdin and stdout to an agent; see `swarmctl.transport.wire`.

    Raises:
        ChannelEnded: from every method but `close`, once the program has ended.
        OSError: when it cannot be run.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        # A file, not a pipe: a shared connection's master holds it open for longer than the command lives.
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        # In a session of its own, so that Ctrl-C at the terminal is for the operation to decide about.
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._guard = threading.Lock()
        self._numbers = 0
        self._ended: ChannelEnded | None = None
        self._closing = threading.Event()
        # The agent's greeting answers a request that nobody sends.
        self._waiting: dict[int, tuple[str, Future[Any]]] = {0: ("facts", Future())}
        self._greeting = self._waiting[0][1]
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=f"channel-{work.__name__}", daemon=True).start()

    @property
    def ended(self) -> bool:
        """True once there is nobody to talk to."""
        return self._ended is not None

    def greeting(self, within_s: float) -> Any:
        """What the agent says of itself when it is there."""
        return _await(self._greeting, within_s)

    def call(self, do: str, args: dict[str, Any], *, within_s: float) -> Any:
        """The result of a method at the other end; raises what it raises there.

        Raises:
            NoAnswer: after `within_s`; the answer is thrown away when it comes.
        """
        future: Future[Any] = Future()
        with self._guard:
            if self._ended is not None:
                raise self._ended
            self._numbers += 1
            number = self._numbers
            self._waiting[number] = (do, future)
            self._write(wire.encode_request(number, do, args))
        try:
            return _await(future, within_s)
        finally:
            with self._guard:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """Hang up; the agent ends, and what runs there stays. May be called twice."""
        self._closing.set()
        with contextlib.suppress(OSError), self._guard:
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: str) -> None:
        # A program that is gone is found by who reads from it.
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_S) and self._ended is None:
            with self._guard:
                self._write("\n")

    def _read(self) -> None:
        stdout = self._process.stdout
        for line in stdout if stdout is not None else ():
            answer = wire.decode_answer(line)
            if answer is None:
                continue
            with self._guard:
                do, future = self._waiting.pop(answer["id"], ("", Future()))
            if do:
                _settle(future, do, answer)
        code = self._process.wait()
        self._end(ChannelEnded(code, self._last_words()))

    def _last_words(self) -> str:
        size = os.fstat(self._words.fileno()).st_size
        return os.pread(self._words.fileno(), 8192, max(0, size - 8192)).decode("utf-8", errors="replace")

    def _end(self, ended: ChannelEnded) -> None:
        with self._guard:
            self._ended = ended
            waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            future.set_exception(ended)
        self._words.close()


def _settle(future: Future[Any], do: str, answer: dict[str, Any]) -> None:
    try:
        value = wire.result_of(do, answer)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who waits for it
        future.set_exception(error)
    else:
        future.set_result(value)


def _await(future: Future[Any], within_s: float) -> Any:
    try:
        return future.result(within_s)
    except FutureTimeout as error:
        # On Python 3.11 and later this is also the TimeoutError that the far side may have raised.
        if future.done() and future.exception() is error:
            raise
        raise NoAnswer from None
