"""Tells when an answer is late, and when its server is gone without a word: paused, unplugged, cut off.

A connection that ends is known at once; one that falls silent is not, for libp2p waits 40 s and a request's own limit
is long, because a long prefill is. So an answer that is late makes its server *suspected*, and a suspect is looked
at: does its computing process answer? Only one that does not is given up. One that is merely slow costs a look, and
another server that is asked beside it (a hedge); nothing is held against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarmctl.upstream.failures import Silent

# How much slower than lately a server may be before it is late.
_TIMES_SLOWER = 4.0
# A look is answered in a millisecond, under full load in a tenth of a second.
_LOOK_GRACE_S = 0.3
# Looks on the way, while an answer that nobody knows the time of is waited for.
_FEWEST_LOOKS = 4


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for an answer: until its server is looked at, and until it is late whatever it looks like."""

    look_s: float
    late_s: float


class Pace:
    """How long one server's answers took lately. The caller says when: it knows no clock."""

    def __init__(self, *, floor_s: float, unknown_s: float) -> None:
        self._floor_s = floor_s
        self._unknown_s = max(floor_s, unknown_s)
        self._took: dict[int, float] = {}

    def patience(self, tokens: int) -> Patience:
        """For an answer of so many tokens.

        Nobody knows how long it should take when there are more of them than ever before. Then the server is looked at
        as early as any, and one that answers the look has time.
        """
        known = self._took.get(tokens, min((took for more, took in self._took.items() if more > tokens), default=None))
        if known is None:
            return Patience(look_s=self._floor_s, late_s=self._unknown_s)
        late_s = max(self._floor_s, _TIMES_SLOWER * known)
        return Patience(look_s=late_s, late_s=late_s)

    def note(self, tokens: int, took_s: float) -> None:
        """An answer for so many tokens took so long; the last two weigh as much as all before."""
        before = self._took.get(tokens, took_s)
        self._took[tokens] = before + (took_s - before) / 3


async def watch(patience: Patience, *, is_there: Callable[[], Awaitable[bool]], late: Callable[[float], None]) -> None:
    """Run beside a wait for an answer, and be cancelled when it comes; `late(seconds)` is called once.

    Raises:
        Silent: the server does not answer a look either.
    """
    loop = asyncio.get_running_loop()
    begun, told = loop.time(), False

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            late(loop.time() - begun)

    await _doze(patience.look_s)
    pause_s = max(patience.look_s, patience.late_s / _FEWEST_LOOKS)
    while True:
        if loop.time() - begun >= patience.late_s:
            tell()
        looking = asyncio.ensure_future(is_there())
        try:
            await asyncio.wait({looking}, timeout=_LOOK_GRACE_S)
            if not looking.done():
                tell()
            there = await looking
        finally:
            looking.cancel()
        if not there:
            raise Silent(f"no answer for {loop.time() - begun:.1f} s, nor to a look at it")
        await _doze(min(pause_s, max(patience.look_s / 2, begun + patience.late_s - loop.time())))


async def _doze(seconds: float) -> None:
    """Sleep, and once more if this process was the one that was held up: the answer may be waiting to be read."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    await asyncio.sleep(seconds)
    if loop.time() - due > seconds / 4:
        await asyncio.sleep(seconds)
