"""Whom the cells would strike on a swarm, and which of them it cannot play, before anything is done to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarmctl.blocks import NodeName
from swarmctl.matrix import Cell
from swarmctl.operations.trials.casting import Cast, NoCast, assign
from swarmctl.operations.trials.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Foresight:
    """`victims`: the cells that can be played, in the order asked, each with the nodes it strikes.

    `left_out`: the others, each with the reason. `forbidden`: those of them that the swarm could play but cannot
    spare the victims for, each with the reasons of `coverage.assess`.
    """

    victims: Mapping[Cell, tuple[NodeName, ...]]
    left_out: Mapping[Cell, str]
    forbidden: Mapping[Cell, tuple[str, ...]]

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """Everybody who would be struck, in the order in which it first happens."""
        return tuple(dict.fromkeys(node for struck in self.victims.values() for node in struck))


def foresee(stage: Stage, cells: Iterable[Cell]) -> Foresight:
    """What `cells` would do to the nodes of `stage`; does nothing to them.

    Raises:
        Refused: as `Stage.forbids`.
    """
    victims: dict[Cell, tuple[NodeName, ...]] = {}
    left_out: dict[Cell, str] = {}
    forbidden: dict[Cell, tuple[str, ...]] = {}
    judged: dict[frozenset[NodeName], tuple[str, ...]] = {}
    for cell in cells:
        cast = _cast(stage, cell)
        if isinstance(cast, NoCast):
            left_out[cell] = cast.reason
            continue
        struck = frozenset(cast.struck)
        if struck not in judged:
            judged[struck] = stage.forbids(cast.struck)
        against = judged[struck]
        if against:
            left_out[cell] = "; ".join(against)
            forbidden[cell] = against
        else:
            victims[cell] = cast.struck
    return Foresight(victims=victims, left_out=left_out, forbidden=forbidden)


def _cast(stage: Stage, cell: Cell) -> Cast | NoCast:
    unable = stage.can(cell.fault)
    if unable is not None:
        return NoCast(reason=unable)
    nodes = stage.nodes_for(cell.fault)
    return assign(cell, nodes, stage.num_blocks, alive=tuple(nodes))
