"""A leg that is late, and its hedge: whichever is complete first stays."""

from __future__ import annotations

import pytest
from support.machine import Machine, machine, told

from swarmctl.blocks import parse_range
from swarmctl.recovery import (
    FailureKind,
    Fed,
    Feed,
    Late,
    LegFailed,
    RouteMissing,
    StepAborted,
    StepRequested,
)

__all__ = ["machine"]


@pytest.fixture
def late(machine: Machine) -> Machine:
    """In the next step b=2:4 is late, and somebody to hedge it with is looked for."""
    machine.on(StepRequested(tokens=1))
    machine.answer()
    assert told(machine.on(Late(leg=machine.leg_of("b")))) == "find 2:4 avoid b"
    return machine


def test_a_hedge_is_fed_the_whole_history_and_takes_the_place_of_the_suspect(late: Machine) -> None:
    assert told(late.route("d=2:3", "e=3:4")) == "feed d 0:6"
    assert [leg.peer for leg in late.state.legs] == ["a", "b", "c"], "the suspect is still in use"
    assert told(late.answer()) == "feed e 0:6"
    assert told(late.answer()) == "feed c 5:6"
    assert [leg.peer for leg in late.state.open_legs] == ["a", "d", "e", "c"]
    assert late.state.failures == (("b", FailureKind.SLOW),)
    assert told(late.answer()) == "commit 6"
    assert late.state.avoid == frozenset()


def test_a_suspect_that_answers_first_stays_and_its_hedge_is_let_go(late: Machine) -> None:
    late.route("d=2:3", "e=3:4")
    late.answer()

    assert told(late.on(Fed(leg=late.leg_of("b"), upto=6))) == "feed c 5:6"
    assert [leg.peer for leg in late.state.open_legs] == ["a", "b", "c"]
    assert late.state.failures == ()
    assert told(late.answer()) == "commit 6"


def test_a_hedge_goes_on_as_the_replacement_when_the_suspect_fails(late: Machine) -> None:
    late.route("d=2:3", "e=3:4")
    late.answer()

    assert told(late.on(LegFailed(leg=late.leg_of("b"), kind=FailureKind.LOST))) == "feed e 0:6"
    assert [leg.peer for leg in late.state.legs] == ["a", "d", "e", "c"]
    assert late.state.suspect is None


def test_a_hole_in_the_hedge_is_filled_by_others(late: Machine) -> None:
    late.route("d=2:3", "e=3:4")
    late.answer()

    assert told(late.fail(FailureKind.BUSY)) == "find 3:4 avoid b,e"
    assert told(late.route("f=3:4")) == "feed f 0:6"
    assert told(late.answer()) == "feed c 5:6"


def test_a_suspect_that_nobody_can_replace_is_waited_for_and_then_lost_like_any_other(late: Machine) -> None:
    assert told(late.on(RouteMissing(missing=(parse_range("2:4"),)))) == "feed b 5:6"
    assert told(late.fail(FailureKind.SILENT)) == "find 2:4 avoid b"
    assert told(late.on(RouteMissing(missing=(parse_range("2:4"),)))) == "wait 2:4"


def test_a_hedge_without_a_second_half_is_let_go_and_the_suspect_waited_for(late: Machine) -> None:
    late.route("d=2:3", "e=3:4")
    late.answer()
    late.fail()

    assert told(late.on(RouteMissing(missing=(parse_range("3:4"),)))) == "feed b 5:6"
    assert [leg.peer for leg in late.state.open_legs] == ["a", "b", "c"]


def test_only_one_leg_is_hedged_at_a_time(late: Machine) -> None:
    late.route("d=2:4")

    with pytest.raises(ValueError, match="cannot be late now"):
        late.on(Late(leg=late.leg_of("c")))


def test_an_aborted_step_keeps_neither_the_suspect_nor_its_hedge(late: Machine) -> None:
    late.route("d=2:4")
    assert isinstance(late.last, Feed)

    late.on(StepAborted(in_flight=frozenset({late.leg_of("b"), late.last.leg.id})))

    assert [leg.peer for leg in late.state.open_legs] == ["c"], "a ran ahead, b and d may have"
    assert late.state.suspect is None
