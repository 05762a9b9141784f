"""What a swarm can lose, judged in one place: `assess` decides what may be removed, `analyse` reports how things are.

Replicas are counted over distinct failure domains, because two servers that fail together are one replica. Only
what is certain counts: a peer that the file does not name, and blocks outside the model, count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import TypeVar

from swarmctl.blocks import BlockRange, HostName, NodeName, ranges_of
from swarmctl.snapshot import Snapshot
from swarmctl.spec import Domain, SwarmSpec

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A declared node that serves `blocks`, now or, for a forecast, as soon as it is started."""

    node: NodeName
    blocks: BlockRange


class Verdict(str, Enum):
    """REDUNDANT: the policy is met. THIN: every block is served, some below the policy. GAP: some are not served."""

    REDUNDANT = "REDUNDANT"
    THIN = "THIN"
    GAP = "GAP"


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """A maximal run of blocks with the same number of `replicas`, fewer than `wanted`."""

    blocks: BlockRange
    replicas: int
    wanted: int

    def __str__(self) -> str:
        return f"{self.blocks} has {self.replicas} of {self.wanted} replicas"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One span to add; `candidates`: the domains that hold none of its blocks, in the file's order."""

    blocks: BlockRange
    candidates: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A span to add, `times` times, each time in another domain.

    `candidates` as in `Piece`. Where they are fewer than `times`, `pieces` holds the fewest spans in its place that
    have so many candidates each, or nothing if the declared domains cannot give that. Repairs that overlap each
    other need different domains.
    """

    blocks: BlockRange
    times: int
    candidates: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CoverageReport:
    """The replicas of one moment, against a policy.

    `replicas` and `servers` have one entry a block: distinct domains (`by`), and nodes. `thin` and `below_target`
    hold the ranges below `minimum` and `target`; gaps are among them, with 0 replicas. `sole_holders` and
    `sole_hosts`: the ranges that the loss of one node, or of one host, would leave without a server; those it would
    not hurt are absent. `may_lose_nodes`, `may_lose_hosts`: holders of which any one may fail and the model still
    runs; both are empty while there is a gap. `tolerance`: any so many domains may fail together without a gap; -1
    if there is one already. `repairs`: what to add so that every block has `minimum` replicas; no block is added
    where none is missing, and of all such sets it has the fewest spans.
    """

    by: Domain
    minimum: int
    target: int
    verdict: Verdict
    tolerance: int
    replicas: tuple[int, ...]
    servers: tuple[int, ...]
    gaps: tuple[BlockRange, ...]
    thin: tuple[Shortfall, ...]
    below_target: tuple[Shortfall, ...]
    sole_holders: Mapping[NodeName, tuple[BlockRange, ...]]
    sole_hosts: Mapping[HostName, tuple[BlockRange, ...]]
    may_lose_nodes: tuple[NodeName, ...]
    may_lose_hosts: tuple[HostName, ...]
    repairs: tuple[Repair, ...]


@dataclass(frozen=True, kw_only=True)
class Harm:
    """A maximal run of blocks that forbids a removal: `before` and `after` count replicas over distinct `by`.

    `lost`: the removed nodes that hold any of these blocks; empty for a gap that is there already.
    """

    blocks: BlockRange
    before: int
    after: int
    minimum: int
    by: Domain
    lost: tuple[NodeName, ...]

    def __str__(self) -> str:
        if self.before == 0:
            return f"blocks {self.blocks} have no replica already"
        left = {0: "no replica", 1: "1 replica"}.get(self.after, f"{self.after} replicas")
        change = f"blocks {self.blocks} would have {left} instead of {self.before}"
        return f"{change}, the policy wants {self.minimum} by {self.by.value}; lost: {', '.join(self.lost)}"


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What a removal would leave. `replicas`: one entry a block, over the policy's domains.

    `safe`: every block keeps the policy's minimum, or, where it is below that already, keeps what it has; and no
    block is left a gap, not even one that is a gap already. A removal that takes no replica at all is always safe,
    so that a dead node can be restarted. `harms` says what speaks against it, and is empty exactly if it is safe.
    """

    removed: tuple[NodeName, ...]
    replicas: tuple[int, ...]
    gaps: tuple[BlockRange, ...]
    harms: tuple[Harm, ...]

    @property
    def safe(self) -> bool:
        """True if nothing speaks against the removal."""
        return not self.harms

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not safe, one line a range."""
        return tuple(str(harm) for harm in self.harms)


def holders_of(snapshot: Snapshot) -> tuple[Holder, ...]:
    """What was observed: the nodes that are ONLINE. Strangers count for nothing."""
    return tuple(Holder(node=node.name, blocks=node.blocks) for node in snapshot.replicas())


def holders_declared(spec: SwarmSpec) -> tuple[Holder, ...]:
    """What the file asks for, as if every node were ONLINE."""
    return tuple(Holder(node=node.name, blocks=node.blocks) for node in spec.nodes.values())


def analyse(
    spec: SwarmSpec, holders: Sequence[Holder], *, minimum: int | None = None, by: Domain | None = None
) -> CoverageReport:
    """How `holders` cover the model, against the file's policy or against `minimum` and `by`.

    A minimum below 1 counts as 1, and a target below the minimum as the minimum.
    """
    by = spec.redundancy.by if by is None else by
    floor = max(1, spec.redundancy.minimum if minimum is None else minimum)
    target = max(floor, spec.redundancy.target)
    on_block = _nodes_per_block(spec, holders)
    domains = [{spec.domain_of(node, by) for node in nodes} for nodes in on_block]
    replicas = tuple(len(each) for each in domains)
    gaps = _gaps(replicas)
    thin = _shortfalls(replicas, floor)
    sole_holders = _sole(spec.nodes, on_block)
    on_host = [{spec.nodes[node].host for node in nodes} for nodes in on_block]
    sole_hosts = _sole(spec.hosts, on_host)
    return CoverageReport(
        by=by,
        minimum=floor,
        target=target,
        verdict=Verdict.GAP if gaps else Verdict.THIN if thin else Verdict.REDUNDANT,
        tolerance=min(replicas) - 1,
        replicas=replicas,
        servers=tuple(len(nodes) for nodes in on_block),
        gaps=gaps,
        thin=thin,
        below_target=_shortfalls(replicas, target),
        sole_holders=sole_holders,
        sole_hosts=sole_hosts,
        may_lose_nodes=() if gaps else _others(spec.nodes, on_block, sole_holders),
        may_lose_hosts=() if gaps else _others(spec.hosts, on_host, sole_hosts),
        repairs=_repairs(replicas, floor, domains, _all_domains(spec, by)),
    )


def assess(spec: SwarmSpec, holders: Sequence[Holder], removed: frozenset[NodeName]) -> Assessment:
    """What would be left without the nodes in `removed`, and whether the policy allows that.

    Removing more is never safer. A name that holds nothing changes nothing.
    """
    policy, floor = spec.redundancy, max(1, spec.redundancy.minimum)
    on_block = _nodes_per_block(spec, holders)
    before = [len({spec.domain_of(node, policy.by) for node in nodes}) for nodes in on_block]
    after = [len({spec.domain_of(node, policy.by) for node in nodes - removed}) for nodes in on_block]

    def harmed(block: int) -> tuple[int, int] | None:
        keeps = after[block] > 0 and after[block] >= min(before[block], floor)
        return None if keeps else (before[block], after[block])

    takes_something = any(nodes & removed for nodes in on_block)
    harms = []
    for blocks, (was, left) in _runs(len(on_block), harmed) if takes_something else ():
        gone = removed & frozenset[NodeName]().union(*on_block[blocks.start : blocks.end])
        lost = tuple(node for node in spec.nodes if node in gone)
        harms.append(Harm(blocks=blocks, before=was, after=left, minimum=floor, by=policy.by, lost=lost))
    return Assessment(removed=tuple(sorted(removed)), replicas=tuple(after), gaps=_gaps(after), harms=tuple(harms))


def _nodes_per_block(spec: SwarmSpec, holders: Iterable[Holder]) -> list[frozenset[NodeName]]:
    found: list[set[NodeName]] = [set() for _ in range(spec.model.num_blocks)]
    for holder in holders:
        if holder.node in spec.nodes:
            for nodes in found[holder.blocks.start : holder.blocks.end]:
                nodes.add(holder.node)
    return [frozenset(nodes) for nodes in found]


def _runs(num_blocks: int, key: Callable[[int], _Key | None]) -> list[tuple[BlockRange, _Key]]:
    """Maximal runs of blocks with the same key; blocks whose key is None are left out."""
    runs = []
    for value, group in groupby(range(num_blocks), key):
        if value is not None:
            members = tuple(group)
            runs.append((BlockRange(members[0], members[-1] + 1), value))
    return runs


def _gaps(replicas: Sequence[int]) -> tuple[BlockRange, ...]:
    return ranges_of(block for block, count in enumerate(replicas) if count == 0)


def _shortfalls(replicas: Sequence[int], wanted: int) -> tuple[Shortfall, ...]:
    runs = _runs(len(replicas), lambda block: replicas[block] if replicas[block] < wanted else None)
    return tuple(Shortfall(blocks=blocks, replicas=count, wanted=wanted) for blocks, count in runs)


def _sole(names: Iterable[_Key], on_block: Sequence[Set[_Key]]) -> dict[_Key, tuple[BlockRange, ...]]:
    alone = {name: ranges_of(block for block, here in enumerate(on_block) if here == {name}) for name in names}
    return {name: ranges for name, ranges in alone.items() if ranges}


def _others(names: Iterable[_Key], on_block: Iterable[Iterable[_Key]], sole: Mapping[_Key, object]) -> tuple[_Key, ...]:
    holding = set[_Key]().union(*on_block)
    return tuple(name for name in names if name in holding and name not in sole)


def _all_domains(spec: SwarmSpec, by: Domain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(domain for host in spec.hosts for domain in spec.domains_of(host, by)))


def _repairs(
    replicas: Sequence[int], minimum: int, domains: Sequence[set[str]], everywhere: Sequence[str]
) -> tuple[Repair, ...]:
    times: dict[BlockRange, int] = {}
    # Layer by layer: the blocks that lack at least one replica, at least two, … Each run of a layer is one span, and
    # every rise of the shortfall along the blocks starts exactly one span, which no other set can do without.
    for level in range(minimum):
        for blocks in ranges_of(block for block, count in enumerate(replicas) if count <= level):
            times[blocks] = times.get(blocks, 0) + 1

    def free(blocks: BlockRange) -> tuple[str, ...]:
        taken = set[str]().union(*domains[blocks.start : blocks.end])
        return tuple(domain for domain in everywhere if domain not in taken)

    repairs = []
    for blocks, count in sorted(times.items(), key=lambda item: (item[0].start, -item[0].end)):
        candidates = free(blocks)
        pieces = () if len(candidates) >= count else _split(blocks, count, free)
        repairs.append(Repair(blocks=blocks, times=count, candidates=candidates, pieces=pieces))
    return tuple(repairs)


def _split(blocks: BlockRange, times: int, free: Callable[[BlockRange], tuple[str, ...]]) -> tuple[Piece, ...]:
    """The fewest pieces that have `times` candidates each; each piece goes as far as it can, which is optimal here."""
    pieces: list[Piece] = []
    start = blocks.start
    while start < blocks.end:
        fitting = None
        for end in range(start + 1, blocks.end + 1):
            candidates = free(BlockRange(start, end))
            if len(candidates) < times:
                break
            fitting = Piece(blocks=BlockRange(start, end), candidates=candidates)
        if fitting is None:
            return ()
        pieces.append(fitting)
        start = fitting.blocks.end
    return tuple(pieces)
