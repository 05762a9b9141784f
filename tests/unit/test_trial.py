"""The judgement of trials: right for whatever a session may go through, and wrong for each single thing that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tales import ALL, CALM, CROWD, FORGET, KILL, LOST, QUICKLY, Incident, Tale, a_trial, cell, tales, tell

from swarmctl.events import (
    Event,
    RecoveryDone,
    RouteChanged,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
)
from swarmctl.matrix import Cell
from swarmctl.trial import Run, Subject, Trial, Verdict, judge

FEW = settings(max_examples=40)
HIT = tales(needs=QUICKLY, among=[incident for incident in Incident if incident is not Incident.GIVEN_UP])


def verdict_of(tale: Tale, cell: Cell = KILL, **changes: Any) -> Verdict:
    """What is said of a trial of this session."""
    return judge(tale.trial(cell, **changes)).verdict


SLOW = cell("slow/mid-step/first/same/greedy")
EXPIRE = cell("expire/idle/first/same/chat")

# --- verdicts ---------------------------------------------------------------------------------------------------


@given(HIT)
def test_a_session_that_recovers_and_gives_the_same_tokens_is_identical(tale: Tale) -> None:
    result = judge(tale.trial())
    assert (result.verdict, result.reason, result.tokens_lost) == (Verdict.IDENTICAL, "", 0)


@FEW
@given(HIT, st.data())
def test_a_changed_token_is_different_and_named(tale: Tale, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(tale.ids) - 1))
    place = data.draw(st.integers(0, len(tale.ids[0]) - 1))
    rows = [list(row) for row in tale.ids]
    right = rows[number][place]
    rows[number][place] += 1
    ids = tuple(map(tuple, rows))
    streamed = [event for event in tale.events if isinstance(event, TokensEmitted)][place]
    said = tale.changed(streamed, ids=tuple(row[place] for row in ids))
    result = judge(said.trial(ids=ids))
    assert result.verdict is Verdict.DIFFERENT
    which = f"sequence {number}: " if len(ids) > 1 else ""
    assert result.reason == f"{which}token {place} is {right + 1}, not {right}"


@FEW
@given(HIT, st.data())
def test_a_token_that_is_lost_or_doubled_is_different_and_counted(tale: Tale, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(tale.ids[0]) - 1))
    lost = judge(tale.trial(ids=tuple(row[:place] + row[place + 1 :] for row in tale.ids)))
    doubled = judge(tale.trial(ids=tuple(row[:place] + row[place:][:1] + row[place:] for row in tale.ids)))
    assert (lost.verdict, lost.tokens_lost) == (Verdict.DIFFERENT, len(tale.ids))
    assert (doubled.verdict, doubled.tokens_lost) == (Verdict.DIFFERENT, 0)


@FEW
@given(HIT, st.data())
def test_a_token_that_was_not_streamed_as_it_was_returned_is_different(tale: Tale, data: st.DataObject) -> None:
    event = data.draw(st.sampled_from(tale.of(TokensEmitted)))
    assert verdict_of(tale.changed(event, ids=(0, *event.ids[1:]))) is Verdict.DIFFERENT


@FEW
@given(HIT, st.data())
def test_a_position_that_jumps_is_failed(tale: Tale, data: st.DataObject) -> None:
    step = data.draw(st.sampled_from(tale.of(StepDone)))
    assert verdict_of(tale.changed(step, position=step.position + 1)) is Verdict.FAILED


@FEW
@given(HIT, st.data())
def test_a_failure_without_a_recovery_is_failed(tale: Tale, data: st.DataObject) -> None:
    result = judge(tale.without(data.draw(st.sampled_from(tale.of(RecoveryDone)))).trial())
    assert result.verdict is Verdict.FAILED
    assert "was never recovered" in result.reason


@FEW
@given(tales(needs=QUICKLY, among=(Incident.QUIET,)))
def test_a_slow_recovery_is_failed_by_the_trials_own_budget(tale: Tale) -> None:
    (recovery,) = tale.of(RecoveryDone)
    slow = tale.changed(recovery, pause_ms=5_500.0).trial()
    assert judge(slow).verdict is Verdict.FAILED
    assert judge(slow).reason == "a recovery took 5500 ms of 5000"
    assert judge(replace(slow, budget_s=6.0)).verdict is Verdict.IDENTICAL


def test_a_session_that_ends_in_an_error_is_failed_with_its_text() -> None:
    result = judge(LOST.trial(ids=None, error="no server for blocks 0:3"))
    assert (result.verdict, result.reason) == (Verdict.FAILED, "no server for blocks 0:3")


def test_a_session_without_an_answer_or_an_error_is_failed_and_so_is_a_trial_without_sessions() -> None:
    assert verdict_of(LOST, ids=None) is Verdict.FAILED
    assert judge(a_trial()).verdict is Verdict.FAILED
    assert verdict_of(LOST, ids=None, error="") is Verdict.FAILED
    assert judge(LOST.trial(ids=None, error="")).reason


def test_the_verdict_is_the_worst_of_all_and_the_reason_has_every_objection_the_worst_first() -> None:
    forgotten = LOST.without(LOST.of(RecoveryDone)[0]).run()
    wrong = LOST.run(ids=((10, 20, 30, 41),))
    result = judge(a_trial(forgotten, wrong, cell=cell("kill/mid-step/first/same/batches")))
    assert result.verdict is Verdict.DIFFERENT
    assert result.reason.split("; ") == [
        "session 2: token 3 is 41, not 40",
        "session 2: what was streamed is not what was returned: token 3 is 40, not 41",
        "session 1: step 2 was done, and n1 was never recovered",
    ]


def test_a_fault_that_missed_makes_the_trial_not_hit_whatever_came_out() -> None:
    trial = a_trial(LOST.run(ids=None, error="stopped"), missed="the moment never came")
    assert (judge(trial).verdict, judge(trial).reason) == (Verdict.NOT_HIT, "the moment never came")
    assert judge(a_trial(missed="this swarm has no such server")).verdict is Verdict.NOT_HIT


# --- tokens that arithmetic decides -----------------------------------------------------------------------------


def a_tie(place: int = 2, *, margin: float = 4e-4, distance: float = 1e-4, **changes: Any) -> Run:
    """A run whose token at `place` is another one, and what was measured there."""
    ids = tuple(token + (at >= place) for at, token in enumerate(LOST.ids[0]))
    steps = len(ids)
    margins = tuple(margin if at == place else 0.3 for at in range(steps))
    distances = tuple(distance if at <= place else 0.5 for at in range(steps))
    events = tuple(event for event in LOST.events if not isinstance(event, TokensEmitted))
    return replace(LOST.run(events=events, ids=(ids,), margins=margins, distances=distances), **changes)


@pytest.mark.parametrize("place", [0, 2, 3])
def test_another_token_at_a_tie_is_within_tolerance_and_says_so_with_numbers(place: int) -> None:
    result = judge(a_trial(a_tie(place)))
    assert result.verdict is Verdict.WITHIN
    assert f"token {place} is" in result.reason
    assert "led by 0.0004 there, and hidden states differ by 0.0001" in result.reason


def test_what_was_measured_after_the_tie_does_not_matter() -> None:
    run = a_tie(1)
    assert judge(a_trial(replace(run, distances=(*run.distances[:2], 9.0, float("nan"))))).verdict is Verdict.WITHIN


@pytest.mark.parametrize(
    "run",
    [
        a_tie(margin=4.1e-4),
        replace(a_tie(margin=1e-3), distances=(1e-4, 1e-4, 2.1e-2, 0.5)),
        replace(a_tie(), distances=(2.1e-2, 1e-4, 1e-4, 0.5)),
        a_tie(margin=0.0, distance=0.0),
        a_tie(distance=float("nan")),
        a_tie(margin=float("nan")),
        a_tie(distances=()),
        a_tie(margins=()),
        replace(a_tie(3), distances=(1e-4,) * 3),
        a_tie(3, ids=(LOST.ids[0][:-1],)),
        a_tie(ids=(*LOST.ids, *LOST.ids)),
    ],
    ids=[
        "the margin is too large",
        "the distance is too large",
        "an earlier distance is too large",
        "nothing differs but the token",
        "no distance",
        "no margin",
        "distances were not compared",
        "margins are not known",
        "the step was not compared",
        "a token is missing",
        "a sequence is too many",
    ],
)
def test_another_token_that_arithmetic_does_not_explain_is_different(run: Run) -> None:
    assert judge(a_trial(run)).verdict is Verdict.DIFFERENT


def test_only_the_earliest_difference_of_a_batch_counts() -> None:
    tale = tell([Incident.LOST, Incident.QUIET, Incident.QUIET], batch=2)
    (one, two) = tale.ids
    events = tuple(event for event in tale.events if not isinstance(event, TokensEmitted))
    ids = ((one[0], one[1], 7), (two[0], 7, 7))
    run = tale.run(events=events, ids=ids, margins=(0.3, 1e-4, 0.3), distances=(1e-4, 1e-4, 0.2))
    assert judge(a_trial(run)).verdict is Verdict.WITHIN
    assert judge(a_trial(run)).reason.startswith("sequence 1: token 1 is 7")


def test_steps_before_the_first_token_do_not_shift_the_others() -> None:
    run = a_tie(2)
    fed = {"margins": (0.1, 0.1, *run.margins), "distances": (1e-4, 1e-4, *run.distances)}
    assert judge(a_trial(replace(run, **fed))).verdict is Verdict.WITHIN


def test_an_undisturbed_run_that_transformers_alone_contradicts_is_different() -> None:
    result = judge(LOST.trial(local=((10, 20, 30, 41),)))
    assert result.verdict is Verdict.DIFFERENT
    assert result.reason == "the undisturbed run is not what transformers alone makes: token 3 is 40, not 41"
    assert verdict_of(LOST, local=None) is Verdict.IDENTICAL


# --- what a cell asks besides -----------------------------------------------------------------------------------


def test_without_replicas_a_session_that_gives_up_in_time_and_goes_on_is_identical() -> None:
    gave_up = tell([Incident.QUIET, Incident.GIVEN_UP, Incident.QUIET])
    waited = tell([Incident.QUIET, Incident.FULL])
    assert verdict_of(gave_up, ALL) is Verdict.IDENTICAL
    assert verdict_of(gave_up.without(gave_up.of(WaitingForPeers)[0]), ALL) is Verdict.IDENTICAL
    assert verdict_of(waited, ALL) is Verdict.IDENTICAL
    assert verdict_of(gave_up, ALL, ids=None, error="no server for blocks 0:3") is Verdict.FAILED


def test_without_replicas_a_session_that_neither_waits_nor_gives_up_is_failed() -> None:
    result = judge(LOST.trial(ALL))
    assert (result.verdict, result.reason) == (
        Verdict.FAILED,
        "no replica was left, and the session neither waited for one nor gave up",
    )


def test_without_replicas_giving_up_too_late_is_failed() -> None:
    tale = tell([Incident.QUIET, Incident.GIVEN_UP, Incident.QUIET])
    (waiting,) = tale.of(WaitingForPeers)
    assert verdict_of(tale.changed(waiting, remaining_s=-8.0), ALL) is Verdict.FAILED


def test_giving_up_although_a_server_was_left_is_failed() -> None:
    result = judge(tell([Incident.QUIET, Incident.GIVEN_UP, Incident.QUIET]).trial())
    assert result.verdict is Verdict.FAILED
    assert result.reason == "blocks 0:6 were given up, and a server for them was left or came back"


@pytest.mark.parametrize("kind", [Incident.OVERTAKEN, Incident.HEDGED])
def test_a_slow_server_may_be_overtaken_or_answer_first(kind: Incident) -> None:
    assert verdict_of(tell([Incident.QUIET, kind]), SLOW) is Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("where", "incident"),
    [(SLOW, Incident.SILENT), (FORGET, Incident.LOST), (EXPIRE, Incident.LOST), (EXPIRE, Incident.TWO)],
    ids=str,
)
def test_giving_a_healthy_server_up_is_failed(where: Cell, incident: Incident) -> None:
    result = judge(tell([Incident.EXPIRED, Incident.HEDGED, incident]).trial(where))
    assert result.verdict is Verdict.FAILED
    assert "and was well" in result.reason


def test_in_a_replay_only_the_server_that_was_killed_for_it_may_be_given_up() -> None:
    replay = cell("slow/replay/first/same/greedy")
    assert verdict_of(tell([Incident.LOST, Incident.HEDGED]), replay) is Verdict.IDENTICAL
    assert verdict_of(tell([Incident.TWICE, Incident.HEDGED]), replay) is Verdict.FAILED


def test_a_server_that_ended_an_old_stream_is_the_one_that_goes_on() -> None:
    tale = tell([Incident.QUIET, Incident.EXPIRED])
    assert verdict_of(tale, EXPIRE) is Verdict.IDENTICAL
    (change,) = tale.of(RouteChanged)
    other = replace(change.now[0], peer="stranger")
    moved = judge(tale.changed(change, now=(other,), route=(other, *change.route[1:])).trial(EXPIRE))
    assert moved.verdict is Verdict.FAILED
    assert "went to another server" in moved.reason


# --- traces of the fault ----------------------------------------------------------------------------------------

NOT_SHOWN = [
    (KILL, [Incident.QUIET], "0 of 1 servers were lost"),
    (KILL, [Incident.HEDGED], "0 of 1 servers were lost"),
    (cell("kill/mid-step/two/same/greedy"), [Incident.LOST, Incident.LOST], "1 of 2 servers were lost"),
    (cell("kill/mid-step/heir/same/greedy"), [Incident.LOST], "1 of 2 servers were lost"),
    (cell("pause/replay/first/same/greedy"), [Incident.OVERTAKEN], "1 of 2 servers were lost"),
    (cell("full/mid-step/first/same/greedy"), [Incident.LOST], "the replacement had room"),
    (cell("full/mid-step/two/same/greedy"), [Incident.FULL], "1 of 2 servers were lost"),
    (SLOW, [Incident.QUIET], "no answer was late enough to be noticed"),
    (EXPIRE, [Incident.QUIET], "no stream had expired"),
]
SHOWN = [
    (KILL, [Incident.SILENT]),
    (cell("kill/mid-step/two/same/greedy"), [Incident.TWO]),
    (cell("kill/mid-step/heir/same/greedy"), [Incident.LOST, Incident.QUIET, Incident.LOST]),
    (cell("pause/replay/first/same/greedy"), [Incident.TWICE]),
    (cell("full/mid-step/first/same/greedy"), [Incident.FULL]),
    (SLOW, [Incident.HEDGED]),
    (EXPIRE, [Incident.EXPIRED]),
    (FORGET, [Incident.QUIET]),
]


@pytest.mark.parametrize(("where", "incidents", "reason"), NOT_SHOWN, ids=str)
def test_right_tokens_without_a_trace_of_the_fault_are_not_hit(
    where: Cell, incidents: list[Incident], reason: str
) -> None:
    result = judge(tell([Incident.QUIET, *incidents, Incident.QUIET]).trial(where))
    assert (result.verdict, result.reason) == (Verdict.NOT_HIT, reason)


@pytest.mark.parametrize(("where", "incidents"), SHOWN, ids=str)
def test_a_trace_of_the_fault_is_enough(where: Cell, incidents: list[Incident]) -> None:
    assert verdict_of(tell([Incident.QUIET, *incidents, Incident.QUIET]), where) is Verdict.IDENTICAL


def test_a_wrong_answer_is_different_even_if_the_fault_left_no_trace() -> None:
    assert verdict_of(CALM, ids=((10, 20, 30, 41),)) is Verdict.DIFFERENT


def test_one_of_several_sessions_meets_the_fault_but_of_a_crowd_all_do() -> None:
    batches = cell("kill/mid-step/first/same/batches")
    assert judge(a_trial(CALM.run(), LOST.run(), cell=batches)).verdict is Verdict.IDENTICAL
    assert judge(a_trial(LOST.run(), LOST.run(), cell=CROWD)).verdict is Verdict.IDENTICAL
    crowd = judge(a_trial(CALM.run(), LOST.run(), cell=CROWD))
    assert crowd.verdict is Verdict.NOT_HIT
    assert crowd.reason == "in 1 of 2 sessions 0 of 1 servers were lost"


def test_the_stock_client_is_judged_by_its_answer_for_it_tells_no_events() -> None:
    silent = Run(events=(), expected=CALM.ids, ids=CALM.ids)
    for where in (KILL, ALL, EXPIRE, CROWD):
        assert judge(a_trial(silent, cell=where, subject=Subject.STOCK)).verdict is Verdict.IDENTICAL
        assert judge(a_trial(silent, cell=where)).verdict is not Verdict.IDENTICAL
    assert judge(a_trial(LOST.run(), cell=SLOW, subject=Subject.STOCK)).verdict is Verdict.IDENTICAL
    broken = replace(silent, ids=None, error="Broken input cache")
    result = judge(a_trial(broken, subject=Subject.STOCK))
    assert (result.verdict, result.reason, result.tokens_lost) == (Verdict.FAILED, "Broken input cache", 4)
    assert result.pause_ms is None


# --- a corrupted event never breaks the judge -------------------------------------------------------------------


@FEW
@given(HIT, st.data())
def test_any_part_of_a_history_can_be_judged(tale: Tale, data: st.DataObject) -> None:
    events: list[Event] = data.draw(st.lists(st.sampled_from(tale.events), max_size=20))
    trial: Trial = tale.with_events(events).trial(data.draw(st.sampled_from([KILL, ALL, SLOW, EXPIRE, CROWD])))
    assert judge(trial).verdict in Verdict
