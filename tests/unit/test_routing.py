from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import ranges

from swarmctl.blocks import BlockRange, PeerId, ranges_of
from swarmctl.routing import HOP_COST_S, BanList, NoRoute, Offer, Route, choose_route, choose_with_bans

Hops = tuple[tuple[PeerId, BlockRange], ...]
NEED = BlockRange(0, 8)


def offer(
    peer: str,
    blocks: str = "0:8",
    *,
    rps: float | None = 100.0,
    rtt: float | None = 0.01,
    left: int | None = None,
) -> Offer:
    start, end = blocks.split(":")
    return Offer(
        peer=PeerId(peer),
        blocks=BlockRange(int(start), int(end)),
        inference_rps=rps,
        rtt_s=rtt,
        cache_tokens_left=left,
    )


def found(route: Route | NoRoute) -> Route:
    assert isinstance(route, Route), route
    return route


def text(route: Route | NoRoute) -> str:
    return " ".join(f"{peer}={blocks}" for peer, blocks in found(route).hops)


def peers(*ids: str) -> frozenset[PeerId]:
    return frozenset(PeerId(each) for each in ids)


# --- the route --------------------------------------------------------------------------------------------------


def test_one_server_for_everything_is_one_hop_at_its_announced_cost() -> None:
    route = found(choose_route([offer("p", rps=100.0, rtt=0.01)], NEED))
    assert text(route) == "p=0:8"
    assert route.cost_s == pytest.approx(0.01 + HOP_COST_S + 8 / 100)


def test_a_server_is_entered_after_its_start_and_left_before_its_end() -> None:
    offers = [offer("slow", "0:8", rps=10.0), offer("fast", "2:6", rps=1000.0)]
    assert text(choose_route(offers, NEED)) == "slow=0:2 fast=2:6 slow=6:8"
    assert text(choose_route(offers, BlockRange(3, 5))) == "fast=3:5"


def test_a_hop_more_is_not_worth_a_small_gain() -> None:
    offers = [offer("slow", "0:8", rps=100.0), offer("fast", "2:6", rps=200.0)]
    assert text(choose_route(offers, NEED)) == "slow=0:8"


def test_a_near_server_wins_over_a_far_one_that_is_as_fast() -> None:
    assert text(choose_route([offer("a", rtt=0.2), offer("b", rtt=0.001)], NEED)) == "b=0:8"


def test_an_unknown_rate_is_that_of_the_stock_client() -> None:
    assert text(choose_route([offer("a", rps=250.0), offer("b", rps=None)], NEED)) == "b=0:8"
    assert text(choose_route([offer("a", rps=350.0), offer("b", rps=None)], NEED)) == "a=0:8"


@pytest.mark.parametrize("rps", [0.0, -5.0, math.nan])
def test_a_server_that_announces_nonsense_as_its_rate_is_taken_last(rps: float) -> None:
    assert text(choose_route([offer("a", rps=rps), offer("b", rps=1.0)], NEED)) == "b=0:8"
    assert text(choose_route([offer("a", rps=rps)], NEED)) == "a=0:8"


@pytest.mark.parametrize("rtt", [None, math.nan, -1.0])
def test_an_unknown_round_trip_is_worse_than_a_near_server_and_better_than_a_far_one(rtt: float | None) -> None:
    assert text(choose_route([offer("a", rtt=rtt), offer("b", rtt=0.05)], NEED)) == "b=0:8"
    assert text(choose_route([offer("a", rtt=rtt), offer("b", rtt=0.5)], NEED)) == "a=0:8"


def test_a_server_that_does_not_answer_pings_is_taken_only_if_there_is_no_other() -> None:
    full = offer("b", left=0)
    assert text(choose_route([offer("a", rtt=math.inf), full], NEED, cache_tokens=128)) == "b=0:8"
    assert text(choose_route([offer("a", rtt=math.inf)], NEED, cache_tokens=128)) == "a=0:8"


def test_a_server_without_room_for_the_cache_is_passed_over() -> None:
    offers = [offer("a", left=100), offer("b", rps=10.0, left=8 * 128)]
    assert text(choose_route(offers, NEED, cache_tokens=128)) == "b=0:8"
    assert text(choose_route(offers, NEED, cache_tokens=12)) == "a=0:8"
    assert text(choose_route(offers, NEED)) == "a=0:8"


def test_a_server_is_left_where_its_cache_is_full() -> None:
    offers = [offer("a", rps=1000.0, left=3 * 128), offer("b", rps=10.0)]
    assert text(choose_route(offers, NEED, cache_tokens=128)) == "a=0:3 b=3:5 a=5:8"


def test_a_server_does_not_escape_its_full_cache_by_following_itself() -> None:
    route = found(choose_route([offer("a", left=4 * 128)], NEED, cache_tokens=128))
    assert text(route) == "a=0:8"
    assert route.cost_s == pytest.approx(10 + 0.01 + HOP_COST_S + 0.08)


