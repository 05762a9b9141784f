"""The router: what it knows of the swarm and when, and whom it sends sessions to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from petals.data_structures import ServerState
from support.eventually import eventually
from support.fakedht import FakeDht
from support.fakeswarm import peer_id
from support.routers import LIMIT_S, NAMES, read_again, route, routers_over, three_servers

from swarmctl.blocks import BlockRange, NodeName, PeerId, parse_range
from swarmctl.recovery import FailureKind
from swarmctl.upstream import router as routers
from swarmctl.upstream.router import Router


@pytest.fixture
def dht() -> FakeDht:
    return three_servers()


@pytest.fixture
def make(dht: FakeDht) -> Iterator[Callable[..., Router]]:
    with routers_over(dht) as make:
        yield make


@pytest.fixture
def router(make: Callable[..., Router]) -> Router:
    """A router whose table has been read once, and whose pings are done."""
    router = make()
    read_again(router)
    return router


def petals_holders(router: Router) -> list[set[str]]:
    """Whom petals' own routing would choose from, block by block."""
    names = {peer_id(name): name for name in NAMES}
    spans = router.state.sequence_info.spans_containing_block
    return [{names[PeerId(span.peer_id.to_base58())] for span in holders} for holders in spans]


# --- the table --------------------------------------------------------------------------------------------------


def test_a_refresh_is_not_satisfied_by_a_reading_that_had_begun_before_it(dht: FakeDht, router: Router) -> None:
    old, new = threading.Event(), threading.Event()
    new.set()
    dht.hold_readings.extend([old, new])
    running = threading.Thread(target=router.refresh, kwargs={"timeout_s": LIMIT_S})
    running.start()
    eventually(lambda: _assert(dht.readings == 2), within_s=LIMIT_S)
    dht.announce("d", "0:6", expires=100.0)
    seen: list[bool] = []

    def refresh() -> None:
        router.refresh(timeout_s=LIMIT_S)
        seen.append(router.record_of(peer_id("d")) is not None)

    asking = threading.Thread(target=refresh)
    asking.start()
    eventually(lambda: _assert(router._thread.trigger.is_set()), within_s=LIMIT_S)
    old.set()
    running.join(LIMIT_S)
    asking.join(LIMIT_S)

    assert seen == [True]


def test_the_first_refresh_reads_once(dht: FakeDht, make: Callable[..., Router]) -> None:
    router = make()

    assert router.refresh(timeout_s=LIMIT_S)
    router.shutdown()

    assert dht.readings == 1


def test_a_refresh_that_fails_says_so_at_once_and_the_table_stays(dht: FakeDht, router: Router) -> None:
    dht.error = RuntimeError("no bootstrap peer answers")
    read_at, began = router._table.read_at, time.monotonic()

    assert not router.refresh(timeout_s=LIMIT_S)

    assert time.monotonic() - began < LIMIT_S / 2
    assert router._table.error == "no bootstrap peer answers"
    assert router._table.read_at == read_at, "it is as old as its records are"
    assert route(router) == "a=0:3 c=3:6"
    dht.error = None
    assert router.refresh(timeout_s=LIMIT_S)


