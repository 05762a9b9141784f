"""Waiting for a condition: with a deadline, and with the last observation when it passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from swarmctl.clock import Clock
from swarmctl.errors import DeadlineExceeded

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Not yet. `reasons`: what was seen instead, one line a thing that is waited for."""

    reasons: tuple[str, ...]


def wait_until(
    observe: Callable[[], T | Pending],
    *,
    what: str,
    within_s: float,
    clock: Clock,
    every_s: float = 0.1,
    hints: tuple[str, ...] = (),
) -> T:
    """Call `observe` until it returns something else than `Pending`, and return that.

    It is called at least once, also with no time left. `what` completes "gave up after 5 s waiting for …".

    Raises:
        DeadlineExceeded: after `within_s` seconds, with the reasons of the last observation.
    """
    deadline = clock.monotonic() + within_s
    while True:
        seen = observe()
        if not isinstance(seen, Pending):
            return seen
        if clock.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"gave up after {within_s:g} s waiting for {what}",
                reasons=seen.reasons,
                hints=hints,
                context={"within_s": within_s},
            )
        clock.sleep(every_s)
