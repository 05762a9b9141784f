"""Waiting for an assertion to hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(assertion: Callable[[], T], *, within_s: float, every_s: float = 0.1) -> T:
    """What `assertion` returns when it first raises no `AssertionError`; called at least once.

    Raises:
        AssertionError: after `within_s` seconds, with what the last failure said.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return assertion()
        except AssertionError as error:
            if time.monotonic() >= deadline:
                raise AssertionError(f"still so after {within_s:g} s: {error}") from error
        time.sleep(every_s)
