"""Whether, and how soon, a child that ended by itself is started again. Pure."""

from __future__ import annotations

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
WINDOW_S = 600.0


class Restarts:
    """At most `limit` restarts within `WINDOW_S` seconds of service; each waits twice as long as the one before.

    Only time in which children served counts, in seconds since the runner began (`served_s`): a crash is forgotten
    after ten good minutes. So a child that loads for minutes and dies of it comes to its limit as well.
    """

    def __init__(self, limit: int, *, first_delay_s: float = FIRST_DELAY_S) -> None:
        self._limit = limit
        self._first_delay_s = first_delay_s
        self._crashes: list[float] = []

    def lately(self, served_s: float) -> int:
        """How many crashes are not forgotten yet."""
        self._crashes = [at for at in self._crashes if served_s - at < WINDOW_S]
        return len(self._crashes)

    def after_crash(self, served_s: float) -> float | None:
        """Count one more crash; in how many seconds to start again, or None if it was one too many."""
        before = self.lately(served_s)
        self._crashes.append(served_s)
        if before >= self._limit:
            return None
        return min(LONGEST_DELAY_S, self._first_delay_s * 2.0**before)
