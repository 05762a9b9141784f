"""Time that passes only when somebody sleeps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


class FakeClock:
    """A `Clock` whose `sleep` returns at once."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._alarms: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        """Seconds slept so far."""
        return self.elapsed_s

    def now(self) -> datetime:
        """The start of 2024 and the seconds slept since."""
        return START + timedelta(seconds=self.elapsed_s)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.elapsed_s += max(0.0, seconds)
        due = [alarm for alarm in self._alarms if alarm[0] <= self.elapsed_s]
        self._alarms = [alarm for alarm in self._alarms if alarm not in due]
        for _, act in due:
            act()

    def at(self, elapsed_s: float, act: Callable[[], object]) -> None:
        """Do something when that much time has passed."""
        self._alarms.append((elapsed_s, act))
