"""A late answer makes its server suspected; only one that does not answer a ping either is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.fakeswarm import Hang, Late, Pause
from support.sessions import QUICK, Bench

from swarmctl.events import PeerFailed, PeerSuspected
from swarmctl.recovery import FailureKind
from swarmctl.upstream.legs import SessionSettings
from swarmctl.upstream.suspicion import Pace

WATCHFUL: SessionSettings = replace(QUICK, step_timeout_s=1.5, suspect_after_s=0.05, ping_timeout_s=0.2)


def watchful(*texts: str) -> Bench:
    return Bench(*texts, settings=WATCHFUL)


def test_a_slow_server_costs_a_ping_and_no_failure() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench.step()
    bench["a"].will(Late(0.3))

    bench.step()

    assert bench.told("PeerSuspected", "PeerFailed") == ["PeerSuspected"]
    assert bench["a"].pings >= 1
    assert bench.route() == ["a=0:6"]
    (suspected,) = [event for event in bench.events if isinstance(event, PeerSuspected)]
    assert 40 <= suspected.silent_ms < 300


def test_a_paused_server_is_given_up_long_before_the_requests_own_limit() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench.step(3)
    bench.step()
    bench["a"].will(Pause)

    bench.step()
    bench.step()

    (failed,) = [event for event in bench.events if isinstance(event, PeerFailed)]
    assert failed.kind == FailureKind.SILENT.value
    assert "nor to a ping" in failed.reason
    assert failed.detect_ms < 1e3 * WATCHFUL.step_timeout_s
    assert bench.route() == ["b=0:6"]
    assert bench.told("PeerSuspected", "PeerFailed", "RecoveryDone") == ["PeerSuspected", "PeerFailed", "RecoveryDone"]


def test_a_server_that_hangs_behind_a_living_daemon_is_given_up_at_the_requests_limit() -> None:
    bench = watchful("a=0:6", "b=0:6")
    bench.step()
    bench["a"].will(Hang)

    bench.step()

    (failed,) = [event for event in bench.events if isinstance(event, PeerFailed)]
    assert failed.kind == FailureKind.SILENT.value
    assert "no answer within" in failed.reason
    assert bench["a"].pings > 1
    assert bench.route() == ["b=0:6"]


def test_a_server_that_is_usually_slow_is_not_suspected_for_it() -> None:
    bench = watchful("a=0:6")
    bench.step()
    for _ in range(3):
        bench["a"].will(Late(0.12))
        bench.step()
    bench.forget()
    bench["a"].will(Late(0.12))

    bench.step()

    assert bench.told("PeerSuspected") == []


@pytest.mark.parametrize(
    ("noted", "tokens", "patience_s"),
    [
        pytest.param([], 1, 5.0, id="nothing is known"),
        pytest.param([(1, 0.02)], 1, 0.5, id="never below the floor"),
        pytest.param([(1, 0.4)], 1, pytest.approx(1.2), id="three times as slow as lately"),
        pytest.param([(1, 0.4)], 60, 5.0, id="more tokens than ever"),
        pytest.param([(1, 0.4), (512, 4.0)], 60, pytest.approx(12.0), id="more tokens took so long"),
        pytest.param([(1, 0.1), (1, 0.4)], 1, pytest.approx(0.6), id="the mean follows"),
    ],
)
def test_patience(noted: list[tuple[int, float]], tokens: int, patience_s: object) -> None:
    pace = Pace(floor_s=0.5, unknown_s=5.0)
    for count, took_s in noted:
        pace.note(count, took_s)

    assert pace.patience_s(tokens) == patience_s
