"""Who plays which part in a cell of `verify recovery`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.blocks import BlockRange, NodeName, parse_range
from swarmctl.matrix import Cell, Cover, Fault, Moment, Victim
from swarmctl.operations.trials.casting import Cast, NoCast, assign

SIX = 6


def nodes(**blocks: str) -> dict[NodeName, BlockRange]:
    return {NodeName(name): parse_range(text) for name, text in blocks.items()}


STAGE = nodes(a="0:3", b1="0:2", b2="2:3", c="3:6", d="3:6", e="2:6")


def parts(cast: Cast | NoCast) -> list[str]:
    assert isinstance(cast, Cast), cast
    return [f"{part.node} {part.blocks}" for part in cast.route]


def test_first_span_that_two_shorter_servers_can_take_over():
    cast = assign(Cell(family="llama", cover=Cover.SPLIT), STAGE, SIX)

    assert isinstance(cast, Cast)
    assert parts(cast)[0] == "a 0:3"
    assert cast.victims == ("a",)
    assert cast.cover == ("b1", "b2")
    assert cast.reserve == ()


def test_last_span_that_a_server_of_the_same_span_can_take_over():
    cast = assign(Cell(family="llama", victim=Victim.LAST), STAGE, SIX)

    assert isinstance(cast, Cast)
    assert {*cast.victims, *cast.cover} == {"c", "d"}
    assert parts(cast)[-1] == f"{cast.victims[0]} 3:6"


def test_last_span_that_a_longer_server_can_take_over_keeps_that_server_out_of_the_route():
    cast = assign(Cell(family="llama", victim=Victim.LAST, cover=Cover.LONGER), STAGE, SIX)

    assert isinstance(cast, Cast)
    assert cast.cover == ("e",)
    assert "e" not in {part.node for part in cast.route}


def test_middle_span_has_neighbours_on_both_sides():
    cast = assign(Cell(family="llama", victim=Victim.MIDDLE, cover=Cover.LONGER), STAGE, SIX)

    assert parts(cast) == ["b1 0:2", "b2 2:3", "c 3:6"]
    assert isinstance(cast, Cast)
    assert (cast.victims, cast.cover) == (("b2",), ("a",))


def test_two_victims_have_covers_of_their_own():
    stage = {**STAGE, **nodes(f="0:3")}

    cast = assign(Cell(family="llama", victim=Victim.TWO), stage, SIX)

    assert isinstance(cast, Cast)
    assert len({*cast.victims, *cast.cover}) == 4
    for victim, heir in zip(cast.victims, cast.cover, strict=True):
        assert stage[victim] == stage[heir]


def test_heir_has_somebody_who_replaces_it():
    cast = assign(Cell(family="llama", victim=Victim.HEIR), STAGE, SIX)

    assert isinstance(cast, Cast)
    assert {*cast.victims, *cast.cover} == {"c", "d"}
    assert cast.reserve == ("e",)


def test_replay_of_the_last_span_needs_a_second_replacement():
    cell = Cell(family="llama", moment=Moment.REPLAY, victim=Victim.LAST)

    without = assign(cell, nodes(a="0:3", c="3:6", d="3:6"), SIX)

    assert isinstance(without, NoCast)
    assert without.reason.startswith("nobody is left to take 3:6 over from ")
    assert isinstance(assign(cell, STAGE, SIX), Cast)


def test_all_replicas_are_the_victim_and_whoever_could_replace_it():
    cast = assign(Cell(family="llama", victim=Victim.ALL), nodes(a="0:3", c="3:6", d="3:6"), SIX)

    assert isinstance(cast, Cast)
    assert set(cast.victims) == {"c", "d"}
    assert set(cast.needed) == {"a", "c", "d"}


@pytest.mark.parametrize("fault", [Fault.EXPIRE, Fault.FORGET, Fault.RESTART])
def test_server_that_comes_back_or_never_leaves_needs_no_cover(fault: Fault):
    cast = assign(Cell(family="llama", fault=fault), nodes(a="0:3", c="3:6"), SIX)

    assert isinstance(cast, Cast)
    assert (cast.victims, cast.cover) == (("a",), ())


def test_servers_that_are_up_are_preferred_to_those_that_must_be_started():
    stage = nodes(a="0:3", b="0:3", c="3:6", d="3:6", x="0:3", y="0:3")

    cast = assign(Cell(family="llama"), stage, SIX, alive=["x", "y", "d"])

    assert isinstance(cast, Cast)
    assert set(cast.needed) == {"x", "y", "d"}


def test_swarm_without_the_cover_says_what_it_lacks():
    assert assign(Cell(family="llama", cover=Cover.SPLIT), nodes(a="0:3", b="0:3", c="3:6"), SIX) == NoCast(
        reason="nobody is left to cover 0:3 as split"
    )


def test_swarm_with_a_gap_says_that_there_is_no_route():
    assert assign(Cell(family="llama"), nodes(a="0:3", c="4:6"), SIX) == NoCast(reason="no route through 6 blocks")


def test_route_is_one_that_a_client_takes_and_nobody_in_it_is_superfluous():
    stage = nodes(a="0:3", m="2:4", e="2:6", d="2:6")

    cast = assign(Cell(family="llama", victim=Victim.MIDDLE), stage, SIX)

    assert cast == NoCast(reason="no route through 6 blocks"), "a and e would do without m"


RANGES = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda pair: pair[0] < pair[1])


@given(
    ranges=st.lists(RANGES, min_size=1, max_size=8),
    victim=st.sampled_from(Victim),
    cover=st.sampled_from(Cover),
    moment=st.sampled_from(Moment),
)
def test_any_cast_has_a_whole_route_and_nobody_plays_two_parts(ranges, victim, cover, moment):
    stage = {NodeName(f"n{at}"): BlockRange(*pair) for at, pair in enumerate(ranges)}

    cast = assign(Cell(family="llama", victim=victim, cover=cover, moment=moment), stage, SIX)

    if isinstance(cast, NoCast):
        return
    assert [block for part in cast.route for block in part.blocks] == list(range(SIX))
    assert all(stage[part.node].covers(part.blocks) for part in cast.route)
    playing = [*(part.node for part in cast.route), *cast.cover, *cast.reserve]
    assert len(playing) == len(set(playing))
    lost = [part.blocks for part in cast.route if part.node in cast.victims]
    held = {block for name in cast.cover for block in stage[name]}
    assert all(block in held for blocks in lost for block in blocks)
