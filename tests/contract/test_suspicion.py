"""A late answer makes its server suspected, and another is asked beside it; only who answers no look is given up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from support.eventually import eventually
from support.fakeswarm import Die, Hang, Late, Pause, peer_id
from support.sessions import QUICK, Bench

from swarmctl.events import HedgeDropped, HedgeStarted, PeerFailed, PeerOvertaken, PeerSuspected, RecoveryDone
from swarmctl.recovery import FailureKind
from swarmctl.upstream.failures import Silent
from swarmctl.upstream.legs import SessionSettings
from swarmctl.upstream.suspicion import Pace, Patience, watch

WATCHFUL: SessionSettings = replace(QUICK, step_timeout_s=1.5, suspect_after_s=0.05, look_timeout_s=0.4)
STORY = ("PeerSuspected", "HedgeStarted", "HedgeDropped", "PeerOvertaken", "PeerFailed", "RouteChanged", "RecoveryDone")


def watchful(*texts: str, settings: SessionSettings = WATCHFUL) -> Bench:
    bench = Bench(*texts, settings=settings)
    bench.step(3)
    bench.step()
    bench.forget()
    return bench


def test_a_slow_server_is_overtaken_and_nothing_is_held_against_it() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench["a"].will(Late(0.6))

    bench.step()

    assert bench.told(*STORY) == ["PeerSuspected", "HedgeStarted", "PeerOvertaken", "RouteChanged", "RecoveryDone"]
    assert bench.route() == ["b=0:6"]
    assert bench.seen("b") == ["0+5"], "the hedge was fed the whole history at once"
    assert not bench["a"].open_streams, "the loser's cache is free again"
    (overtaken,) = [event for event in bench.events if isinstance(event, PeerOvertaken)]
    assert (overtaken.hop.node, overtaken.position) == ("a", 4)
    assert 40 <= overtaken.silent_ms < 500

    def forgiven() -> None:
        assert not bench.router.bans.banned(0.0), "a look found it well"

    eventually(forgiven, within_s=5)
    assert FailureKind.SILENT not in {kind for _, kind in bench.router.failures}
    bench.step()


def test_a_slow_server_that_nobody_can_replace_is_waited_for() -> None:
    bench = watchful("a=0:6")
    bench["a"].will(Late(0.3))

    bench.step()

    assert bench.told(*STORY) == ["PeerSuspected"]
    assert bench["a"].pings >= 1
    (suspected,) = [event for event in bench.events if isinstance(event, PeerSuspected)]
    assert 40 <= suspected.silent_ms < 300
    assert bench.route() == ["a=0:6"]


def test_a_suspect_that_answers_before_its_hedge_stays() -> None:
    bench = watchful("a=0:3", "b=0:3", "c=3:6")
    bench["a"].will(Late(0.2))
    bench["b"].will(Late(1.2))

    bench.step()

    assert bench.told(*STORY) == ["PeerSuspected", "HedgeStarted", "HedgeDropped"]
    assert bench.route() == ["a=0:3", "c=3:6"]
    assert not bench["b"].open_streams
    (dropped,) = [event for event in bench.events if isinstance(event, HedgeDropped)]
    assert (dropped.hop.node, [hop.node for hop in dropped.dropped]) == ("a", ["b"])
    assert 150 <= dropped.waited_ms < 1000
    bench.step()
    assert bench.seen("a") == ["4+1", "5+1"], "nobody was fed twice"


def test_a_paused_server_is_replaced_before_it_is_found_out() -> None:
    patient = replace(WATCHFUL, step_timeout_s=20.0, look_timeout_s=4.0)
    bench = watchful("a=0:6", "b=0:6", settings=patient)
    bench["a"].will(Pause)

    bench.step()

    assert bench.told("PeerOvertaken", "PeerFailed") == ["PeerOvertaken"]
    (done,) = [event for event in bench.events if isinstance(event, RecoveryDone)]
    assert done.step_ms < 1e3 * patient.look_timeout_s
    assert len(done.failed) == 1

    def found_out() -> None:
        assert ("a", FailureKind.SILENT) in bench.router.failures

    eventually(found_out, within_s=20)


def test_a_paused_server_that_nobody_can_replace_is_given_up_before_the_requests_own_limit() -> None:
    bench = Bench("a=0:6", settings=replace(WATCHFUL, recover_timeout_s=20.0))
    bench.step(3)
    bench.step()
    bench["a"].will(Pause)

    def back() -> None:
        bench["a"].paused = False
        bench.router.report_success(peer_id("a"))

    bench.router.on_refresh = back
    bench.step()

    (failed,) = [event for event in bench.events if isinstance(event, PeerFailed)]
    assert failed.kind == FailureKind.SILENT.value
    assert "nor to a look" in failed.reason
    assert failed.detect_ms < 1e3 * WATCHFUL.step_timeout_s
    assert bench.told("PeerFailed", "WaitingForPeers", "RecoveryDone") == [
        "PeerFailed",
        "WaitingForPeers",
        "RecoveryDone",
    ]


def test_a_server_that_hangs_behind_a_living_daemon_is_overtaken() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench["a"].will(Hang)

    bench.step()

    assert bench.told("PeerOvertaken", "PeerFailed") == ["PeerOvertaken"]
    assert bench.route() == ["b=0:6"]


def test_a_server_that_hangs_in_a_task_is_left_alone_for_a_while_although_its_process_lives() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench["a"].will(Hang)
    bench["a"].busy_s = 3.0

    bench.step()

    def looked() -> None:
        assert not bench.session._legs._looks, "nobody looks any more"

    eventually(looked, within_s=5)
    assert peer_id("a") in bench.router.bans.banned(time.monotonic())


def test_a_hedge_goes_on_as_the_replacement_when_the_suspect_fails() -> None:
    bench = watchful("a=0:4", "b1=0:2", "b2=2:4", "c=4:6")
    bench["a"].will(Hang)
    bench["b1"].will(Late(0.3))

    def strike(event: object) -> None:
        bench.events.append(event)  # type: ignore[arg-type]
        if isinstance(event, HedgeStarted):
            bench["a"].kill()

    bench.session._narrator._sink = strike  # the fault comes when the hedge begins
    bench.step()

    assert bench.told(*STORY) == ["PeerSuspected", "HedgeStarted", "PeerFailed", "RouteChanged", "RecoveryDone"]
    assert bench.route() == ["b1=0:2", "b2=2:4", "c=4:6"]
    assert bench.seen("b1") == ["0+5"], "what was fed stays fed"


def test_a_hedge_that_fails_is_replaced_by_another() -> None:
    bench = watchful("a=0:6", "b=0:6", "c=0:6")
    bench["a"].will(Hang)
    bench["b"].will(Die)

    bench.step()

    assert bench.told("PeerFailed", "PeerOvertaken") == ["PeerFailed", "PeerOvertaken"]
    assert bench.route() == ["c=0:6"]


def test_a_suspect_is_waited_for_when_its_only_hedge_fails() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench["a"].will(Late(0.5))
    bench["b"].will(Die)

    bench.step()

    assert bench.route() == ["a=0:6"]
    assert bench.told("PeerOvertaken") == []


def test_a_replacement_that_falls_silent_is_hedged_too() -> None:
    bench = watchful("a=0:6", "b=0:6", "c=0:6")
    bench["a"].will(Die)
    bench["b"].will(Pause)

    bench.step()

    assert bench.told("PeerFailed", "PeerOvertaken") == ["PeerFailed", "PeerOvertaken"]
    assert bench.route() == ["c=0:6"]


def test_a_paused_server_is_replaced_in_its_first_request() -> None:
    bench = Bench("a=0:6", "b=0:6", settings=WATCHFUL)
    bench["a"].will(Pause)

    bench.step(5)

    assert bench.told("PeerOvertaken", "PeerFailed") == ["PeerOvertaken"]
    (overtaken,) = [event for event in bench.events if isinstance(event, PeerOvertaken)]
    # Nobody knows how long five tokens take: it was the look without an answer that told.
    assert overtaken.silent_ms < 1e3 * WATCHFUL.step_timeout_s / 3


def test_a_long_prefill_on_a_server_that_answers_looks_is_given_time() -> None:
    bench = Bench("a=0:6", "b=0:6", settings=WATCHFUL)
    bench["a"].will(Late(0.3))

    bench.step(5)

    assert bench.told(*STORY) == []
    assert bench["a"].pings >= 1


def test_a_server_that_is_usually_slow_is_not_suspected_for_it() -> None:
    bench = watchful("a=0:6")
    for _ in range(3):
        bench["a"].will(Late(0.12))
        bench.step()
    bench.forget()
    bench["a"].will(Late(0.12))

    bench.step()

    assert bench.told("PeerSuspected") == []


def test_an_interrupt_while_a_hedge_is_fed_leaves_the_session_where_it_was() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench["a"].will(Hang)
    bench["b"].will(Hang)

    def interrupt(event: object) -> None:
        if isinstance(event, HedgeStarted):
            raise KeyboardInterrupt

    sink, bench.session._narrator._sink = bench.session._narrator._sink, interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.session.step(bench.inputs())
    bench.session._narrator._sink = sink

    assert bench.session.position == 4
    bench.step()
    assert not bench.session._feeder.in_flight


@pytest.mark.parametrize(
    ("noted", "tokens", "look_s", "late_s"),
    [
        pytest.param([], 1, 0.5, 5.0, id="nothing is known"),
        pytest.param([(1, 0.02)], 1, 0.5, 0.5, id="never below the floor"),
        pytest.param([(1, 0.4)], 1, 1.6, 1.6, id="four times as slow as lately"),
        pytest.param([(1, 0.4)], 60, 0.5, 5.0, id="more tokens than ever"),
        pytest.param([(1, 0.4), (512, 4.0)], 60, 16.0, 16.0, id="more tokens took so long"),
        pytest.param([(1, 0.1), (1, 0.4)], 1, 0.8, 0.8, id="the mean follows"),
    ],
)
def test_patience(noted: list[tuple[int, float]], tokens: int, look_s: float, late_s: float) -> None:
    pace = Pace(floor_s=0.5, unknown_s=5.0)
    for count, took_s in noted:
        pace.note(count, took_s)

    patience = pace.patience(tokens)

    assert (patience.look_s, patience.late_s) == (pytest.approx(look_s), pytest.approx(late_s))


def test_a_watch_ends_with_silent_when_a_look_is_answered_with_no() -> None:
    told: list[float] = []

    async def absent() -> bool:
        return False

    with pytest.raises(Silent, match="nor to a look"):
        asyncio.run(watch(Patience(look_s=0.01, late_s=5.0), is_there=absent, late=told.append))
    assert told == [], "who says no at once was never late"
