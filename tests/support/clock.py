"""Time that passes only when somebody sleeps."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


class FakeClock:
    """A `Clock` whose `sleep` returns at once."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def monotonic(self) -> float:
        """Seconds slept so far."""
        return self.elapsed_s

    def now(self) -> datetime:
        """The start of 2024 and the seconds slept since."""
        return START + timedelta(seconds=self.elapsed_s)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.elapsed_s += max(0.0, seconds)