def test_a_refresh_that_hangs_takes_no_longer_than_it_was_given(
    dht: FakeDht, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    dht.hold_readings.append(hanging)
    monkeypatch.setattr(routers, "_FRESH_TABLE_S", 0.05)
    began = time.monotonic()

    assert not router.refresh(timeout_s=0.05)
    assert route(router, fresh_s=0.0) == "a=0:3 c=3:6"

    assert time.monotonic() - began < LIMIT_S / 2
    hanging.set()


def test_a_reading_that_hangs_is_given_up_and_the_next_one_is_made(
    dht: FakeDht, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    dht.hold_readings.append(hanging)
    monkeypatch.setattr(routers, "_READ_S", 0.05)

    assert not router.refresh(timeout_s=LIMIT_S)
    assert router._table.error == "no answer from the DHT within 0.05 s"
    monkeypatch.undo()
    assert router.refresh(timeout_s=LIMIT_S)
    hanging.set()


def test_the_end_of_the_dhts_process_is_told_and_what_is_known_is_still_used(dht: FakeDht, router: Router) -> None:
    dht.alive = False

    assert not router.refresh(timeout_s=LIMIT_S)

    assert router._table.error == "the process of the DHT has ended"
    assert route(router) == "a=0:3 c=3:6"


def test_a_shutdown_waits_for_no_reading_that_hangs(
    dht: FakeDht, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    dht.hold_readings.append(hanging)
    router.refresh(timeout_s=0.05)
    monkeypatch.setattr(routers, "_STOP_S", 0.05)
    began = time.monotonic()

    router.shutdown()

    assert time.monotonic() - began < LIMIT_S / 2
    hanging.set()


def test_only_peers_of_the_roster_are_known(dht: FakeDht, make: Callable[..., Router]) -> None:
    dht.announce("stranger", "0:6", expires=100.0, inference_rps=9000.0)
    roster = {peer_id(name): NodeName(name) for name in "abc"}
    trusting, careful = make(), make(roster=roster)

    assert route(trusting) == "stranger=0:6"
    assert route(careful) == "a=0:3 c=3:6"


def test_a_part_of_the_model_is_routed_by_the_blocks_of_that_part(dht: FakeDht, router: Router) -> None:
    part = router[2:5]
    try:
        assert len(part) == 3
        assert route(part, BlockRange(0, 3)) == "a=0:1 c=1:3"
        assert petals_holders(part) == [{"a", "b"}, {"c"}, {"c"}]
        assert part.record_of(peer_id("c")).blocks == parse_range("1:3")  # type: ignore[union-attr]
    finally:
        part.shutdown()


def test_a_server_that_was_restarted_on_other_blocks_is_used_for_the_new_ones_only(
    dht: FakeDht, make: Callable[..., Router]
) -> None:
    dht.forget("c")
    dht.announce("a", "3:6", expires=110.0)
    router = make()

    assert route(router) == "b=0:3 a=3:6"
    assert petals_holders(router) == [{"b"}] * 3 + [{"a"}] * 3
    dht.forget("b")
    read_again(router)
    assert route(router) == "none 0:3"


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.SILENT, FailureKind.REFUSED, FailureKind.BROKEN])
def test_a_server_that_failed_is_out_of_both_tables_at_once_and_stays_out(
    dht: FakeDht, router: Router, kind: FailureKind
) -> None:
    router.report_failure(peer_id("a"), kind)

    assert route(router) == "b=0:3 c=3:6"
    assert petals_holders(router) == [{"b"}] * 3 + [{"c"}] * 3
    read_again(router)
    assert route(router) == "b=0:3 c=3:6"
    assert petals_holders(router) == [{"b"}] * 3 + [{"c"}] * 3


def test_the_only_server_of_a_block_is_used_again_although_it_failed(dht: FakeDht, router: Router) -> None:
    router.report_failure(peer_id("c"), FailureKind.LOST)

    assert route(router) == "a=0:3 c=3:6"
    assert route(router, lift_bans=False) == "none 3:6"
    read_again(router)
    assert petals_holders(router)[3:] == [{"c"}] * 3


@pytest.mark.parametrize("kind", [FailureKind.BUSY, FailureKind.SLOW])
def test_a_server_that_is_full_or_slow_is_passed_over_and_stays_in_petals_table(
    router: Router, kind: FailureKind
) -> None:
    router.report_failure(peer_id("a"), kind)

    assert route(router) == "b=0:3 c=3:6"
    assert petals_holders(router)[0] == {"a", "b"}
    router.report_success(peer_id("a"))
    assert route(router) == "a=0:3 c=3:6"


def test_who_has_waited_asks_a_slow_server_and_no_failed_one(router: Router) -> None:
    router.report_failure(peer_id("a"), FailureKind.SLOW)
    router.report_failure(peer_id("b"), FailureKind.LOST)

    assert route(router, lift_bans=False) == "a=0:3 c=3:6"


def test_an_expired_stream_changes_nothing(router: Router) -> None:
    router.report_failure(peer_id("a"), FailureKind.EXPIRED)

    assert route(router) == "a=0:3 c=3:6"
    assert petals_holders(router)[0] == {"a", "b"}


def test_a_lost_server_that_announces_itself_again_is_used_again(dht: FakeDht, router: Router) -> None:
    router.report_failure(peer_id("a"), FailureKind.LOST)
    dht.announce("a", "0:3", expires=105.0, inference_rps=500.0)
    read_again(router)
    assert route(router) == "b=0:3 c=3:6", "it may have written this before it died"

    dht.announce("a", "0:3", expires=110.0, inference_rps=500.0)
    assert router.refresh(timeout_s=LIMIT_S)

    assert route(router) == "a=0:3 c=3:6"


def test_a_silent_server_that_only_announces_itself_stays_banned_and_one_that_was_restarted_does_not(
    dht: FakeDht, router: Router
) -> None:
    router.report_failure(peer_id("a"), FailureKind.SILENT)
    for expires in (105.0, 110.0):
        dht.announce("a", "0:3", expires=expires, inference_rps=500.0)
        read_again(router)
    assert route(router) == "b=0:3 c=3:6"

    dht.announce("a", "0:3", expires=115.0, state=ServerState.JOINING)
    read_again(router)
    dht.announce("a", "0:3", expires=120.0, inference_rps=500.0)
    read_again(router)

    assert route(router) == "a=0:3 c=3:6"


def test_petals_own_reports_of_failures_are_heard(router: Router) -> None:
    router.on_request_failure(None)
    router.on_request_failure(next(iter(router.state.sequence_info.block_infos[0].servers)))

    assert len(petals_holders(router)[0]) == 1


# --- room -------------------------------------------------------------------------------------------------------


def test_a_server_has_room_for_half_of_what_it_announces_and_the_blocks_count(
    dht: FakeDht, make: Callable[..., Router]
) -> None:
    # A token has a key and a value, and three blocks need three times as much: room for 100 tokens.
    dht.announce("a", "0:3", expires=101.0, inference_rps=500.0, cache_tokens_left=2 * 3 * 100)
    router = make()

    assert route(router, cache_tokens=100) == "a=0:3 c=3:6"
    assert route(router, cache_tokens=101) == "b=0:3 c=3:6"


def _assert(condition: bool) -> None:
    assert condition