def test_equal_costs_go_to_the_smaller_peer_id_and_then_to_the_longer_range() -> None:
    assert text(choose_route([offer("b"), offer("c"), offer("a")], NEED)) == "a=0:8"
    halves = [offer("b", "3:8"), offer("a", "0:5")]
    assert text(choose_route(halves, NEED)) == "a=0:5 b=5:8"


def test_equal_costs_go_to_fewer_hops() -> None:
    offers = [offer("a", "0:4", rtt=0.0), offer("b", "4:8", rtt=0.0), offer("z", "0:8", rtt=0.0)]
    assert text(choose_route(offers, NEED, hop_cost_s=0.0)) == "z=0:8"


def test_of_two_offers_of_a_peer_the_last_counts() -> None:
    assert choose_route([offer("a", "0:8"), offer("a", "0:4")], NEED) == NoRoute(missing=(BlockRange(4, 8),))


def test_an_avoided_peer_is_not_used_and_its_blocks_are_named_when_only_it_has_them() -> None:
    offers = [offer("a", "0:4"), offer("b", "2:6"), offer("c", "0:8")]
    assert text(choose_route(offers, NEED, avoid=peers("a", "b"))) == "c=0:8"
    missing = (BlockRange(0, 2), BlockRange(6, 8))
    assert choose_route(offers, NEED, avoid=peers("a", "c")) == NoRoute(missing=missing)
    assert choose_route([], NEED) == NoRoute(missing=(NEED,))


def test_only_the_blocks_that_are_needed_can_be_missing() -> None:
    assert choose_route([offer("a", "2:4")], BlockRange(3, 6)) == NoRoute(missing=(BlockRange(4, 6),))


def test_a_hundred_servers_of_eighty_blocks_are_routed_within_tens_of_milliseconds() -> None:
    rng = random.Random(7)
    offers = [
        offer(f"p{index}", "0:80", rps=rng.uniform(50, 500), rtt=rng.uniform(0, 0.05), left=rng.randrange(80 * 4096))
        for index in range(100)
    ]
    spent = []
    for _ in range(5):
        begun = time.process_time()
        choose_route(offers, BlockRange(0, 80), cache_tokens=2048)
        spent.append(time.process_time() - begun)
    # A table over every pair of blocks takes several hundred milliseconds here, this one about ten.
    assert min(spent) < 0.05


# --- against trying everything ----------------------------------------------------------------------------------

SECONDS = st.sampled_from([None, 0.0, 0.001, 0.01, 0.5, math.inf])
RATES = st.sampled_from([None, 2.0, 10.0, 50.0, 500.0])


@st.composite
def swarms(draw: st.DrawFn) -> tuple[list[Offer], BlockRange, int]:
    ids = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=4))
    offers = [
        Offer(
            peer=PeerId(each),
            blocks=draw(ranges(6)),
            inference_rps=draw(RATES),
            rtt_s=draw(SECONDS),
            cache_tokens_left=draw(st.sampled_from([None, 0, 1, 25, 30, 70])),
        )
        for each in ids
    ]
    return offers, draw(ranges(6)), draw(st.sampled_from([0, 10]))


def all_routes(offers: Sequence[Offer], start: int, end: int, last: str = "") -> Iterator[Hops]:
    if start == end:
        yield ()
        return
    for each in offers:
        if start in each.blocks and each.peer != last:
            for stop in range(start + 1, min(end, each.blocks.end) + 1):
                for rest in all_routes(offers, stop, end, each.peer):
                    yield ((each.peer, BlockRange(start, stop)), *rest)


def nanoseconds(offers: Sequence[Offer], hops: Hops, cache_tokens: int) -> int:
    of = {each.peer: each for each in offers}
    total = 0
    for peer, blocks in hops:
        rtt = of[peer].rtt_s
        rtt_ns = 150_000_000 if rtt is None else round(min(rtt, 30.0) * 1e9)
        rps, left = of[peer].inference_rps, of[peer].cache_tokens_left
        block_ns = round(Fraction(10**9) / Fraction(300 if rps is None else rps))
        crowded = left is not None and cache_tokens * len(blocks) > left
        total += rtt_ns + 18_000_000 + len(blocks) * block_ns + crowded * 10**10
    return total


@given(swarms())
def test_the_route_is_the_best_of_all_routes_and_ties_are_broken_as_documented(
    swarm: tuple[list[Offer], BlockRange, int],
) -> None:
    offers, need, cache_tokens = swarm
    routes = list(all_routes(offers, need.start, need.end))
    route = choose_route(offers, need, cache_tokens=cache_tokens)
    if not routes:
        covered = {block for each in offers for block in each.blocks}
        assert route == NoRoute(missing=ranges_of(set(need) - covered))
        return
    best = min(
        (nanoseconds(offers, hops, cache_tokens), len(hops), [(peer, -blocks.end) for peer, blocks in hops], hops)
        for hops in routes
    )
    assert found(route).hops == best[-1]
    assert found(route).cost_s == pytest.approx(best[0] / 1e9)


