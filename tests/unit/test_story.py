"""What a run's events amount to."""

from __future__ import annotations

import pytest
from support.builders import peer_of

from swarmctl.blocks import NodeName, parse_range
from swarmctl.client.story import Failover, tell
from swarmctl.events import (
    Event,
    FaultInjected,
    HedgeStarted,
    Hop,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    ReplayDone,
    ReplayStarted,
    RouteChanged,
    RouteChosen,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
)


def hop(name: str, blocks: str = "0:4") -> Hop:
    return Hop(blocks=parse_range(blocks), peer=peer_of(name), node=NodeName(name))


A, B, C, D, E = hop("a"), hop("b", "4:8"), hop("c"), hop("d", "0:2"), hop("e", "2:4")


def step(took_ms: float = 50.0, tokens: int = 1, at_s: float = 0.0) -> StepDone:
    return StepDone(at_s=at_s, step=1, position=9, tokens=tokens, batch=1, took_ms=took_ms)


def failed(which: Hop, *, at_s: float = 1.0, kind: str = "lost", detect_ms: float = 7.0) -> PeerFailed:
    return PeerFailed(
        at_s=at_s, hop=which, kind=kind, reason="connection closed", position=8, in_flight=True, detect_ms=detect_ms
    )


def changed(was: Hop, *now: Hop) -> RouteChanged:
    return RouteChanged(was=was, now=now, route=(*now, B), took_ms=2.0)


def recovered(step_ms: float = 200.0, tokens: int = 8) -> RecoveryDone:
    return RecoveryDone(position=9, failed=(A.peer,), replayed_tokens=tokens, pause_ms=150.0, step_ms=step_ms)


def replayed(which: Hop, took_ms: float = 30.0) -> ReplayDone:
    return ReplayDone(hop=which, tokens=8, took_ms=took_ms)


def killed(node: str, at_s: float) -> FaultInjected:
    return FaultInjected(at_s=at_s, fault="kill", node=NodeName(node), token=8, in_flight=True)


def only(*events: Event) -> Failover:
    """The one failover of these events."""
    (failover,) = tell(events).failovers
    return failover


def test_a_run_without_events_has_no_numbers() -> None:
    story = tell([])

    assert (story.failovers, story.steps, story.step_ms_median, story.tokens_per_s) == ((), 0, None, None)


def test_the_speed_is_the_median_of_one_token_steps_and_the_prompt_is_a_step_too() -> None:
    story = tell([RouteChosen(route=(A, B), took_ms=3.0), step(900.0, tokens=12), step(40.0), step(50.0), step(999.0)])

    assert (story.steps, story.step_ms_median, story.tokens_per_s) == (4, 50.0, 20.0)


def test_a_run_of_a_prompt_alone_has_no_speed() -> None:
    story = tell([step(900.0, tokens=12)])

    assert (story.steps, story.step_ms_median, story.tokens_per_s) == (1, None, None)


def test_a_failover_is_told_in_full() -> None:
    failover = only(
        failed(A),
        changed(A, D, E),
        ReplayStarted(hop=D, tokens=8, chunks=1),
        replayed(D, 30.0),
        replayed(E, 25.0),
        recovered(tokens=16),
        step(200.0),
    )

    assert failover == Failover(
        position=8,
        lost=(A,),
        taken_over_by=(D, E),
        kind="lost",
        reason="connection closed",
        in_flight=True,
        detect_ms=7.0,
        replay_ms=55.0,
        pause_ms=200.0,
        replayed_tokens=16,
    )


def test_a_step_with_a_failover_counts_as_a_step_and_not_for_the_speed() -> None:
    story = tell([step(40.0), failed(A), changed(A, C), recovered(), step(200.0), step(60.0)])

    assert (story.steps, story.step_ms_median) == (3, 50.0)


def test_detection_is_counted_from_the_fault_that_hit_the_lost_node() -> None:
    failover = only(killed("a", 1.0), killed("b", 1.2), failed(A, at_s=1.25), failed(B, at_s=1.3), recovered(), step())

    assert failover.detect_ms == pytest.approx(250.0)


