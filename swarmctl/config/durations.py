"""Durations as an operator writes them: `250ms`, `10s`, `5m`, `1h`, or a number of seconds."""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h)$")
_MINIMUM_S = 0.001
# Beyond this a timeout overflows what the C libraries below take.
_MAXIMUM_S = 365 * 86400.0


def parse_duration(written: object) -> float:
    """Seconds of `"10s"`, `"5m"`, `"1h"`, `"250ms"`, or of a number.

    Raises:
        ValueError: with a sentence an operator can act on.
    """
    if isinstance(written, (int, float)) and not isinstance(written, bool):
        seconds = float(written)
    elif isinstance(written, str) and (found := _WRITTEN.match(written.strip())):
        seconds = _seconds(float(found[1]), found[2])
    else:
        raise ValueError("is not a duration; write 250ms, 10s, 5m, 1h or a number of seconds")
    if not _MINIMUM_S <= seconds <= _MAXIMUM_S:
        raise ValueError("is out of range; a duration is at least 1ms and at most 8760h")
    return seconds


def format_duration(seconds: float) -> str | float:
    """The shortest form that `parse_duration` turns back into the same number; a plain number where none does."""
    for unit in ("h", "m", "s", "ms"):
        count = round(seconds / _seconds(1.0, unit))
        if count and _seconds(float(count), unit) == seconds:
            return f"{count}{unit}"
    return seconds


def _seconds(count: float, unit: str) -> float:
    # Dividing keeps 250ms at exactly 0.25; multiplying by 0.001 would not for every count.
    return count / 1000 if unit == "ms" else count * {"s": 1, "m": 60, "h": 3600}[unit]
