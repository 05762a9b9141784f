"""What `verify recovery` is asked to try, and the seam through which it is tried."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swarmctl.errors import UsageError
from swarmctl.events import Event, NodeReady
from swarmctl.matrix import QUICK, Cell, Cover, Fault, Moment, Traffic, Victim, full, impossible, parse_cell, select
from swarmctl.matrix.choice import FAMILIES
from swarmctl.trial import CellStarting, Progress, StageStarting, Subject
from swarmctl_cli.views.recovery_live import NodeUp, Told

if TYPE_CHECKING:
    from swarmctl.operations.site import Site


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """`site`: the operator's own swarm, None for ephemeral local ones. `save`: a folder for the histories."""

    cells: tuple[Cell, ...]
    subjects: tuple[Subject, ...]
    site: Site | None = None
    save: Path | None = None


Trying = Callable[[Attempt, Callable[[Told], None]], object]
"""Tries every cell of an attempt and tells each step of it, in order; what became of a cell is its `CellDone`."""

_AT_ONCE_S = 2.0
"""Before each cell all its nodes are looked at; one that is ready sooner than this has never been away."""


class Arrivals:
    """Tells who comes up, between the steps of a run: while a swarm is prepared each node once, with its number."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._awaited: frozenset[str] = frozenset()
        self._ready: set[str] = set()

    def step(self, progress: Progress) -> None:
        """Take a step of the run, and pass it on."""
        if isinstance(progress, StageStarting):
            self._awaited, self._ready = frozenset(progress.nodes), set()
        elif isinstance(progress, CellStarting):
            self._awaited = frozenset()
        self._tell(progress)

    def event(self, event: Event) -> None:
        """Take an event of the stage; an `EventSink`."""
        if not isinstance(event, NodeReady):
            return
        node = str(event.node)
        if self._awaited and node in self._awaited - self._ready:
            self._ready.add(node)
            numbers = (len(self._ready), len(self._awaited))
            self._tell(NodeUp(node=node, took_s=event.took_s, ready=numbers[0], total=numbers[1]))
        elif not self._awaited and event.took_s >= _AT_ONCE_S:
            self._tell(NodeUp(node=node, took_s=event.took_s))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The cells that a command line means: those named, or those of a list that fit each axis."""

    names: tuple[str, ...] = ()
    full: bool = False
    families: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    moments: tuple[Moment, ...] = ()
    victims: tuple[Victim, ...] = ()
    covers: tuple[Cover, ...] = ()
    traffics: tuple[Traffic, ...] = ()

    def cells(self, *, own: str | None = None) -> tuple[Cell, ...]:
        """The cells to try. `own`: what the operator's model calls itself; None for ephemeral swarms.

        Raises:
            UsageError: a name is no cell, a cell makes no sense, a family is not to be had, or nothing is left.
        """
        if self.names and (self.full or self._narrow):
            raise UsageError(
                "the cells are named one by one, so there is nothing for the other options to choose from",
                hints=["leave the names away, or --full and the options of the axes"],
            )
        self._check_families((own,) if own is not None else FAMILIES)
        cells = self._named() if self.names else full() if self.full else QUICK
        if own is not None:
            cells = tuple(dict.fromkeys(replace(cell, family=own) for cell in cells))
        return self._fitting(cells) if self._narrow else cells

    def made(self, cells: Iterable[Cell], *, own: str | None = None) -> tuple[Cell, ...]:
        """Those of `cells` that are in neither list and were made because the options of the axes ask for them."""
        if not self._narrow:
            return ()
        known = {cell if own is None else replace(cell, family=own) for cell in (*QUICK, *full())}
        return tuple(cell for cell in cells if cell not in known)

    def among(self, cells: Iterable[Cell]) -> frozenset[Cell]:
        """Those of `cells`, which were tried before, that are meant; all of them if nothing is said.

        Raises:
            UsageError: a name is no cell, or no cell fits.
        """
        there = tuple(dict.fromkeys(cells))
        meant = self._named() if self.names else self._fitting(there) if self._narrow else there
        found = frozenset(meant) & frozenset(there)
        if not found:
            raise UsageError("no saved history is of such a cell", reasons=[f"there are: {', '.join(map(str, there))}"])
        return found

    @property
    def _narrow(self) -> bool:
        return any((self.families, self.faults, self.moments, self.victims, self.covers, self.traffics))

    def _named(self) -> tuple[Cell, ...]:
        cells = tuple(dict.fromkeys(map(parse_cell, self.names)))
        for cell in cells:
            why = impossible(cell)
            if why is not None:
                raise UsageError(f"{cell} cannot be tried", reasons=[why], hints=["swarmctl verify recovery --list"])
        return cells

    def _fitting(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        return select(
            cells,
            families=self.families,
            faults=self.faults,
            moments=self.moments,
            victims=self.victims,
            covers=self.covers,
            traffics=self.traffics,
        )

    def _check_families(self, known: Sequence[str]) -> None:
        asked = dict.fromkeys((*(name.partition("/")[0] for name in self.names), *self.families))
        unknown = [family for family in asked if family not in known]
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, n=1)
            raise UsageError(
                f"no swarm here serves a model of the family {unknown[0]}",
                reasons=[f"there is {', '.join(known)}"],
                hints=[
                    *(f"did you mean {family}?" for family in near),
                    *(["a swarm of your own: swarmctl verify recovery -c FILE"] if len(known) > 1 else []),
                ],
                context={"family": unknown[0], "known": list(known)},
            )
