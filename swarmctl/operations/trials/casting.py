"""Which nodes play which part in a cell: the first route, who is struck, who takes over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.matrix import Cell, Cover, Fault, Moment, Victim
from swarmctl.routing import Offer, Route, choose_route

# Each span of a route has a few candidates, so a large swarm has very many routes; the first ones are good enough.
_MOST_ROUTES = 2000

# These faults take no server away: whoever is in the route stays there.
_NOBODY_IS_LOST = (Fault.FORGET, Fault.EXPIRE)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One node and the blocks that it serves in the route."""

    node: NodeName
    blocks: BlockRange


@dataclass(frozen=True, kw_only=True)
class Cast:
    """`victims`: those of the route that are struck, and with Victim.ALL everybody who could replace them.

    `cover` takes over; `reserve` takes over from the cover, where that is struck too. Everybody else is kept out.
    """

    route: tuple[Part, ...]
    victims: tuple[NodeName, ...]
    cover: tuple[NodeName, ...] = ()
    reserve: tuple[NodeName, ...] = ()

    @property
    def needed(self) -> tuple[NodeName, ...]:
        """All nodes that must serve before the cell begins."""
        return tuple(dict.fromkeys((*(part.node for part in self.route), *self.cover, *self.reserve)))

    @property
    def struck(self) -> tuple[NodeName, ...]:
        """Everybody to whom something may be done."""
        return (*self.victims, *self.cover) if self.reserve else self.victims


@dataclass(frozen=True, kw_only=True)
class NoCast:
    """This swarm cannot play the cell; `reason` says what it lacks."""

    reason: str


def assign(
    cell: Cell, nodes: Mapping[NodeName, BlockRange], num_blocks: int, *, alive: Collection[NodeName] = ()
) -> Cast | NoCast:
    """The parts of a cell among `nodes`; of several ways the one that starts fewest nodes beside those `alive`."""
    # Those that are alive come first wherever several would do.
    nodes = {name: nodes[name] for name in sorted(nodes, key=lambda name: (name not in alive, name))}
    best: tuple[tuple[int, int], Cast] | None = None
    lacking = f"no route through {num_blocks} blocks"
    for route in islice(_routes(nodes, num_blocks), _MOST_ROUTES):
        for victims in _victims(cell, route) if _is_taken(route, nodes) else ():
            cast = _with_cover(cell, nodes, route, victims)
            if isinstance(cast, NoCast):
                lacking = cast.reason
                continue
            price = (len(set(cast.needed) - set(alive)), len(cast.needed))
            if best is None or price < best[0]:
                best = (price, cast)
    return best[1] if best is not None else NoCast(reason=lacking)


def _routes(nodes: dict[NodeName, BlockRange], num_blocks: int) -> Iterator[tuple[Part, ...]]:
    """Every way through the blocks in which each server serves its last block, or the model's."""
    pending: list[tuple[Part, ...]] = [()]
    while pending:
        route = pending.pop()
        at = route[-1].blocks.end if route else 0
        if at == num_blocks:
            yield route
            continue
        taken = {part.node for part in route}
        for name in reversed(nodes):
            if name not in taken and at in nodes[name]:
                pending.append((*route, Part(node=name, blocks=BlockRange(at, nodes[name].end))))


def _is_taken(route: Sequence[Part], nodes: Mapping[NodeName, BlockRange]) -> bool:
    """True if a client that knows these servers alone takes this way, and no shorter one over some of them."""
    offers = [Offer(peer=PeerId(part.node), blocks=nodes[part.node]) for part in route]
    chosen = choose_route(offers, BlockRange(0, route[-1].blocks.end))
    return isinstance(chosen, Route) and chosen.hops == tuple((PeerId(part.node), part.blocks) for part in route)


def _victims(cell: Cell, route: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    """The parts of the route that this victim may mean. A route of one server has a first one only."""
    last = len(route) - 1
    match cell.victim:
        case Victim.FIRST:
            yield (route[0],)
        case Victim.MIDDLE:
            yield from ((part,) for part in route[1:last])
        case Victim.LAST:
            if last:
                yield (route[last],)
        case Victim.TWO:
            if last:
                yield (route[0], route[last])
        case Victim.HEIR | Victim.ALL:
            yield from ((part,) for part in route)


def _with_cover(
    cell: Cell, nodes: Mapping[NodeName, BlockRange], route: tuple[Part, ...], victims: tuple[Part, ...]
) -> Cast | NoCast:
    struck = tuple(part.node for part in victims)
    if cell.fault in _NOBODY_IS_LOST or (cell.fault is Fault.RESTART and cell.victim is not Victim.ALL):
        return Cast(route=route, victims=struck)
    free = {name: blocks for name, blocks in nodes.items() if name not in {part.node for part in route}}
    cover: list[NodeName] = []
    for part in victims:
        found = _cover(cell.cover, part.blocks, free)
        if found is None:
            return NoCast(reason=f"nobody is left to cover {part.blocks} as {cell.cover.value}")
        cover += found
        free = {name: blocks for name, blocks in free.items() if name not in found}
    if cell.victim is Victim.ALL:
        return Cast(route=route, victims=(*struck, *cover), cover=tuple(cover))
    if cell.victim is not Victim.HEIR and cell.moment is not Moment.REPLAY:
        return Cast(route=route, victims=struck, cover=tuple(cover))
    heirs = nodes[cover[0]].intersection(victims[0].blocks)
    reserve = None if heirs is None else _anybody(heirs, free)
    if reserve is None:
        return NoCast(reason=f"nobody is left to take {heirs} over from {cover[0]}")
    return Cast(route=route, victims=struck, cover=tuple(cover), reserve=reserve)


def _cover(cover: Cover, blocks: BlockRange, free: Mapping[NodeName, BlockRange]) -> tuple[NodeName, ...] | None:
    match cover:
        case Cover.SAME:
            whole = [name for name, held in free.items() if held.start == blocks.start and held.covers(blocks)]
            return (min(whole, key=lambda name: free[name].end),) if whole else None
        case Cover.LONGER:
            earlier = [name for name, held in free.items() if held.start < blocks.start and held.covers(blocks)]
            return (earlier[0],) if earlier else None
        case Cover.SPLIT:
            return next(_split(blocks, free), None)


def _split(blocks: BlockRange, free: Mapping[NodeName, BlockRange]) -> Iterator[tuple[NodeName, NodeName]]:
    """Two servers that hold the range together, neither of them alone."""
    short = {name: held for name, held in free.items() if not held.covers(blocks)}
    for left, head in short.items():
        if blocks.start in head:
            yield from ((left, right) for right, tail in short.items() if head.end in tail and tail.end >= blocks.end)


def _anybody(blocks: BlockRange, free: Mapping[NodeName, BlockRange]) -> tuple[NodeName, ...] | None:
    for cover in Cover:
        found = _cover(cover, blocks, free)
        if found is not None:
            return found
    return None
