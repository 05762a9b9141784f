"""Which cells are run: a quick list, a full one, and what is picked out of a list by its axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain, combinations, product
from typing import Any

from swarmctl.errors import UsageError
from swarmctl.matrix.cell import AXES, Cell, Cover, Fault, Moment, Traffic, Victim, impossible, objection, parse_cell

FAMILIES = ("llama", "bloom")
"""The families of which swarmctl makes tiny checkpoints of its own."""

# In each family those that kill nobody come first, and the replicas of a block all at once last: a killed server takes
# longer to come back than a cell takes to run.
QUICK: tuple[Cell, ...] = tuple(
    parse_cell(name)
    for name in (
        "llama/slow/mid-step/last/same/greedy",
        "llama/expire/idle/first/same/chat",
        "llama/pause/mid-step/last/same/greedy",
        "llama/partition/between/first/split/several",
        "llama/late/mid-step/last/same/beams",
        "llama/kill/replay/first/split/greedy",
        "bloom/kill/mid-step/last/same/greedy",
        "bloom/stop/mid-step/first/same/sampling",
        "bloom/kill/between/last/same/batches",
        "bloom/kill/mid-step/all/same/greedy",
    )
)
"""The faults that matter most, over both families, for two cores and less than four minutes."""

# One server more in the route, and one whose first block has no history yet: asked of the spans where a small swarm
# can have them.
_COVERED = {Cover.SAME: tuple(Victim), Cover.SPLIT: (Victim.FIRST,), Cover.LONGER: (Victim.LAST,)}
_FIELDS = ("family", *(kind.__name__.lower() for kind in AXES))
_DEFAULT = Cell(family=FAMILIES[0])

_Trait = tuple[str, ...]


def full() -> tuple[Cell, ...]:
    """Cells that together show every value of every axis in both families, and each traffic with a kill in both.

    In llama they show each fault at each of its moments and to each of its victims, too. A family's cells stand
    together, and neighbours have different victims: while one server comes back, another is struck.
    """
    with_trait: dict[_Trait, list[Cell]] = {}
    for cell in _candidates():
        for trait in _traits(cell):
            with_trait.setdefault(trait, []).append(cell)
    missing: set[_Trait] = set(with_trait)
    chosen: list[Cell] = []
    # Covers first, with plain cells. Of the others those of two axes, which bring single values along, and the odd
    # ones before the plain: else odd moments and odd victims would be left for each other.
    rank = {trait: (trait[1] == "cover", len(trait), min(map(_oddity, cells))) for trait, cells in with_trait.items()}
    for trait in sorted(with_trait, key=lambda trait: rank[trait], reverse=True):
        if trait in missing:
            chosen.append(_best(with_trait[trait], missing, chosen))
            missing.difference_update(_traits(chosen[-1]))
    return tuple(chain.from_iterable(_apart([cell for cell in chosen if cell.family == name]) for name in FAMILIES))


def select(
    cells: Sequence[Cell],
    *,
    families: Sequence[str] = (),
    faults: Sequence[Fault] = (),
    moments: Sequence[Moment] = (),
    victims: Sequence[Victim] = (),
    covers: Sequence[Cover] = (),
    traffics: Sequence[Traffic] = (),
) -> tuple[Cell, ...]:
    """The cells that have one of the given values on each axis; an axis without values takes all.

    A combination of values that no cell has gets a cell of its own, as near to a plain kill as it can be; one that
    is impossible is left out. A family that is not in the list gets the list's cells.

    Raises:
        UsageError: when nothing is left; it says of each combination why.
    """
    axes = zip(_FIELDS, (families, faults, moments, victims, covers, traffics), strict=True)
    given: dict[str, Sequence[Any]] = {axis: values for axis, values in axes if values}
    strangers = [family for family in families if family not in {cell.family for cell in cells}]
    among = (*cells, *(replace(cell, family=family) for family in strangers for cell in cells))
    chosen: list[Cell] = []
    reasons: list[str] = []
    for values in product(*given.values()):
        wanted = dict(zip(given, values, strict=True))
        found = [cell for cell in among if all(getattr(cell, axis) == value for axis, value in wanted.items())]
        own = None if found else _plainest(wanted, family=cells[0].family if cells else _DEFAULT.family)
        if isinstance(own, str):
            reasons.append(f"{', '.join(map(_word, values))}: {own}")
        chosen += found if own is None else [own] if isinstance(own, Cell) else []
    if not chosen:
        raise UsageError("no cell is like that", reasons=reasons, hints=["swarmctl verify recovery --full --list"])
    order = {cell: place for place, cell in reversed(list(enumerate(among)))}
    return tuple(sorted(dict.fromkeys(chosen), key=lambda cell: order.get(cell, len(among))))


def _candidates() -> Iterator[Cell]:
    places = [(victim, cover) for cover, victims in _COVERED.items() for victim in victims]
    for family, fault, moment, (victim, cover), traffic in product(FAMILIES, Fault, Moment, places, Traffic):
        cell = Cell(family=family, fault=fault, moment=moment, victim=victim, cover=cover, traffic=traffic)
        if impossible(cell) is None:
            yield cell


def _traits(cell: Cell) -> Iterator[_Trait]:
    """What a cell shows. The names of the axes keep the moment `last` and the victim `last` apart."""
    if cell.family == FAMILIES[0]:
        yield cell.family, cell.fault.value, "moment", cell.moment.value
        yield cell.family, cell.fault.value, "victim", cell.victim.value
    if cell.fault is Fault.KILL:
        yield cell.family, cell.fault.value, "traffic", cell.traffic.value
    for axis in ("fault", "moment", "victim", "cover"):
        yield cell.family, axis, getattr(cell, axis).value


def _best(able: Sequence[Cell], missing: set[_Trait], chosen: Sequence[Cell]) -> Cell:
    """The one that shows most of what is missing; of several the plainest, with the victim that was rarest so far."""
    victims = Counter((cell.family, cell.victim) for cell in chosen)

    def worth(cell: Cell) -> tuple[int, int, int]:
        shows = sum(trait in missing for trait in _traits(cell))
        return shows, -_oddity(cell), -victims[cell.family, cell.victim]

    return max(able, key=worth)


def _oddity(cell: Cell) -> int:
    """How many of its values are not those of a plain kill; the first span and the last are equally plain."""
    odd: int = sum(
        getattr(cell, axis) != getattr(_DEFAULT, axis) for axis in _FIELDS if axis not in ("family", "victim")
    )
    return odd + (cell.victim not in (Victim.FIRST, Victim.LAST))


def _apart(cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells in an order in which neighbours have different victims, as long as there are different ones."""
    left = {victim: [cell for cell in cells if cell.victim is victim] for victim in Victim}
    last: Victim | None = None
    while any(left.values()):
        last = max(left, key=lambda victim: (victim is not last and bool(left[victim]), len(left[victim])))
        yield left[last].pop(0)


def _plainest(wanted: Mapping[str, Any], *, family: str) -> Cell | str:
    """The possible cell with these values that changes fewest of the others, or why there is none."""
    plain = replace(_DEFAULT, **{"family": family, **wanted})
    free = [kind for kind in AXES if kind.__name__.lower() not in wanted]
    least_wrong = (-1, "")
    for changes in range(len(free) + 1):
        for kinds in combinations(free, changes):
            names = [kind.__name__.lower() for kind in kinds]
            for values in product(*kinds):
                changed: dict[str, Any] = dict(zip(names, values, strict=True))
                cell = replace(plain, **changed)
                found = objection(cell)
                if found is None:
                    return cell
                least_wrong = max(least_wrong, found)
    return least_wrong[1]


def _word(value: str | Enum) -> str:
    return str(value.value) if isinstance(value, Enum) else value
