"""Do the clocks agree? The DHT refuses records of peers whose clock is more than three seconds off. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from swarmctl.operations.hosts.findings import Finding, Level, Topic
from swarmctl.operations.hosts.seen import Clock, Seen

TOLERATED_S = 3.0
"""hivemind's MAX_DHT_TIME_DISCREPANCY_SECONDS."""

HERE = "this machine"


def judge_clocks(hosts: Sequence[Seen]) -> Iterator[Finding]:
    """One finding a host, one for this machine if it is the one that is off, and one a pair that is too far apart."""
    clocks = {seen.host: seen.clock for seen in hosts if seen.clock is not None}
    off = {host: clock for host, clock in clocks.items() if _far(clock.ahead_s, clock.error_s)}
    agree = not any(_apart(one, other) for one, other in combinations(clocks.values(), 2))
    mine = len(clocks) > 1 and len(off) == len(clocks) and agree
    for host, clock in clocks.items():
        wrong = host in off and not mine
        yield Finding(
            host=host,
            topic=Topic.CLOCK,
            level=Level.FAULT if wrong else Level.OK,
            found=f"{clock.ahead_s:+.1f} s",
            sentence=_sentence(f"host {host}", clock, "this machine's") if wrong else None,
            hint=f"on {host}: timedatectl set-ntp true (or start chrony)" if wrong else None,
        )
    if mine:
        clock = next(iter(off.values()))
        yield Finding(
            host=HERE,
            topic=Topic.CLOCK,
            level=Level.FAULT,
            found=f"{-clock.ahead_s:+.1f} s",
            sentence=_sentence(HERE, Clock(ahead_s=-clock.ahead_s, error_s=clock.error_s), "that of all hosts"),
            hint="here: timedatectl set-ntp true (or start chrony)",
        )
    for (one, first), (other, second) in combinations(clocks.items(), 2):
        if one in off or other in off or not _apart(first, second):
            continue
        apart = f"{abs(first.ahead_s - second.ahead_s):.1f} s apart"
        yield Finding(
            host=other,
            topic=Topic.CLOCK,
            level=Level.FAULT,
            found=f"{second.ahead_s:+.1f} s",
            sentence=f"the clocks of hosts {one} and {other} are {apart}; the DHT tolerates {TOLERATED_S:g} s",
            hint=f"on {one} and {other}: timedatectl set-ntp true (or start chrony)",
        )


def _far(seconds: float, error_s: float) -> bool:
    return abs(seconds) > TOLERATED_S - error_s


def _apart(one: Clock, other: Clock) -> bool:
    return _far(one.ahead_s - other.ahead_s, one.error_s + other.error_s)


def _sentence(whose: str, clock: Clock, reference: str) -> str:
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return (
        f"the clock of {whose} is {abs(clock.ahead_s):.1f} s (±{clock.error_s:.2f} s) {way} {reference}; "
        f"the DHT tolerates {TOLERATED_S:g} s"
    )
