"""Whether a server is still a member of its swarm: what it asks the DHT and the peers that it joined through."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from swarmctl.upstream.health import Trouble
from swarmctl.upstream.membership import Membership, Place


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class PretendDHT:
    """Answers what it is told to, when it is told to."""

    alive: bool = True
    asked: list[Future[Place]] = field(default_factory=list)

    def is_alive(self) -> bool:
        return self.alive

    def run_coroutine(self, _coroutine: Any, *, return_future: bool) -> Future[Place]:
        assert return_future
        self.asked.append(Future())
        return self.asked[-1]


@dataclass
class Announced:
    """What `Membership` sees of a container: petals' announcer."""

    alive: bool = True

    def __post_init__(self) -> None:
        self.trigger = threading.Event()
        self.dht_announcer = SimpleNamespace(is_alive=lambda: self.alive, trigger=self.trigger)


class Member:
    def __init__(self) -> None:
        self.clock, self.dht, self.container = Clock(), PretendDHT(), Announced()
        self.membership = Membership(
            self.dht, ["/ip4/192.0.2.1/tcp/1/p2p/Qm"], uid="m.0", every_s=10.0, clock=self.clock
        )

    def look(self, after_s: float = 0.0) -> Trouble | None:
        self.clock.now += after_s
        return self.membership.look(self.container)

    def answer(self, *, there: bool = True, recorded: bool | None = True) -> Trouble | None:
        """What is seen when the question that is due is answered so."""
        self.look(10.0)
        self.dht.asked[-1].set_result(Place(answered=(there,), recorded=recorded))
        return self.look(1.0)


def test_the_dht_is_asked_once_in_an_update_period() -> None:
    member = Member()
    assert member.answer() is None
    asked = len(member.dht.asked)
    for _ in range(5):
        member.look(1.9)
    assert len(member.dht.asked) == asked
    member.look(1.0)
    assert len(member.dht.asked) == asked + 1
    assert member.membership.announced is True
    assert not member.container.trigger.is_set()


def test_a_record_that_is_missing_for_longer_than_an_update_period_is_announced_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = Member()
    first = member.answer(recorded=False)
    assert not member.container.trigger.is_set()

    second = member.answer(recorded=False)

    assert member.container.trigger.is_set()
    assert "announcing it again" in caplog.text
    assert first is not None
    assert second is not None
    assert not first.fatal
    assert second.reason == "the DHT has no record of it, for 11 s"
    assert member.answer(recorded=True) is None


def test_that_the_dht_could_not_be_asked_says_nothing_of_the_record() -> None:
    member = Member()
    member.answer()

    assert member.answer(recorded=None) is None
    assert member.answer(recorded=None) is None
    assert not member.container.trigger.is_set()


def test_a_bootstrap_peer_that_comes_back_hears_of_the_server_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="swarmctl")
    member = Member()
    member.answer()
    member.answer(there=False)
    assert not member.container.trigger.is_set()

    member.answer()

    assert member.container.trigger.is_set()
    assert "/ip4/192.0.2.1/tcp/1/p2p/Qm answers again" in caplog.text


def test_what_keeps_a_record_from_being_renewed_is_fatal() -> None:
    mute, dead, stuck = Member(), Member(), Member()
    mute.container.alive = False
    dead.dht.alive = False
    stuck.look()

    troubles = [mute.look(), dead.look(), stuck.look(121.0)]

    assert [trouble is not None and trouble.fatal for trouble in troubles] == [True] * 3
