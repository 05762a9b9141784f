"""The checkers accept whatever a session may go through, and see each single thing that must not happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tales import LOSING, QUICKLY, RECOVERED, Incident, Tale, tales, tell

from swarmctl.blocks import BlockRange
from swarmctl.checkers import (
    BUDGET_S,
    CHECKERS,
    Checker,
    difference,
    failures_are_noticed_in_time,
    failures_end_in_recovery_or_in_an_error,
    new_routes_leave_the_failed_out,
    objections,
    positions_grow_by_the_step,
    recoveries_keep_the_budget,
    routes_hold_each_block_once,
    steps_of,
    tokens_come_once_and_in_order,
    waiting_ends_in_time,
)
from swarmctl.events import (
    FaultInjected,
    HedgeStarted,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    RouteChanged,
    RouteChosen,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
)

FEW = settings(max_examples=40)
ONE_LOST = tell([Incident.QUIET, Incident.QUIET, Incident.LOST, Incident.QUIET])


def objecting(tale: Tale, **changes: object) -> set[Checker]:
    """The checkers that object."""
    account = tale.account(**changes)
    return {checker for checker in CHECKERS if list(checker(account))}


def drawn(data: st.DataObject, tale: Tale, kind: type) -> object:
    """One of the events of a kind."""
    return data.draw(st.sampled_from(tale.of(kind)), label=kind.__name__)


# --- what may happen --------------------------------------------------------------------------------------------


@given(tales())
def test_a_session_is_accepted_whatever_it_went_through(tale: Tale) -> None:
    assert objections(tale.account()) == ()


@pytest.mark.parametrize("incident", list(Incident), ids=lambda incident: incident.value)
def test_each_incident_is_accepted_in_the_first_step_and_later(incident: Incident) -> None:
    assert objections(tell([incident, Incident.QUIET, incident, Incident.QUIET]).account()) == ()


@FEW
@given(tales(), tales())
def test_sessions_one_after_the_other_are_accepted_and_may_return_in_another_order(one: Tale, other: Tale) -> None:
    tale = one.with_events((*one.events, *other.events))
    assert objections(tale.account(ids=(*other.ids, *one.ids))) == ()


def test_a_conversation_that_needed_a_second_session_is_accepted() -> None:
    one, other = tell([Incident.QUIET] * 3), tell([Incident.QUIET] * 2, prompt=8)
    ids = tuple(a + b for a, b in zip(one.ids, other.ids, strict=True))
    assert objections(one.with_events((*one.events, *other.events)).account(ids=ids)) == ()


def test_of_two_readings_of_a_conversation_the_one_with_fewer_objections_is_told() -> None:
    one, other = tell([Incident.QUIET] * 3), tell([Incident.QUIET] * 2, prompt=8)
    both = one.with_events((*one.events, *other.events))
    assert objections(both.account(ids=((10, 20, 30, 10, 21),))) == (
        "what was streamed is not what was returned: token 4 is 20, not 21",
    )
    assert objections(both.account(ids=(one.ids[0], (10, 21)))) == (
        "what was streamed is not what was returned: token 1 is 20, not 21",
    )


def test_sequences_that_stop_early_are_returned_without_their_padding() -> None:
    tale = tell([Incident.QUIET] * 4, batch=3)
    early = (tale.ids[0], tale.ids[1][:2], tale.ids[2])
    assert objecting(tale, ids=early) == set()
    assert objecting(tale, ids=tuple(row[:2] for row in tale.ids)) == {tokens_come_once_and_in_order}


def test_an_answer_that_was_not_streamed_is_accepted() -> None:
    tale = tell([Incident.LOST])
    quiet = tale.with_events([event for event in tale.events if not isinstance(event, TokensEmitted)])
    assert objecting(quiet) == set()


@FEW
@given(tales(needs=LOSING))
def test_a_session_that_ends_in_an_error_need_not_have_recovered(tale: Tale) -> None:
    first = next(place for place, event in enumerate(tale.events) if isinstance(event, PeerFailed | PeerOvertaken))
    assert objecting(tale.with_events(tale.events[: first + 1]), ids=None, error="it was too much") == set()


# --- positions and tokens ---------------------------------------------------------------------------------------


@FEW
@given(tales(), st.integers(-3, 3).filter(bool), st.data())
def test_a_position_that_jumps_is_seen(tale: Tale, jump: int, data: st.DataObject) -> None:
    step = drawn(data, tale, StepDone)
    assert positions_grow_by_the_step in objecting(tale.changed(step, position=step.position + jump))


def test_a_step_with_another_number_is_seen_though_its_position_is_right() -> None:
    tale = tell([Incident.QUIET] * 3)
    (_, second, _) = tale.of(StepDone)
    assert objecting(tale.changed(second, step=3)) == {positions_grow_by_the_step}


@FEW
@given(tales(), st.data())
def test_a_step_that_is_missing_or_done_twice_is_seen(tale: Tale, data: st.DataObject) -> None:
    step = drawn(data, tale, StepDone)
    at = next(place for place, event in enumerate(tale.events) if event is step)
    twice = tale.with_events((*tale.events[: at + 1], step, *tale.events[at + 1 :]))
    assert positions_grow_by_the_step in objecting(twice)
    if step is not tale.of(StepDone)[-1]:
        assert positions_grow_by_the_step in objecting(tale.without(step))


@FEW
@given(tales(), st.data())
def test_a_token_that_is_changed_on_its_way_is_seen(tale: Tale, data: st.DataObject) -> None:
    event = drawn(data, tale, TokensEmitted)
    other = tale.changed(event, ids=(event.ids[0] + 1, *event.ids[1:]))
    assert objecting(other) == {tokens_come_once_and_in_order}


@FEW
@given(tales(), st.data())
def test_a_token_that_is_dropped_or_doubled_on_its_way_is_seen(tale: Tale, data: st.DataObject) -> None:
    event = drawn(data, tale, TokensEmitted)
    at = next(place for place, other in enumerate(tale.events) if other is event)
    twice = tale.with_events((*tale.events[:at], event, *tale.events[at:]))
    assert objecting(twice) == {tokens_come_once_and_in_order}
    if len(tale.of(TokensEmitted)) > 1:
        assert objecting(tale.without(event)) == {tokens_come_once_and_in_order}


def test_tokens_that_come_in_another_order_are_seen_by_their_numbers_alone() -> None:
    tale = tell([Incident.QUIET] * 3)
    first, second, third = tale.of(TokensEmitted)
    renumbered = tale.changed(second, index=third.index).changed(third, index=second.index)
    assert objections(renumbered.account()) == ("the streamed tokens were numbered [0, 2, 1]",)
    assert first.index == 0


def test_a_streamed_batch_that_changes_its_size_is_seen() -> None:
    tale = tell([Incident.QUIET] * 2, batch=2)
    (_, second) = tale.of(TokensEmitted)
    assert tokens_come_once_and_in_order in objecting(tale.changed(second, ids=second.ids[:1]))


def test_a_sequence_that_was_returned_and_not_streamed_is_seen() -> None:
    tale = tell([Incident.QUIET] * 2)
    assert objections(tale.account(ids=(*tale.ids, (1, 2)))) == ("1 sequences were returned and not streamed",)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ((1, 2, 3), None),
        ((1, 5, 3), "token 1 is 5, not 2"),
        ((1, 2), "there are 2 tokens, not 3"),
        ((1, 2, 3, 4), "there are 4 tokens, not 3"),
        ((2, 3), "token 0 is 2, not 1"),
    ],
)
def test_difference_names_the_first_token_that_is_another(got: tuple[int, ...], words: str | None) -> None:
    assert difference(got, (1, 2, 3)) == words


# --- failures ---------------------------------------------------------------------------------------------------


@FEW
@given(tales(needs=RECOVERED), st.data())
def test_a_failure_without_a_recovery_is_seen(tale: Tale, data: st.DataObject) -> None:
    recovery = drawn(data, tale, RecoveryDone)
    assert objecting(tale.without(recovery)) == {failures_end_in_recovery_or_in_an_error}


@FEW
@given(tales(needs=(Incident.LOST, Incident.OVERTAKEN, Incident.TWO, Incident.TWICE)), st.data())
def test_a_recovery_that_leaves_a_failed_peer_out_is_seen(tale: Tale, data: st.DataObject) -> None:
    recovery = data.draw(st.sampled_from([event for event in tale.of(RecoveryDone) if event.failed]))
    assert objecting(tale.changed(recovery, failed=recovery.failed[1:])) == {failures_end_in_recovery_or_in_an_error}


def test_a_failure_after_which_nothing_more_is_told_is_seen_unless_there_is_an_error() -> None:
    failure = ONE_LOST.of(PeerFailed)[0]
    cut = ONE_LOST.with_events(ONE_LOST.events[: ONE_LOST.events.index(failure) + 1])
    assert "n1 was never recovered, and nobody said so" in objections(cut.account(ids=None))
    assert objections(cut.account(ids=None, error="no server for blocks 0:3")) == ()


@FEW
@given(tales(needs=QUICKLY, among=(Incident.QUIET, *QUICKLY)), st.data())
def test_a_recovery_beyond_its_budget_is_seen(tale: Tale, data: st.DataObject) -> None:
    recovery = drawn(data, tale, RecoveryDone)
    limit_ms = BUDGET_S * 1e3
    assert objecting(tale.changed(recovery, pause_ms=limit_ms)) == set()
    assert objecting(tale.changed(recovery, pause_ms=limit_ms + 1)) == {recoveries_keep_the_budget}
    assert objecting(tale.changed(recovery, pause_ms=limit_ms + 1), budget_s=BUDGET_S + 1) == set()
    assert objecting(tale.changed(recovery, pause_ms=float("nan"))) == {recoveries_keep_the_budget}


def test_a_recovery_that_had_to_wait_for_a_server_has_no_budget_and_the_next_one_has() -> None:
    tale = tell([Incident.FULL, Incident.LOST])
    waited, quick = tale.of(RecoveryDone)
    assert objecting(tale.changed(waited, pause_ms=60_000.0)) == set()
    assert objecting(tale.changed(quick, pause_ms=60_000.0)) == {recoveries_keep_the_budget}


@pytest.mark.parametrize(("incident", "limit_ms"), [(Incident.LOST, 2_000.0), (Incident.SILENT, 5_000.0)])
def test_a_failure_that_goes_unnoticed_for_too_long_is_seen(incident: Incident, limit_ms: float) -> None:
    tale = tell([Incident.QUIET, incident])
    tale = tale.with_events([event for event in tale.events if not isinstance(event, FaultInjected)])
    (failure,) = tale.of(PeerFailed)
    assert objecting(tale.changed(failure, detect_ms=limit_ms)) == set()
    assert objecting(tale.changed(failure, detect_ms=limit_ms + 1)) == {failures_are_noticed_in_time}


def test_a_server_that_is_struck_late_in_a_long_request_counts_from_the_blow() -> None:
    (failure,), (blow,) = ONE_LOST.of(PeerFailed), ONE_LOST.of(FaultInjected)
    long = ONE_LOST.changed(failure, detect_ms=9_000.0)
    assert objecting(long) == set()
    assert objecting(long.without(blow)) == {failures_are_noticed_in_time}
    assert objecting(long.changed(blow, node="n2")) == {failures_are_noticed_in_time}
    assert objecting(long.changed(blow, at_s=failure.at_s + 1)) == {failures_are_noticed_in_time}


def test_a_server_that_is_struck_long_before_it_is_asked_counts_from_the_request() -> None:
    (blow,) = ONE_LOST.of(FaultInjected)
    assert objecting(ONE_LOST.changed(blow, at_s=blow.at_s - 60)) == set()


def test_a_server_that_was_overtaken_was_noticed_when_it_was_suspected() -> None:
    tale = tell([Incident.QUIET, Incident.OVERTAKEN])
    (suspicion,), (loss,) = tale.of(PeerSuspected), tale.of(PeerOvertaken)
    assert objecting(tale.changed(loss, silent_ms=9_000.0)) == set()
    assert objecting(tale.changed(suspicion, silent_ms=5_001.0)) == {failures_are_noticed_in_time}
    assert objecting(tale.changed(loss, silent_ms=9_000.0).without(suspicion)) == {failures_are_noticed_in_time}


def test_a_suspicion_of_an_earlier_step_does_not_count() -> None:
    tale = tell([Incident.HEDGED, Incident.OVERTAKEN])
    (_, suspicion), (loss,) = tale.of(PeerSuspected), tale.of(PeerOvertaken)
    late = tale.without(suspicion).changed(loss, silent_ms=9_000.0)
    assert objecting(late) == {failures_are_noticed_in_time}


@pytest.mark.parametrize("incident", [Incident.FULL, Incident.GIVEN_UP])
def test_waiting_beyond_the_deadline_that_was_told_is_seen(incident: Incident) -> None:
    tale = tell([Incident.QUIET, incident, Incident.QUIET])
    (waiting,) = tale.of(WaitingForPeers)
    slack_s = BUDGET_S + 5
    ended = next(step.events[-1] for step in steps_of(tale.events) if step.waited)
    latest_s = ended.at_s - waiting.at_s - slack_s
    assert objecting(tale.changed(waiting, remaining_s=latest_s + 0.001)) == set()
    assert objecting(tale.changed(waiting, remaining_s=latest_s - 0.1)) == {waiting_ends_in_time}


def test_giving_up_late_without_having_waited_is_seen() -> None:
    tale = tell([Incident.GIVEN_UP, Incident.QUIET])
    tale = tale.without(tale.of(WaitingForPeers)[0])
    (end,), (failure,) = tale.of(RecoveryGivenUp), tale.of(PeerFailed)
    assert objecting(tale) == set()
    assert objecting(tale.changed(end, at_s=failure.at_s + BUDGET_S + 5.1)) == {waiting_ends_in_time}


# --- routes -----------------------------------------------------------------------------------------------------


@FEW
@given(tales(needs=(Incident.LOST, Incident.SILENT, Incident.TWICE), among=(Incident.QUIET,)))
def test_a_new_route_with_a_failed_server_is_seen(tale: Tale) -> None:
    (failure, *_), (change, *_) = tale.of(PeerFailed), tale.of(RouteChanged)
    back = replace(change.now[0], peer=failure.hop.peer, node=failure.hop.node)
    assert new_routes_leave_the_failed_out in objecting(tale.changed(change, route=(back, *change.route[1:])))


def test_a_failed_server_that_is_to_take_other_blocks_over_is_seen_and_one_that_keeps_them_is_not() -> None:
    tale = tell([Incident.QUIET, Incident.LOST], cuts=(2, 4))
    (failure,), (change,) = tale.of(PeerFailed), tale.of(RouteChanged)
    middle = replace(failure.hop, blocks=change.route[1].blocks)
    route = (change.route[0], middle, change.route[2])
    assert objecting(tale.changed(change, route=route)) == set()
    assert objecting(tale.changed(change, now=(middle,), route=route)) == {new_routes_leave_the_failed_out}


def test_a_new_route_with_a_server_that_was_overtaken_is_seen() -> None:
    tale = tell([Incident.QUIET, Incident.OVERTAKEN])
    (change,) = tale.of(RouteChanged)
    assert objecting(tale.changed(change, route=(change.was, *change.route[1:]))) == {new_routes_leave_the_failed_out}


def test_a_hedge_with_a_failed_server_is_seen() -> None:
    tale = tell([Incident.LOST, Incident.HEDGED])
    (hedge,), (failure,), (done, _) = tale.of(HedgeStarted), tale.of(PeerFailed), tale.of(StepDone)
    again = tale.changed(hedge, now=(failure.hop,))
    assert objecting(again) == set(), "a step later it may have come back"
    assert new_routes_leave_the_failed_out in objecting(again.without(done))


def test_after_a_wait_a_failed_server_may_be_asked_again_and_an_expired_one_at_once() -> None:
    assert objecting(tell([Incident.FULL, Incident.EXPIRED])) == set()


@FEW
@given(tales(), st.data())
def test_a_first_route_with_a_hole_is_seen(tale: Tale, data: st.DataObject) -> None:
    chosen = drawn(data, tale, RouteChosen)
    at = data.draw(st.integers(0, len(chosen.route) - 1))
    holed = (*chosen.route[:at], *chosen.route[at + 1 :])
    assert objecting(tale.changed(chosen, route=holed)) == {routes_hold_each_block_once}


@FEW
@given(tales(needs=(Incident.LOST,)), st.data())
def test_a_route_with_a_block_twice_is_seen(tale: Tale, data: st.DataObject) -> None:
    changed = drawn(data, tale, RouteChanged)
    last = changed.route[-1]
    wider = replace(last, blocks=BlockRange(max(0, last.blocks.start - 1), last.blocks.end))
    twice = changed.route if len(changed.route) == 1 else (*changed.route[:-1], wider)
    route = (*twice, last) if len(twice) == 1 else twice
    assert objecting(tale.changed(changed, route=route)) == {routes_hold_each_block_once}
