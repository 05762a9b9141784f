"""Time as a parameter: intervals are monotonic seconds, moments that leave the process are UTC."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """What pure code may know of time; `sleep` is only for shells around it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; for intervals."""

    def now(self) -> datetime:
        """The moment in UTC; for records that outlive the process."""

    def sleep(self, seconds: float) -> None:
        """Block the caller; a fake returns at once and moves its time on."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(max(0.0, seconds))
