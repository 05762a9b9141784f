"""The recovery machine: events in, instructions out."""

from __future__ import annotations

import pytest
from support.machine import Machine, hops, machine, told

from swarmctl.blocks import BlockRange
from swarmctl.recovery import (
    Commit,
    DeadlinePassed,
    FailureKind,
    Fed,
    Feed,
    FindRoute,
    Happening,
    LegFailed,
    RouteFound,
    RouteMissing,
    StepAborted,
    StepRequested,
    WaitOver,
    rolled_back,
)

__all__ = ["machine"]


def test_the_first_step_finds_a_route_and_feeds_its_legs_in_block_order() -> None:
    machine = Machine()

    assert told(machine.on(StepRequested(tokens=3))) == "find 0:6"
    assert told(machine.route("a=0:2", "b=2:6")) == "feed a 0:3"
    assert isinstance(machine.last, Feed)
    assert machine.last.opens
    assert told(machine.answer()) == "feed b 0:3"
    assert told(machine.answer()) == "commit 3"
    assert machine.state.target is None


def test_a_later_step_feeds_each_leg_only_the_new_tokens(machine: Machine) -> None:
    said = [told(machine.on(StepRequested(tokens=3)))]
    said += [told(machine.answer()) for _ in range(3)]

    assert said == ["feed a 5:8", "feed b 5:8", "feed c 5:8", "commit 8"]


@pytest.mark.parametrize(
    ("healthy_before", "hole", "after"),
    [
        (0, "0:2", ["feed x 0:6", "feed b 5:6", "feed c 5:6", "commit 6"]),
        (1, "2:4", ["feed x 0:6", "feed c 5:6", "commit 6"]),
        (2, "4:6", ["feed x 0:6", "commit 6"]),
    ],
    ids=["first", "middle", "last"],
)
def test_a_failed_leg_is_replayed_on_another_and_the_live_ones_get_only_the_new_token(
    machine: Machine, healthy_before: int, hole: str, after: list[str]
) -> None:
    machine.on(StepRequested(tokens=1))
    for _ in range(healthy_before):
        machine.answer()
    lost = "abc"[healthy_before]

    assert told(machine.fail()) == f"find {hole} avoid {lost}"
    said = [told(machine.route(f"x={hole}"))]
    while isinstance(machine.last, Feed):
        said.append(told(machine.answer()))
    assert said == after
    assert machine.state.failures == ()
    assert machine.state.avoid == frozenset()