def test_a_fault_that_hit_somebody_else_is_no_beginning() -> None:
    assert only(killed("b", 0.1), failed(A, at_s=1.25), changed(A, C), recovered(), step()).detect_ms == 7.0


def test_a_fault_of_an_earlier_failover_is_no_beginning() -> None:
    events = [killed("a", 0.5), failed(A, at_s=0.6), changed(A, C), recovered(), step()]
    again = [failed(A, at_s=9.0), changed(A, C), recovered(), step()]

    assert tell([*events, *again]).failovers[1].detect_ms == 7.0


def test_an_unknown_server_has_no_fault_of_its_own() -> None:
    stranger = Hop(blocks=A.blocks, peer=peer_of("stranger"))

    assert only(killed("a", 0.1), failed(stranger), changed(stranger, C), recovered(), step()).detect_ms == 7.0


def test_a_failure_that_is_noticed_before_its_fault_was_noted_took_no_time() -> None:
    assert only(killed("a", 1.3), failed(A, at_s=1.25), changed(A, C), recovered(), step()).detect_ms == 0.0


def test_a_replacement_that_failed_too_is_lost_and_took_nothing_over() -> None:
    failover = only(failed(A), changed(A, D, E), failed(D, kind="silent"), changed(D, C), recovered(), step())

    assert (failover.lost, failover.taken_over_by, failover.kind) == ((A, D), (E, C), "lost")


def test_a_server_that_ended_an_old_stream_takes_its_own_span_over() -> None:
    failover = only(failed(A, kind="expired"), changed(A, A), recovered(), step())

    assert (failover.lost, failover.taken_over_by) == ((A,), (A,))


def test_a_server_that_came_back_after_a_wait_takes_its_own_span_over() -> None:
    failover = only(
        failed(A),
        WaitingForPeers(blocks=A.blocks, remaining_s=60.0),
        changed(A, A),
        failed(A),
        changed(A, A),
        recovered(),
        step(),
    )

    assert (failover.lost, failover.taken_over_by) == ((A,), (A,))


def test_every_failover_has_only_its_own_failures_and_replays() -> None:
    story = tell(
        [
            *(failed(A), changed(A, C), replayed(C, 30.0), recovered(), step()),
            TokensEmitted(index=0, ids=(1,)),
            *(failed(B), changed(B, hop("f", "4:8")), replayed(B, 10.0), recovered(tokens=9), step()),
        ]
    )

    assert [(f.lost, f.replay_ms, f.replayed_tokens) for f in story.failovers] == [((A,), 30.0, 8), ((B,), 10.0, 9)]


def test_a_step_that_was_given_up_leaves_nothing_to_the_next_one() -> None:
    given_up = RecoveryGivenUp(blocks=A.blocks, position=8, tried=(A.peer,), waited_s=60.0)

    failover = only(failed(A), given_up, failed(B), changed(B, hop("f", "4:8")), recovered(), step())

    assert failover.lost == (B,)


def test_an_overtaken_server_is_a_failover_and_its_detection_is_the_suspicion() -> None:
    failover = only(
        killed("a", at_s=1.0),
        PeerSuspected(at_s=1.5, hop=A, silent_ms=510.0),
        HedgeStarted(at_s=1.5, hop=A, now=(C,)),
        replayed(C, 80.0),
        PeerOvertaken(at_s=1.6, hop=A, position=8, silent_ms=610.0),
        changed(A, C),
        recovered(650.0),
        step(650.0),
    )

    assert (failover.kind, failover.lost, failover.taken_over_by) == ("overtaken", (A,), (C,))
    assert (failover.detect_ms, failover.replay_ms, failover.pause_ms) == (500.0, 80.0, 650.0)
    assert failover.in_flight
    assert failover.reason == "no answer for 0.6 s, and another server had it"


def test_a_suspect_that_answers_after_all_is_no_failover() -> None:
    assert tell([PeerSuspected(hop=A, silent_ms=510.0), HedgeStarted(hop=A, now=(C,)), step(700.0)]).failovers == ()
