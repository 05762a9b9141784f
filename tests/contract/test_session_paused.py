"""Sessions whose streams have ended between two steps: by healthy servers after a pause, by a death, by a lost host."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hivemind.p2p import PeerID
from support.fakeswarm import peer_id
from support.sessions import Bench

from swarmctl.blocks import PeerId
from swarmctl.events import PeerFailed, RecoveryDone, ReplayDone
from swarmctl.recovery import FailureKind
from swarmctl.upstream import failures
from swarmctl.upstream.legs import SessionSettings

TWO_EACH = ("a=0:3", "b=3:6", "x=0:3", "y=3:6")


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pause of these tests counts as a long one."""
    monkeypatch.setattr(failures, "IDLE_S", 0.0)


def end_streams(bench: Bench, *names: str) -> None:
    """These servers end what they have open, as after their `step_timeout`."""
    for name in names:
        for stream in list(bench[name].open_streams):
            stream.end()


def kinds(bench: Bench) -> list[tuple[str, str]]:
    return [(str(event.hop.node), event.kind) for event in bench.events if isinstance(event, PeerFailed)]


@pytest.mark.usefixtures("long_pause")
def test_a_server_that_ended_an_idle_stream_gets_a_new_one_even_if_another_is_nearer_now() -> None:
    bench = Bench(*TWO_EACH)
    bench.step(5)
    bench["x"].rps *= 100

    end_streams(bench, "a")
    bench.step()

    assert kinds(bench) == [("a", "expired")]
    assert bench.route() == ["a=0:3", "b=3:6"]
    assert (bench.seen("a"), bench.seen("x")) == (["0+5", "0+6"], [])
    assert bench.router.bans.banned(time.monotonic()) == frozenset()
    assert [event.failed for event in bench.events if isinstance(event, RecoveryDone)] == [()]
    bench.step(2)


@pytest.mark.usefixtures("long_pause")
def test_all_servers_may_have_ended_their_streams() -> None:
    bench = Bench(*TWO_EACH)
    bench.step(5, batch=2)
    bench.step(batch=2, order=[1, 1])

    end_streams(bench, "a", "b")
    bench.step(batch=2, order=[1, 0])

    assert kinds(bench) == [("a", "expired"), ("b", "expired")]
    assert bench.route() == ["a=0:3", "b=3:6"]
    assert [event.hop.node for event in bench.events if isinstance(event, ReplayDone)] == ["a", "b"]
    bench.step(2, batch=2)


@pytest.mark.usefixtures("long_pause")
def test_a_server_that_died_in_a_pause_is_dialled_once_and_then_another_takes_over() -> None:
    bench = Bench(*TWO_EACH)
    bench.step(5)

    bench["a"].kill()
    bench.step()

    assert kinds(bench) == [("a", "expired"), ("a", "lost")]
    assert bench["a"].dials == 2
    assert bench.route() == ["x=0:3", "b=3:6"]
    assert peer_id("a") in bench.router.bans.banned(time.monotonic())


@pytest.mark.usefixtures("long_pause")
def test_a_server_that_came_back_on_other_blocks_is_left_for_another() -> None:
    bench = Bench(*TWO_EACH)
    bench.step(5)

    end_streams(bench, "a")
    bench["a"].blocks = bench["b"].blocks
    bench.step()

    assert bench.router.failures == [("a", FailureKind.EXPIRED), ("a", FailureKind.REFUSED)]
    assert bench.route() == ["x=0:3", "b=3:6"]


@pytest.mark.usefixtures("long_pause")
def test_a_server_whose_host_is_gone_costs_the_connect_timeout_at_most() -> None:
    settings = SessionSettings(connect_timeout_s=0.3, suspect_after_s=60.0, recover_timeout_s=1.0)
    bench = Bench(*TWO_EACH, settings=settings)
    bench.step(5)
    dial = bench.router.call_binary_stream_handler

    async def nobody_answers(peer: PeerID, name: str) -> Any:
        if PeerId(peer.to_base58()) == peer_id("a"):
            await asyncio.Event().wait()
        return await dial(peer, name)

    bench.router.call_binary_stream_handler = nobody_answers  # type: ignore[method-assign]
    end_streams(bench, "a")
    began = time.monotonic()
    bench.step()

    assert time.monotonic() - began < 2.0
    assert kinds(bench) == [("a", "expired"), ("a", "silent")]
    assert bench.route() == ["x=0:3", "b=3:6"]


def test_a_stream_that_ended_without_a_pause_is_a_death() -> None:
    bench = Bench(*TWO_EACH)
    bench.step(5)

    end_streams(bench, "a")
    bench.step()

    assert kinds(bench) == [("a", "lost")]
    assert bench["a"].dials == 1
    assert bench.route() == ["x=0:3", "b=3:6"]
