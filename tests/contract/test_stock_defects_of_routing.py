"""What petals' own router does: each test is a defect that ours must not have; see `test_stock_defects`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hivemind.proto import runtime_pb2
from petals.client.config import ClientConfig
from support.eventually import eventually
from support.fakeswarm import PREFIX
from support.stockswarm import StockBench, stock_benches

from swarmctl.blocks import BlockRange

LIMIT_S = 10.0


@pytest.fixture
def stock() -> Iterator[Callable[..., StockBench]]:
    with stock_benches() as make:
        yield make


# --- D7, D8: who failed is asked again --------------------------------------------------------------------------


def test_a_dead_server_is_chosen_again_and_again_although_another_has_its_blocks(
    stock: Callable[..., StockBench],
) -> None:
    bench = stock("a=0:3", "b=3:6", "y=3:6", max_retries=6)
    bench.step(5)
    bench["b"].kill()

    with pytest.raises(Exception, match="connection refused"):
        bench.step()

    # Banned once, for the stream that ended; that it cannot be dialled is charged to nobody.
    assert bench.banned() == {"b"}
    assert (bench["b"].dials, bench["y"].dials) == (6, 0)


def test_a_server_that_cannot_be_dialled_is_never_blamed_and_the_opened_streams_are_thrown_away(
    stock: Callable[..., StockBench],
) -> None:
    bench = stock("a=0:3", "b=3:6", "y=3:6", max_retries=4)
    bench["b"].alive = False

    with pytest.raises(Exception, match="connection refused"):
        bench.step(5)

    assert bench.banned() == set()
    assert (bench["a"].dials, bench["b"].dials, bench["y"].dials) == (4, 4, 0)


# --- D16: one server speaks for all -----------------------------------------------------------------------------


def test_one_server_decides_for_all_in_what_form_they_are_sent_numbers(stock: Callable[..., StockBench]) -> None:
    exact = stock("a=0:3", "b=3:6")
    assert exact.step(40)
    assert exact.p2p.asked_for_info == ["a"]

    coarse = stock("a=0:3", "b=3:6", compressions={"a": runtime_pb2.FLOAT16})

    # b asked for nothing of the kind, and what it is sent has numbers beyond half precision.
    assert not coarse.step(40)
    assert coarse.p2p.asked_for_info == ["a"]


# --- D17: the refresh -------------------------------------------------------------------------------------------


def settled(bench: StockBench) -> int:
    """How often the DHT was read, when the last reading is over: at its start, petals reads once or twice."""

    def look() -> int:
        assert bench.refresh.idle
        return bench.dht.readings

    return eventually(look, within_s=LIMIT_S)


def waiting(bench: StockBench) -> threading.Thread:
    """A thread in `update(wait=True)`, which has asked for its refresh."""
    thread = threading.Thread(target=bench.manager.update, kwargs={"wait": True}, daemon=True)
    thread.start()
    return thread


def test_who_waits_for_a_refresh_that_fails_waits_until_one_succeeds(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6")
    bench.step(3)
    readings = settled(bench)
    bench.dht.error = RuntimeError("no bootstrap peer answers")
    thread = waiting(bench)
    eventually(lambda: _assert(bench.dht.readings == readings + 1), within_s=LIMIT_S)

    thread.join(0.2)
    assert thread.is_alive(), "it would wait for the next period, of an hour here"

    bench.dht.error = None
    bench.manager._thread.trigger.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_who_waits_for_a_refresh_is_given_what_an_older_one_has_read(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6")
    bench.step(3)
    readings = settled(bench)
    old, new = threading.Event(), threading.Event()
    bench.dht.hold_readings.extend([old, new])
    bench.manager.update(wait=False)
    eventually(lambda: _assert(bench.dht.readings == readings + 1), within_s=LIMIT_S)

    bench.dht.announce("y", "0:6", expires=1e12)
    thread = waiting(bench)
    eventually(lambda: _assert(bench.manager._thread.trigger.is_set()), within_s=LIMIT_S)
    old.set()
    thread.join(LIMIT_S)

    assert not thread.is_alive()
    assert len(bench.manager.state.sequence_info.block_infos[0].servers) == 1
    new.set()


def test_servers_of_the_first_block_alone_are_not_pinged(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:1", "y=0:1", "b=1:5", "c=5:6")

    bench.step(3)
    settled(bench)

    assert {tuple(names) for names in bench.dht.pinged} == {("b", "c")}


def test_three_servers_of_many_are_pinged_in_a_period_of_a_minute(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6", "b=0:6", "c=0:6", "d=0:6", "e=0:6", "f=0:6", "g=0:6", "h=0:6")

    bench.step(3)

    settled(bench)
    assert all(len(names) <= 6 for names in bench.dht.pinged), "three of the middle's and three of the end's"
    assert (ClientConfig().max_pinged, ClientConfig().update_period) == (3, 60)


# --- D19: room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_room_is_judged_as_if_every_session_had_one_sequence(stock: Callable[..., StockBench], batch: int) -> None:
    # Room for one sequence of max_length 64 in six blocks, keys and values.
    bench = stock("a=0:6", "y=0:6")
    bench.dht.announce("a", "0:6", expires=2e12, inference_rps=900.0, cache_tokens_left=2 * 6 * 64)

    bench.step(3, batch=batch)

    assert bench.route() == ["a=0:6"]


# --- D28: a ghost span ------------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_on_other_blocks_is_sent_those_it_had_before(
    stock: Callable[..., StockBench],
) -> None:
    bench = stock("a=3:6", max_retries=1)
    bench.dht.announce("a", "0:3", expires=2e12)
    bench["a"].blocks = BlockRange(0, 3)

    with pytest.raises(Exception, match=f"Remote peer does not serve {PREFIX}.3"):
        bench.step(3)

    assert bench.route() == ["a=0:6"]
    assert bench.banned() == {"a"}


def _assert(condition: bool) -> None:
    assert condition
