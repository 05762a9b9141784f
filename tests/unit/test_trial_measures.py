"""What is measured of trials, and what the results of many amount to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from support.tales import ALL, CALM, CROWD, FORGET, KILL, LOST, RECOVERED, Incident, Tale, a_trial, cell, tales, tell

from swarmctl.errors import ExitCode
from swarmctl.events import (
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    ReplayDone,
    StepDone,
    TokensEmitted,
)
from swarmctl.matrix import Cell, Fault, Moment, Traffic, Victim
from swarmctl.trial import Result, Subject, Verdict, judge, summarise

FEW = settings(max_examples=40)


# --- what is measured -------------------------------------------------------------------------------------------


@FEW
@given(tales(needs=RECOVERED, among=[incident for incident in Incident if incident is not Incident.GIVEN_UP]))
def test_what_is_measured_is_what_the_events_say(tale: Tale) -> None:
    result = judge(tale.trial())
    recoveries = tale.of(RecoveryDone)
    assert result.pause_ms == max(event.step_ms for event in recoveries)
    assert result.replayed_tokens == sum(event.replayed_tokens for event in recoveries)
    replays = tale.of(ReplayDone)
    assert result.replay_ms == (pytest.approx(sum(event.took_ms for event in replays)) if replays else None)
    detections = [event.detect_ms for event in tale.of(PeerFailed) if event.kind != "busy"]
    assert result.detect_ms == max([*detections, *(event.silent_ms for event in tale.of(PeerOvertaken))])


def test_a_normal_step_is_the_median_of_one_token_steps_without_a_loss_over_all_sessions() -> None:
    tale = tell([Incident.QUIET, Incident.LOST, Incident.QUIET])
    prefill, failover, step = tale.of(StepDone)
    assert prefill.took_ms < failover.took_ms
    assert judge(tale.changed(step, took_ms=35.0).trial()).step_ms_median == 35.0
    others = tell([Incident.QUIET, Incident.QUIET])
    slower = others.changed(others.of(StepDone)[1], took_ms=45.0).run()
    both = a_trial(tale.changed(step, took_ms=35.0).run(), slower, cell=cell("kill/mid-step/first/same/batches"))
    assert judge(both).step_ms_median == 40.0
    assert judge(tell([Incident.LOST]).trial()).step_ms_median is None


def test_a_server_without_room_was_not_detected() -> None:
    tale = tell([Incident.QUIET, Incident.FULL])
    lost, busy = tale.of(PeerFailed)
    assert judge(tale.changed(busy, detect_ms=9_000.0).trial()).detect_ms == lost.detect_ms


def test_replays_of_a_hedge_that_was_dropped_are_not_counted() -> None:
    tale = tell([Incident.QUIET, Incident.HEDGED, Incident.LOST])
    (suspicion,), (replay,) = tale.of(PeerSuspected), tale.of(ReplayDone)
    at = tale.events.index(suspicion)
    hedged = tale.with_events((*tale.events[:at], replace(replay, took_ms=900.0), *tale.events[at:]))
    assert judge(hedged.trial()).replay_ms == 50.0


def test_the_replay_of_a_crowd_is_its_longest_session_and_its_tokens_add_up() -> None:
    result = judge(a_trial(LOST.run(), tell([Incident.QUIET, Incident.TWO]).run(), cell=CROWD))
    assert result.replay_ms == 100.0
    assert result.replayed_tokens == 5 + 10


def test_nothing_is_measured_where_nothing_happened() -> None:
    result = judge(CALM.trial(FORGET))
    assert (result.detect_ms, result.replay_ms, result.pause_ms, result.replayed_tokens) == (None, None, None, 0)


def test_of_a_session_that_ended_early_the_tokens_that_were_not_streamed_are_lost() -> None:
    tale = tell([Incident.QUIET] * 5, batch=2)
    fourth = tale.of(TokensEmitted)[3]
    cut = tale.with_events(tale.events[: tale.events.index(fourth)])
    assert judge(cut.trial(ids=None, error="it broke")).tokens_lost == 2 * 2


# --- the summary ------------------------------------------------------------------------------------------------


def a_result(verdict: Verdict = Verdict.IDENTICAL, subject: Subject = Subject.SWARMCTL, **measured: Any) -> Result:
    """A judgement of the plain cell."""
    return Result(cell=measured.pop("cell", KILL), subject=subject, verdict=verdict, **measured)


@pytest.mark.parametrize(
    ("verdicts", "proved", "code"),
    [
        ([Verdict.IDENTICAL, Verdict.WITHIN], True, ExitCode.OK),
        ([Verdict.IDENTICAL, Verdict.NOT_HIT], False, ExitCode.UNKNOWN_VERDICT),
        ([Verdict.NOT_HIT, Verdict.FAILED], False, ExitCode.CHECK_NEGATIVE),
        ([Verdict.WITHIN, Verdict.DIFFERENT], False, ExitCode.CHECK_NEGATIVE),
    ],
)
def test_all_cells_must_be_proved_and_the_exit_code_says_what_spoils_it(
    verdicts: list[Verdict], proved: bool, code: ExitCode
) -> None:
    summary = summarise([a_result(verdict) for verdict in verdicts])
    assert (summary.proved, summary.exit_code) == (proved, code)


def test_the_stock_client_is_counted_and_neither_proves_nor_spoils_anything() -> None:
    stock = [a_result(verdict, Subject.STOCK, pause_ms=9e9) for verdict in Verdict]
    both = summarise([a_result(), *stock])
    assert (both.proved, both.exit_code, both.worst_pause_ms) == (True, ExitCode.OK, None)
    ours, theirs = both.tallies
    assert (ours.subject, ours.identical, ours.total) == (Subject.SWARMCTL, 1, 1)
    counts = (theirs.identical, theirs.within, theirs.different, theirs.failed, theirs.not_hit)
    assert (theirs.subject, counts, theirs.total) == (Subject.STOCK, (1, 1, 1, 1, 1), 5)
    assert not summarise(stock).proved
    assert not summarise([]).proved
    assert summarise([]).tallies == ()


def test_a_pause_in_which_nobody_was_left_to_go_to_is_not_the_worst() -> None:
    waited = [a_result(pause_ms=17_000.0, cell=one) for one in (ALL, cell("restart/idle/first/same/chat"))]
    full = a_result(pause_ms=9_000.0, cell=cell("full/mid-step/first/same/greedy"))
    assert summarise([*waited, full]).worst_pause_ms is None
    assert summarise([*waited, full]).pause_in_steps is None
    assert summarise([*waited, a_result(pause_ms=90.0), full]).worst_pause_ms == 90.0


def test_the_worst_pause_is_named_and_the_usual_one_is_counted_in_steps() -> None:
    slowest = Cell(family="bloom", fault=Fault.PAUSE, moment=Moment.LAST, victim=Victim.LAST, traffic=Traffic.BEAMS)
    results = [
        a_result(pause_ms=100.0, step_ms_median=20.0),
        a_result(pause_ms=900.0, step_ms_median=30.0, cell=slowest),
        a_result(pause_ms=80.0, step_ms_median=20.0),
        a_result(pause_ms=50.0, step_ms_median=None),
        a_result(),
    ]
    summary = summarise(results)
    assert (summary.worst_pause_ms, summary.worst_cell, summary.pause_in_steps) == (900.0, slowest, 5.0)
