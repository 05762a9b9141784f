"""Which servers a session uses: the cheapest exact tiling of a block range, and who is left alone for a while.

A server may be entered after its first block and left before its last one, so the route is a shortest path over
(block, server). Costs are whole nanoseconds: sums are exact, so ties are real, and are always broken the same way.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from swarmctl.blocks import BlockRange, PeerId, ranges_of

HOP_COST_S = 0.018
"""Serialization and handlers of one hop: petals' measured `overhead_delay`; 16 to 25 ms were measured again."""
DEFAULT_INFERENCE_RPS = 300.0
"""What the stock client assumes of a server that announces no rate."""
DEFAULT_RTT_S = 0.15
"""What the stock client assumes of a server that has not been pinged."""
UNREACHABLE_RTT_S = 30.0
"""The most a round trip counts for, infinity (no answer) included: dearer than a full cache, so it is tried last."""
NO_ROOM_COST_S = 10.0
"""What a hop costs more if its server has no room for the session's cache: petals' `alloc_delay`."""

BAN_BASE_S = 5.0
BAN_MAX_S = 60.0
BUSY_AVOID_S = 2.0
SLOW_AVOID_S = 5.0
"""How long a server is left alone that another one was faster than: a client's update period, within which it is
pinged again."""

_NS = 1_000_000_000
_SLOWEST_RPS = 1e-3  # stands for a rate that is announced as zero or less: such a server is taken last


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one server can do for a session.

    `inference_rps`: tokens per second through one block. `rtt_s`: client to server and back, infinite if it did not
    answer. `cache_tokens_left`: free attention cache in tokens times blocks, a token's key and value together
    counting once (petals announces them as two). None always means: not known.
    """

    peer: PeerId
    blocks: BlockRange
    inference_rps: float | None = None
    rtt_s: float | None = None
    cache_tokens_left: int | None = None


@dataclass(frozen=True, kw_only=True)
class Route:
    """Servers in block order whose ranges tile what was asked for; neighbours differ. `cost_s`: of one token."""

    hops: tuple[tuple[PeerId, BlockRange], ...]
    cost_s: float


@dataclass(frozen=True, kw_only=True)
class NoRoute:
    """No admissible server offers the blocks in `missing`, which is never empty."""

    missing: tuple[BlockRange, ...]


def choose_route(
    offers: Sequence[Offer],
    need: BlockRange,
    *,
    avoid: frozenset[PeerId] = frozenset(),
    cache_tokens: int = 0,
    hop_cost_s: float = HOP_COST_S,
) -> Route | NoRoute:
    """The cheapest route through `need` that uses nobody in `avoid`.

    A hop costs its round trip and `hop_cost_s`, each block `1 / inference_rps`, and a hop whose server is known to
    lack room for `cache_tokens` (batch times maximal length) in each block it takes costs `NO_ROOM_COST_S` more.
    Ties go to fewer hops, then, hop by hop, to the smaller peer id and the longer range. Of several offers of one
    peer the last counts. A peer that is visited twice, with another in between, is judged by each visit alone.
    """
    newest = {offer.peer: offer for offer in offers if offer.peer not in avoid}
    lanes = [
        _Lane(offer, blocks, cache_tokens, hop_cost_s)
        for offer in newest.values()
        if (blocks := offer.blocks.intersection(need)) is not None
    ]
    covered = {block for lane in lanes for block in range(lane.start, lane.end)}
    missing = ranges_of(block for block in need if block not in covered)
    return NoRoute(missing=missing) if missing else _shortest(lanes, need)


@dataclass(frozen=True, kw_only=True)
class _Ban:
    strikes: int = 0
    failed_until_s: float = -math.inf
    busy_until_s: float = -math.inf
    slow_until_s: float = -math.inf


class BanList:
    """Peers to leave alone for a while. It knows no clock: every moment is given, in monotonic seconds.

    A failure bans for 5 s, the next ones for 10, 20, 40 and then 60 s each, until a success. What fails while its ban
    runs adds no strike: eight sessions that lose one server have seen one death. "busy", "undialled" and "slow" are no
    failures: the peer is left alone for 2 s, 2 s and 5 s. Nor is "expired": the server is well. Threads may share one
    list.
    """

    def __init__(self) -> None:
        self._bans: dict[PeerId, _Ban] = {}

    def banned(self, now: float, *, slow: bool = True) -> frozenset[PeerId]:
        """The peers to leave alone at `now`; without those that are merely `slow`, which are better than nobody."""
        return frozenset(
            peer
            # A copy, because another thread may record while this one looks.
            for peer, ban in self._bans.copy().items()
            if now < max(ban.failed_until_s, ban.busy_until_s, ban.slow_until_s if slow else now)
        )

    def record_failure(self, peer: PeerId, now: float, kind: str) -> None:
        """`peer` failed at `now`; `kind` as in `events.PeerFailed`. No ban is shortened by it."""
        before = self._bans.get(peer, _Ban())
        if kind == "expired":
            return
        if kind == "slow":
            after = replace(before, slow_until_s=now + SLOW_AVOID_S)
        elif kind in ("busy", "undialled"):
            after = replace(before, busy_until_s=now + BUSY_AVOID_S)
        else:
            strikes = before.strikes + (now >= before.failed_until_s)
            # The exponent is bounded because 2.0 ** 1024 is an error; the limit is reached long before.
            pause_s = min(BAN_MAX_S, BAN_BASE_S * 2.0 ** min(strikes - 1, 16))
            after = replace(before, strikes=strikes, failed_until_s=max(before.failed_until_s, now + pause_s))
        self._bans[peer] = after

    def record_success(self, peer: PeerId) -> None:
        """`peer` did what it was asked to: its failures are forgotten."""
        self._bans.pop(peer, None)


class Returns:
    """Tells who has come back of those that failed, by what servers say of themselves. It knows no clock either.

    Records outlive their servers, and the newest may have been written a moment before the death. So the first reading
    of the DHT that began after a failure only says where things stood; a record that is newer than that one was
    written by a living server. It proves that the announcing process lives, which is enough for one whose connection
    was lost. One that was silent or broken may announce itself all the while: it must have been away, and be back.
    """

    def __init__(self) -> None:
        self._watched: dict[PeerId, _Gone] = {}

    def record_failure(self, peer: PeerId, kind: str, *, readings: int) -> None:
        """`peer` failed when so many readings had begun; `kind` as in `events.PeerFailed`."""
        if kind not in ("busy", "slow", "expired", "undialled"):
            self._watched[peer] = _Gone(since=readings, may_announce=kind in ("silent", "broken"))

    def back(self, reading: int, online: Mapping[PeerId, float]) -> tuple[PeerId, ...]:
        """Who is back by the reading of this number: `online` has when each server's newest record ends.

        Those are not watched any more. A peer whose record says anything but that it serves is not in `online`.
        """
        returned = tuple(peer for peer, gone in self._watched.items() if gone.returned(reading, online.get(peer)))
        for peer in returned:
            del self._watched[peer]
        return returned


@dataclass(kw_only=True)
class _Gone:
    since: int
    may_announce: bool
    looked: bool = False
    ends: float | None = None

    def returned(self, reading: int, ends: float | None) -> bool:
        if reading <= self.since:
            return False
        if ends is not None and self.looked:
            return self.ends is None or (ends > self.ends and not self.may_announce)
        self.looked, self.ends = True, ends
        return False


def choose_with_bans(
    offers: Sequence[Offer],
    need: BlockRange,
    *,
    bans: BanList,
    now: float,
    tried: frozenset[PeerId] = frozenset(),
    cache_tokens: int = 0,
) -> Route | NoRoute:
    """As `choose_route`, without the banned and without those in `tried`.

    Where that leaves blocks without a server, the bans of their holders are lifted for this choice, first of those
    that are merely slow: a server that failed a while ago is better than none. Those in `tried` stay out; a `NoRoute`
    names what only they could serve.
    """
    banned = bans.banned(now)
    for still in (bans.banned(now, slow=False), frozenset[PeerId]()):
        route = choose_route(offers, need, avoid=banned | tried, cache_tokens=cache_tokens)
        if isinstance(route, Route):
            return route
        holders = {offer.peer for offer in offers for gap in route.missing if offer.blocks.intersection(gap)}
        banned -= holders - still
    return choose_route(offers, need, avoid=banned | tried, cache_tokens=cache_tokens)


# --- the shortest path ------------------------------------------------------------------------------------------
#
# Backwards over the block boundaries. A weight is nanoseconds times 65536 plus hops, so that one comparison orders
# by cost and then by hops. For each boundary the best tail is kept, and the best one that starts with another peer:
# a peer cannot come right after itself, since that is one hop, and its cache must have room for all of it.


class _Tail(NamedTuple):
    """A way from block `start` to the end: first by `peer`, then, from `rest.start` on, as `rest`; None at the end."""

    weight: int
    peer: PeerId
    start: int
    rest: _Tail | None


def _shortest(lanes: Sequence[_Lane], need: BlockRange) -> Route:
    """The best route; every block of `need` is in a lane, and `lanes` have distinct peers."""
    tails = [_Tail(0, PeerId(""), need.end, None)]
    for block in range(need.end - 1, need.start - 1, -1):
        entered = [lane.enter(block, tails) for lane in lanes if lane.start <= block < lane.end]
        tails = heapq.nsmallest(2, entered)
    tail = tails[0]
    cost_s = (tail.weight >> 16) / _NS
    hops = []
    while tail.rest is not None:
        hops.append((tail.peer, BlockRange(tail.start, tail.rest.start)))
        tail = tail.rest
    return Route(hops=tuple(hops), cost_s=cost_s)


class _Lane:
    """One server's part of the range, walked from its last block to its first.

    Of the places where it can be left, `near` keeps those that its cache has room for, best first, without those
    that a nearer one beats for good; `far` is the best of the others. Each enters and leaves once, so a walk costs
    as much as there are blocks.
    """

    def __init__(self, offer: Offer, blocks: BlockRange, cache_tokens: int, hop_cost_s: float) -> None:
        self.start, self.end = blocks.start, blocks.end
        self._peer = offer.peer
        self._hop = _weight(_rtt_s(offer.rtt_s) + hop_cost_s) + 1
        self._block = _weight(_block_s(offer.inference_rps))
        left = offer.cache_tokens_left
        self._room = len(blocks) if left is None or cache_tokens <= 0 else left // cache_tokens
        self._near: deque[tuple[int, _Tail]] = deque()
        self._far: tuple[int, _Tail] | None = None

    def enter(self, block: int, tails: Sequence[_Tail]) -> _Tail:
        """The best way from `block` that starts here. To be called for each block of the lane, the last one first.

        `tails`: the best one or two from the block after it, which start with different peers.
        """
        near, far, step = self._near, self._far, self._block
        for tail in tails:
            if tail.peer != self._peer:
                key = tail.weight + tail.start * step
                while near and near[-1][0] > key:
                    near.pop()
                near.append((key, tail))
                break
        # At most one place a call gets out of reach, because all of them move away by one block.
        if near and near[0][1].start - block > self._room:
            gone = near.popleft()
            if far is None or gone[0] < far[0]:
                self._far = far = gone
        if far is not None and (not near or far[0] + _NO_ROOM <= near[0][0]):
            key, tail = far[0] + _NO_ROOM, far[1]
        else:
            key, tail = near[0]
        return _Tail(key - block * step + self._hop, self._peer, block, tail)


def _weight(seconds: float) -> int:
    return round(seconds * _NS) << 16


def _rtt_s(rtt_s: float | None) -> float:
    # A NaN is an unknown time; no comparison with it is true.
    return min(rtt_s, UNREACHABLE_RTT_S) if rtt_s is not None and rtt_s >= 0 else DEFAULT_RTT_S


def _block_s(rps: float | None) -> float:
    if rps is None:
        return 1 / DEFAULT_INFERENCE_RPS
    return 1 / rps if rps > _SLOWEST_RPS else 1 / _SLOWEST_RPS


_NO_ROOM = _weight(NO_ROOM_COST_S)
