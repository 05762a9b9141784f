"""The few characters that views draw with, and what they become on a terminal without them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """`full`: a block that counts. `hollow`: declared, does not count. `absent`: not this node's.

    `near`: equal but for arithmetic. `unequal`: not what it should be. `unknown`: nothing can be said.
    """

    full: str
    hollow: str
    absent: str
    arrow: str
    cross: str
    tick: str
    bar: str
    rule: str
    near: str
    unequal: str
    unknown: str


UNICODE = Symbols(
    full="█",
    hollow="░",
    absent="·",
    arrow="→",
    cross="✗",
    tick="✓",
    bar="━",
    rule="─",
    near="≈",
    unequal="≠",
    unknown="?",
)
ASCII = Symbols(
    full="=",
    hollow="-",
    absent=".",
    arrow="->",
    cross="x",
    tick="ok",
    bar="#",
    rule="-",
    near="~",
    unequal="!=",
    unknown="?",
)


def choose(ascii_only: bool) -> Symbols:
    """The set for a stream that can, or cannot, show line-drawing characters."""
    return ASCII if ascii_only else UNICODE
