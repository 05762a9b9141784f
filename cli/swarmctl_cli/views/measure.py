"""Numbers as words: one form for ages, milliseconds and counts, in every view."""

from __future__ import annotations

from collections.abc import Iterable


def age(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 m 05 s`, `2 h 13 m`, `4 d 02 h`; a dash where unknown."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def millis(milliseconds: float | None) -> str:
    """`0.4 ms`, `16 ms`, `1.84 s`; a dash where unknown."""
    if milliseconds is None:
        return "-"
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def rate(per_second: float | None) -> str:
    """Three significant digits and `/s`; a dash where unknown."""
    if per_second is None:
        return "-"
    return f"{per_second:.1f}/s" if per_second < 99.95 else f"{per_second:.0f}/s"


def size(size_bytes: int) -> str:
    """`512 B`, `4.2 MiB`, `1.5 GiB`."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 token`, `2 tokens`, `2 replicas`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listing(words: Iterable[object], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = [str(word) for word in words]
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))