@given(swarms(), st.sets(st.sampled_from("abcde")))
def test_a_route_tiles_its_need_with_what_is_offered_and_not_avoided(
    swarm: tuple[list[Offer], BlockRange, int], avoided: set[str]
) -> None:
    offers, need, cache_tokens = swarm
    route = choose_route(offers, need, avoid=peers(*avoided), cache_tokens=cache_tokens)
    usable = [each for each in offers if each.peer not in avoided]
    if isinstance(route, NoRoute):
        assert route.missing == ranges_of(set(need) - {block for each in usable for block in each.blocks})
        return
    assert [block for _, blocks in route.hops for block in blocks] == list(need)
    for peer, blocks in route.hops:
        assert any(each.peer == peer and each.blocks.covers(blocks) for each in usable)
    assert all(left[0] != right[0] for left, right in pairwise(route.hops))


@given(swarms(), st.randoms(use_true_random=False))
def test_the_order_of_the_offers_does_not_matter(
    swarm: tuple[list[Offer], BlockRange, int], rng: random.Random
) -> None:
    offers, need, cache_tokens = swarm
    shuffled = rng.sample(offers, len(offers))
    assert choose_route(offers, need, cache_tokens=cache_tokens) == choose_route(
        shuffled, need, cache_tokens=cache_tokens
    )


# --- with bans -------------------------------------------------------------------------------------------------


def banning(*ids: str) -> BanList:
    bans = BanList()
    for each in ids:
        bans.record_failure(PeerId(each), 0.0, "lost")
    return bans


def test_a_banned_server_is_passed_over_while_there_is_another() -> None:
    offers = [offer("a", rps=500.0), offer("b", rps=10.0)]
    assert text(choose_with_bans(offers, NEED, bans=banning("a"), now=1.0)) == "b=0:8"
    assert text(choose_with_bans(offers, NEED, bans=banning("a"), now=5.0)) == "a=0:8"


def test_a_ban_is_ignored_when_all_holders_of_a_block_are_banned() -> None:
    offers = [offer("a"), offer("b", rps=10.0)]
    assert text(choose_with_bans(offers, NEED, bans=banning("a", "b"), now=1.0)) == "a=0:8"


def test_a_ban_is_not_ignored_for_a_peer_that_was_tried_in_this_step() -> None:
    offers = [offer("a"), offer("b", rps=10.0)]
    bans = banning("a", "b")
    assert text(choose_with_bans(offers, NEED, bans=bans, now=1.0, tried=peers("a"))) == "b=0:8"
    assert choose_with_bans(offers, NEED, bans=bans, now=1.0, tried=peers("a", "b")) == NoRoute(missing=(NEED,))


def test_bans_are_lifted_only_for_holders_of_blocks_that_nobody_else_has() -> None:
    offers = [offer("a", "0:4", rps=500.0), offer("b", "0:4", rps=10.0), offer("c", "4:8")]
    assert text(choose_with_bans(offers, NEED, bans=banning("a", "c"), now=1.0)) == "b=0:4 c=4:8"


def test_a_slow_server_is_taken_before_one_that_failed_whatever_they_cost() -> None:
    offers = [offer("failed", rps=500.0), offer("slow", rps=10.0)]
    bans = banning("failed")
    bans.record_failure(PeerId("slow"), 0.0, "slow")
    assert text(choose_with_bans(offers, NEED, bans=bans, now=1.0)) == "slow=0:8"
    halves = [offer("failed", "0:8"), offer("slow", "0:4")]
    assert text(choose_with_bans(halves, NEED, bans=bans, now=1.0)) == "failed=0:8"


def test_a_block_that_only_tried_peers_have_is_missing_and_the_banned_ones_are_not() -> None:
    offers = [offer("a", "0:4"), offer("c", "4:8")]
    route = choose_with_bans(offers, NEED, bans=banning("a"), now=1.0, tried=peers("c"))
    assert route == NoRoute(missing=(BlockRange(4, 8),))


SOME = st.sets(st.sampled_from("abcde"))


@given(swarms(), SOME, SOME, SOME)
def test_bans_never_make_a_block_unreachable(
    swarm: tuple[list[Offer], BlockRange, int], banned: set[str], slow: set[str], tried: set[str]
) -> None:
    offers, need, cache_tokens = swarm
    bans = banning(*banned)
    for each in slow:
        bans.record_failure(PeerId(each), 0.0, "slow")
    with_bans = choose_with_bans(offers, need, bans=bans, now=1.0, tried=peers(*tried), cache_tokens=cache_tokens)
    without = choose_route(offers, need, avoid=peers(*tried), cache_tokens=cache_tokens)
    if isinstance(without, NoRoute):
        assert with_bans == without
    else:
        assert not tried & {peer for peer, _ in found(with_bans).hops}
        assert found(with_bans).cost_s >= without.cost_s
