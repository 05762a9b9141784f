"""Sessions that pause and age on servers that end such streams: the same server again, and no ban.

They run in a program of their own: the swarm is not the one of the other tests, and a process has one connection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.history import History, check
from support.swarm import NUM_BLOCKS, LiveSwarm, live_swarm

from swarmctl.events import PeerFailed, RouteChanged, decode

pytestmark = [pytest.mark.swarm, pytest.mark.own, pytest.mark.timeout(600)]

PROMPT = "The swarm keeps its blocks"
PAUSING_CLIENT = Path(__file__).with_name("pausing_client.py")
STOCK_CHAT = Path(__file__).with_name("stock_chat.py")


@pytest.fixture(scope="module")
def brief() -> Iterator[LiveSwarm]:
    """Server s ends a stream that is idle for four seconds or ten seconds old; t has all blocks too, and does not."""
    limits = {"s": "step_timeout: 4s, session_timeout: 10s"}
    with live_swarm("llama", {"s": "0:6", "t": "0:6"}, settings=limits, log=sys.stderr.write) as live:
        yield live


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the client said of a scenario."""

    history: History
    expected: tuple[int, ...]
    banned: tuple[str, ...]

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [(str(event.hop.node), event.kind) for event in self.history.of(PeerFailed)]


@pytest.fixture(scope="module")
def told(brief: LiveSwarm) -> dict[str, Told]:
    """All scenarios, by name."""
    brief.ready()
    done = brief.program(str(PAUSING_CLIENT), str(brief.site.spec.path), PROMPT, within_s=400)
    assert done.code == 0, done.err
    found = {}
    for said in map(json.loads, done.out.splitlines()):
        events = [decode(line) for line in said["events"]]
        history = History(about=said["scenario"], events=events, ids=(tuple(said["answer"]),))
        found[said["scenario"]] = Told(history=history, expected=tuple(said["expected"]), banned=tuple(said["banned"]))
    return found


def assert_undisturbed(one: Told) -> None:
    assert one.history.ids == (one.expected,), one.history.report()
    check(one.history, num_blocks=NUM_BLOCKS)


def test_server_that_ended_an_idle_stream_is_asked_again_and_not_banned(told: dict[str, Told]):
    idle = told["idle"]

    assert idle.failures == [("s", "expired")] * 2, idle.history.report()
    assert [route[0] for route in idle.history.routes] == ["s 0:6"]
    assert "s" not in idle.banned
    assert_undisturbed(idle)


@pytest.mark.parametrize("when", ["in a step", "in a pause"])
def test_server_that_ended_an_old_session_is_asked_again_and_not_banned(told: dict[str, Told], when: str):
    aged = told[f"aged {when}"]

    assert aged.failures == [("s", "expired")], aged.history.report()
    assert [route[0] for route in aged.history.routes] == ["s 0:6"]
    assert "s" not in aged.banned
    assert_undisturbed(aged)


def test_server_that_came_back_empty_in_a_pause_is_fed_again(told: dict[str, Told]):
    empty = told["empty"]

    assert empty.failures == [("s", "expired")], empty.history.report()
    assert [node for node, _, _ in empty.history.replays] == ["s"]
    assert "s" not in empty.banned
    assert_undisturbed(empty)


def test_server_that_died_in_a_pause_costs_no_more_than_a_refused_dial(told: dict[str, Told]):
    dead = told["dead"]

    # libp2p does not dial it when a ping in the pause has found that nobody listens there.
    assert dead.failures[0] == ("s", "expired"), dead.history.report()
    assert dead.failures[1:] in ([("s", "lost")], [("s", "undialled")]), dead.history.report()
    assert dead.history.of(PeerFailed)[1].detect_ms < 1_000
    assert dead.history.of(RouteChanged)[-1].now[0].node == "t"
    assert "s" in dead.banned
    assert_undisturbed(dead)


def test_stock_client_goes_wrong_after_a_failed_call_and_fails_after_a_pause(brief: LiveSwarm):
    """The negative control; s alone is left, so that petals cannot go to another server."""
    brief.ready("s")
    brief.command("down", "t", "--yes")

    done = brief.program(str(STOCK_CHAT), str(brief.site.spec.path), PROMPT, within_s=300)

    said = json.loads(done.out)
    undisturbed = said["undisturbed"]
    assert said["failed"].startswith("BrokenPipeError"), done.err
    assert (said["known"], said["position"]) == (4, 8), "its ids stay behind its servers' caches"
    assert said["next"] not in (undisturbed[4:8], undisturbed[8:12]), "and a token is fed that is not the last one"
    assert said["new_session"] is not None, "tokens to skip are left behind, more than the prompt has"
    assert "Broken input cache" in said["paused"]
