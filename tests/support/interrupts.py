"""Ctrl-C at chosen moments, in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from swarmctl.blocks import NodeName
from swarmctl.operations.site import Hosted, Site


@contextmanager
def ctrl_c_interrupts() -> Iterator[None]:
    """Meanwhile SIGINT raises KeyboardInterrupt, also where a shell started the tests in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def press_soon() -> threading.Timer:
    """Ctrl-C for the main thread, in a moment; the timer is running, and can be joined."""
    # Not at once: Python misses a signal that comes just before its thread goes to sleep.
    pressed = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    pressed.start()
    return pressed


def press_at_look(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C where the swarm is looked at for the n-th time from now (from 1)."""
    looks, survey = 0, Site.survey

    def counted(self: Site, names: Sequence[NodeName] | None = None) -> dict[NodeName, Hosted]:
        nonlocal looks
        looks += 1
        if looks >= number:
            raise KeyboardInterrupt
        return survey(self, names)

    monkeypatch.setattr(Site, "survey", counted)


class PressAt:
    """A trace function: Ctrl-C at the n-th line (from 0) that is executed in these files of the product."""

    def __init__(self, line: int, *files: str) -> None:
        self.left = line
        self._files = files

    def __call__(self, frame: FrameType, kind: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        if kind == "line":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self
