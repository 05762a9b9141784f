"""The recovery machine: events in, instructions out."""

from __future__ import annotations

import pytest

from swarmctl.blocks import BlockRange, PeerId, parse_range
from swarmctl.recovery import (
    Commit,
    DeadlinePassed,
    FailureKind,
    Fed,
    Feed,
    FindRoute,
    GiveUp,
    Happening,
    Idle,
    Instruction,
    Late,
    LegFailed,
    RouteFound,
    RouteMissing,
    SessionState,
    StepAborted,
    StepRequested,
    Wait,
    WaitOver,
    advance,
    rolled_back,
)


def hops(*texts: str) -> tuple[tuple[PeerId, BlockRange], ...]:
    """`a=0:4` is peer a for blocks 0:4."""
    pairs = (text.split("=") for text in texts)
    return tuple((PeerId(peer), parse_range(blocks)) for peer, blocks in pairs)


class Machine:
    """A session of six blocks; remembers the last instruction."""

    def __init__(self, state: SessionState | None = None) -> None:
        self.state = state or SessionState(num_blocks=6)
        self.last: Instruction = Idle()

    def on(self, event: Happening) -> Instruction:
        self.state, self.last = advance(self.state, event)
        return self.last

    def leg_of(self, peer: str) -> int:
        return next(leg.id for leg in self.state.legs if leg.peer == peer)

    def route(self, *texts: str) -> Instruction:
        return self.on(RouteFound(hops=hops(*texts)))

    def answer(self) -> Instruction:
        """The leg that is to be fed answers for all of it."""
        assert isinstance(self.last, Feed)
        return self.on(Fed(leg=self.last.leg.id, upto=self.last.end))

    def fail(self, kind: FailureKind = FailureKind.LOST) -> Instruction:
        """The leg that is to be fed fails."""
        assert isinstance(self.last, Feed)
        return self.on(LegFailed(leg=self.last.leg.id, kind=kind))

    def finish(self) -> Instruction:
        """Every leg that is still hungry answers."""
        while isinstance(self.last, Feed):
            self.answer()
        return self.last


def told(instruction: Instruction) -> str:
    """The instruction in short: `feed a 0:5`, `find 2:4 avoid a,b`."""
    match instruction:
        case Feed():
            return f"feed {instruction.leg.peer} {instruction.begin}:{instruction.end}"
        case FindRoute():
            return f"find {instruction.need} avoid {','.join(sorted(instruction.avoid))}".removesuffix(" avoid ")
        case Commit():
            return f"commit {instruction.position}"
        case Wait():
            return f"wait {instruction.need}"
        case GiveUp():
            hopeless = " hopeless" if instruction.hopeless else ""
            return f"give up {instruction.need} tried {','.join(instruction.tried)}{hopeless}"
        case Idle():
            return "idle"


@pytest.fixture
def machine() -> Machine:
    """Five positions are committed on a=0:2, b=2:4, c=4:6."""
    machine = Machine()
    machine.on(StepRequested(tokens=5))
    machine.route("a=0:2", "b=2:4", "c=4:6")
    assert machine.finish() == Commit(position=5)
    return machine


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


# --- a leg that is late, and its hedge ---


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