def test_a_split_take_over_feeds_the_second_server_the_whole_output_of_the_first(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()

    said = [told(machine.route("d=2:3", "e=3:4")), told(machine.answer()), told(machine.answer())]

    assert said == ["feed d 0:6", "feed e 0:6", "feed c 5:6"]
    assert machine.state.boundaries == {0, 2, 3, 4}


def test_a_replacement_that_fails_in_a_later_step_is_replaced_from_its_own_boundary(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()
    machine.route("d=2:3", "e=3:4")
    machine.finish()

    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.answer()

    assert told(machine.last) == "feed e 6:7"
    assert told(machine.fail()) == "find 3:4 avoid e"
    assert told(machine.route("b=3:4")) == "feed b 0:7"
    assert told(machine.answer()) == "feed c 6:7"


def test_a_second_failure_in_the_middle_of_a_replay_avoids_both_servers(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()
    machine.route("d=2:4")

    assert told(machine.fail(FailureKind.SILENT)) == "find 2:4 avoid b,d"
    assert told(machine.route("e=2:4")) == "feed e 0:6"


def test_when_the_second_half_of_a_split_fails_the_first_half_is_kept(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()
    machine.route("d=2:3", "e=3:4")
    machine.answer()

    assert told(machine.fail()) == "find 3:4 avoid b,e"
    assert told(machine.route("f=3:4")) == "feed f 0:6"
    assert told(machine.answer()) == "feed c 5:6"


def test_two_legs_that_fail_in_one_step_are_both_replaced_in_block_order(machine: Machine) -> None:
    machine.on(StepRequested(tokens=2))

    assert told(machine.fail()) == "find 0:2 avoid a"
    assert told(machine.route("x=0:2")) == "feed x 0:7"
    machine.answer()
    machine.answer()
    assert told(machine.fail()) == "find 4:6 avoid a,c"
    assert told(machine.route("y=4:6")) == "feed y 0:7"
    assert told(machine.answer()) == "commit 7"


def test_a_replacement_may_be_a_server_that_already_serves_another_leg(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail()

    machine.route("c=0:2")
    first, last = machine.state.legs[0], machine.state.legs[-1]

    assert (first.peer, last.peer) == ("c", "c")
    assert first.id != last.id
    assert machine.finish() == Commit(position=6)


def test_a_missing_route_is_waited_for_and_in_this_step_what_was_avoided_is_asked_again(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail()

    assert told(machine.on(RouteMissing(missing=(BlockRange(1, 2),)))) == "wait 1:2"
    assert machine.on(WaitOver()) == FindRoute(need=BlockRange(0, 2), avoid=frozenset(), waited=True)
    assert told(machine.route("a=0:2")) == "feed a 0:6"
    assert isinstance(machine.last, Feed)
    assert machine.last.patient
    assert machine.finish() == Commit(position=6)
    machine.on(StepRequested(tokens=1))
    assert isinstance(machine.last, Feed)
    assert not machine.last.patient


def test_the_deadline_gives_up_naming_the_hole_and_everybody_who_was_tried(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()
    machine.route("d=2:4")
    machine.fail(FailureKind.BUSY)
    machine.on(RouteMissing(missing=(BlockRange(2, 4),)))

    assert told(machine.on(DeadlinePassed())) == "give up 2:4 tried b,d"


def test_when_every_server_answers_with_an_error_it_gives_up_without_waiting(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail(FailureKind.BROKEN)
    machine.route("x=0:2")
    machine.fail(FailureKind.BROKEN)

    assert told(machine.on(RouteMissing(missing=(BlockRange(0, 2),)))) == "give up 0:2 tried a,x hopeless"


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.BROKEN])
def test_one_failure_of_another_kind_among_errors_is_worth_waiting_for(machine: Machine, kind: FailureKind) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail(FailureKind.BROKEN)
    machine.route("x=0:2")
    machine.fail(kind)

    assert told(machine.on(RouteMissing(missing=(BlockRange(0, 2),)))) == "wait 0:2"


def test_a_server_that_ended_an_old_stream_is_asked_again_but_not_when_it_ends_the_new_one_too(
    machine: Machine,
) -> None:
    machine.on(StepRequested(tokens=1))

    assert told(machine.fail(FailureKind.EXPIRED)) == "feed a 0:6"
    assert told(machine.fail(FailureKind.EXPIRED)) == "find 0:2 avoid a"


def test_a_server_with_two_legs_may_end_both_old_streams(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail()
    machine.route("c=0:2")
    machine.finish()

    machine.on(StepRequested(tokens=1))

    assert told(machine.fail(FailureKind.EXPIRED)) == "feed c 0:7"
    machine.answer()
    machine.answer()
    assert told(machine.last) == "feed c 6:7"
    assert told(machine.fail(FailureKind.EXPIRED)) == "feed c 0:7"


def test_an_aborted_step_keeps_only_the_legs_that_have_not_moved(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    assert isinstance(machine.last, Feed)

    assert told(machine.on(StepAborted(in_flight=frozenset({machine.last.leg.id})))) == "idle"

    assert [leg.peer for leg in machine.state.legs] == ["c"]
    assert (machine.state.committed, machine.state.target) == (5, None)
    assert told(machine.on(StepRequested(tokens=2))) == "find 0:4"
    assert told(machine.route("a=0:4")) == "feed a 0:7"
    assert told(machine.answer()) == "feed c 5:7"


def test_a_step_aborted_between_requests_keeps_every_leg_that_was_not_asked(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))

    machine.on(StepAborted())

    assert [leg.peer for leg in machine.state.legs] == ["a", "b", "c"]
    assert told(machine.on(StepRequested(tokens=1))) == "feed a 5:6"


def test_an_abort_in_a_recovery_forgets_the_half_fed_replacement_and_who_was_avoided(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.answer()
    machine.fail()
    machine.route("d=2:3", "e=3:4")

    machine.on(StepAborted(in_flight=frozenset({machine.leg_of("d")})))

    assert [leg.peer for leg in machine.state.legs] == ["c"]
    assert machine.state.failures == ()
    assert told(machine.on(StepRequested(tokens=1))) == "find 0:4"


def test_a_session_that_gave_up_can_step_again(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail()
    machine.on(RouteMissing(missing=(BlockRange(0, 2),)))
    machine.on(DeadlinePassed())
    machine.on(StepAborted())

    assert told(machine.on(StepRequested(tokens=1))) == "find 0:2"
    assert told(machine.route("a=0:2")) == "feed a 0:6"
    assert machine.finish() == Commit(position=6)


def test_a_rollback_rebuilds_every_leg_because_caches_cannot_be_cut(machine: Machine) -> None:
    machine.state = rolled_back(machine.state, 3)

    assert told(machine.on(StepRequested(tokens=1))) == "find 0:6"
    assert told(machine.route("a=0:6")) == "feed a 0:4"
    assert told(machine.answer()) == "commit 4"


def test_a_rollback_to_the_present_position_changes_nothing(machine: Machine) -> None:
    assert rolled_back(machine.state, 5) is machine.state


@pytest.mark.parametrize("position", [6, -1])
def test_a_rollback_to_where_the_session_never_was_is_refused(machine: Machine, position: int) -> None:
    with pytest.raises(ValueError, match=f"from position 5 to {position}"):
        rolled_back(machine.state, position)


def test_a_rollback_in_a_running_step_is_refused(machine: Machine) -> None:
    machine.on(StepRequested(tokens=1))

    with pytest.raises(ValueError, match="cannot go"):
        rolled_back(machine.state, 3)


@pytest.mark.parametrize(
    "route", [(), ("x=0:1",), ("x=0:3",), ("x=1:2",), ("x=0:1", "y=0:2"), ("y=1:2", "x=0:1")], ids=str
)
def test_a_route_that_does_not_tile_the_hole_is_a_bug_of_the_driver(machine: Machine, route: tuple[str, ...]) -> None:
    machine.on(StepRequested(tokens=1))
    machine.fail()

    with pytest.raises(ValueError, match="does not tile"):
        machine.route(*route)


@pytest.mark.parametrize(
    "event",
    [
        StepRequested(tokens=1),
        Fed(leg=99, upto=6),
        Fed(leg=0, upto=7),
        Fed(leg=0, upto=4),
        LegFailed(leg=99, kind=FailureKind.LOST),
        RouteFound(hops=hops("x=0:2")),
    ],
    ids=repr,
)
def test_an_event_that_cannot_happen_now_is_a_bug_of_the_driver(machine: Machine, event: Happening) -> None:
    machine.on(StepRequested(tokens=1))

    with pytest.raises(ValueError, match=r".+"):
        machine.on(event)


def test_a_step_without_tokens_is_a_bug_of_the_driver(machine: Machine) -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        machine.on(StepRequested(tokens=0))
