"""The router's pings: whom they reach, what they delay, and whom they leave alone."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import pytest
from petals.data_structures import ServerState
from support.fakedht import FakeDht
from support.fakeswarm import peer_id
from support.routers import LIMIT_S, read_again, route, routers_over, three_servers

from swarmctl.upstream import pings
from swarmctl.upstream.router import Router


@pytest.fixture
def dht() -> FakeDht:
    return three_servers()


@pytest.fixture
def router(dht: FakeDht) -> Iterator[Router]:
    """A router whose table has been read once, and whose pings are done."""
    with routers_over(dht) as make:
        router = make()
        read_again(router)
        yield router


def test_every_server_of_a_small_swarm_is_pinged_after_each_reading(dht: FakeDht, router: Router) -> None:
    dht.announce("d", "2:5", expires=100.0)
    dht.announce("stranger", "2:5", expires=100.0, state=ServerState.JOINING)

    read_again(router)

    assert dht.pinged == [["a", "b", "c"], ["a", "b", "c", "d"]]


def test_servers_of_a_large_swarm_are_pinged_in_turns(
    dht: FakeDht, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    dht.announce("d", "2:5", expires=100.0)
    dht.pinged.clear()
    monkeypatch.setattr(pings, "PING_AT_ONCE", 3)

    for _ in range(4):
        read_again(router)

    assert [len(names) for names in dht.pinged] == [3] * 4
    assert sorted(name for names in dht.pinged for name in names) == sorted("abcd" * 3)


def test_pings_that_are_not_answered_delay_no_table(dht: FakeDht, router: Router) -> None:
    slow = threading.Event()
    dht.hold_pings.append(slow)
    assert router.refresh(timeout_s=LIMIT_S)
    dht.announce("d", "0:6", expires=100.0)
    began = time.monotonic()

    assert router.refresh(timeout_s=LIMIT_S)

    assert time.monotonic() - began < LIMIT_S / 2
    assert router.record_of(peer_id("d")) is not None
    slow.set()


def test_a_server_that_does_not_answer_a_ping_is_far_away_until_it_announces_itself_again(
    dht: FakeDht, router: Router
) -> None:
    dht.deaf.add("a")
    read_again(router)
    assert router._pings.seconds(router.records())[peer_id("a")] == math.inf
    assert route(router) == "b=0:3 c=3:6"

    # Back, and the ping of this round is under way.
    slow = threading.Event()
    dht.hold_pings.append(slow)
    dht.announce("a", "0:3", expires=110.0, inference_rps=500.0)
    assert router.refresh(timeout_s=LIMIT_S)
    assert peer_id("a") not in router._pings.seconds(router.records())
    dht.forget("b")
    slow.set()

    read_again(router)
    assert router._pings.seconds(router.records())[peer_id("a")] == math.inf, "it has announced itself, and is deaf"


def test_a_server_that_does_not_answer_a_ping_is_dialled_again_when_it_has_announced_itself(
    dht: FakeDht, router: Router
) -> None:
    dht.deaf.add("a")
    read_again(router)
    dht.pinged.clear()
    read_again(router)
    dht.announce("a", "0:3", expires=110.0, inference_rps=500.0)
    read_again(router)
    assert dht.pinged == [["b", "c"], ["a", "b", "c"]]


def test_pings_that_fail_leave_the_router_as_it_was(dht: FakeDht, router: Router) -> None:
    def fails(_peers: object, **_options: object) -> None:
        raise ConnectionError("no libp2p")

    router.ping_aggregator.ping = fails

    read_again(router)

    assert route(router) == "a=0:3 c=3:6"
