"""Are the tokens those of the undisturbed run, and if not: can arithmetic alone be the cause? Pure."""

from __future__ import annotations

from swarmctl.checkers import difference
from swarmctl.trial.values import Run, Tokens, Verdict

TIE = 4.0
"""Another token may be chosen where the undisturbed run's best was ahead by at most so many times the distance of the
hidden states: each of the two best logits moves with them, in its own direction."""

DRIFT = 2e-2
"""How far hidden states may be apart, relative to the largest value, for arithmetic to be the cause. Rounding in
float16 or with quantised weights stays below it; a cache that lacks or doubles a position does not."""


def compare(run: Run) -> tuple[Verdict, str] | None:
    """What is wrong with the answer of a run that has one: a verdict and the reason; None if its tokens are equal.

    Only the first token that differs can be excused: what follows it was asked another question.
    """
    if run.local is not None:
        astray = _first(run.expected, run.local)
        if astray is not None:
            return Verdict.DIFFERENT, f"the undisturbed run is not what transformers alone makes: {astray[1]}"
    found = None if run.ids is None else _first(run.ids, run.expected)
    if found is None:
        return None
    place, words = found
    step = None if place is None else len(run.margins) - len(run.expected[0]) + place
    if step is None or not 0 <= step < min(len(run.margins), len(run.distances)):
        return Verdict.DIFFERENT, words
    margin, distance = run.margins[step], run.distances[step]
    numbers = f"the best token led by {margin:.2g} there, and hidden states differ by {distance:.2g}"
    tie = distance > 0 and margin <= TIE * distance
    if tie and all(earlier <= DRIFT for earlier in run.distances[: step + 1]):
        return Verdict.WITHIN, f"{words}: {numbers}, which decides such a tie"
    return Verdict.DIFFERENT, f"{words}; {numbers}"


def _first(got: Tokens, wanted: Tokens) -> tuple[int | None, str] | None:
    """The earliest difference: its place, None where tokens are lost or doubled, and what differs there."""
    if len(got) != len(wanted):
        return None, f"there are {len(got)} sequences, not {len(wanted)}"
    found: list[tuple[int, bool, str]] = []
    for number, (row, other) in enumerate(zip(got, wanted, strict=True)):
        words = difference(row, other)
        if words is not None:
            both = min(len(row), len(other))
            place = next((at for at in range(both) if row[at] != other[at]), None)
            which = f"sequence {number}: " if len(got) > 1 else ""
            found.append((both if place is None else place, place is not None, which + words))
    if not found:
        return None
    place, is_choice, words = min(found)
    return (place if is_choice else None), words
