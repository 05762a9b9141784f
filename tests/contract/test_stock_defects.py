"""What petals' own session does when servers fail: each test is a defect that ours must not have.

They stand for the reasons in `docs/recovery.md`. One that fails says that the installed petals has mended it; then
see what of ours is not needed any more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from petals.client.config import ClientConfig
from petals.client.remote_generation import _skipped_tokens
from support.fakeswarm import HIDDEN, Die
from support.stockswarm import JoinedBytes, OneLineMended, StockBench, stock_benches
from support.toymodel import PAD, STOP, LocalModel, RemoteModel

HALVES = ("a=0:3", "b=3:6", "y=3:6")
MIDDLE = ("a=0:2", "b=2:4", "c=4:6", "y=2:4")


@pytest.fixture
def stock() -> Iterator[Callable[..., StockBench]]:
    with stock_benches() as make:
        yield make


# --- D1: the history of the dead server, at position 0 ----------------------------------------------------------


@pytest.mark.parametrize("lost", ["killed", "ended by a healthy server"])
def test_a_server_that_is_lost_after_the_first_step_is_never_replaced(
    stock: Callable[..., StockBench], lost: str
) -> None:
    bench = stock(*HALVES)
    assert bench.step(5)
    if lost == "killed":
        bench.gone("b")
    else:
        bench["b"].open_streams[0].end()

    with pytest.raises(AssertionError, match="Broken input cache"):
        bench.step()

    # Whoever was to take over was never asked, and is banned for it.
    (heir,) = {"b", "y"} & {hop.split("=")[0] for hop in bench.route()}
    assert heir in bench.banned()
    assert heir == ("y" if lost == "killed" else "b")
    assert bench["y"].received == []


def test_a_server_that_is_lost_in_the_first_step_is_replaced(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:3", "b=3:6")
    bench["b"].will(RuntimeError("no"))

    assert bench.step(5)
    assert bench.step()


# --- D2 to D5: what is wrong behind the assertion ---------------------------------------------------------------


def test_a_live_server_is_sent_the_whole_prefix_again_as_if_it_were_new(stock: Callable[..., StockBench]) -> None:
    bench = stock(*MIDDLE, session=OneLineMended)
    assert bench.step(5)
    bench.gone("b")

    right = [bench.step(), bench.step()]

    assert bench.seen("y") == ["0+6", "6+1"]
    assert bench.seen("c") == ["0+5", "5+6", "11+1"]
    assert right == [False, False], "and nobody says a word"


def test_the_last_span_is_the_only_one_whose_loss_the_one_line_mends(stock: Callable[..., StockBench]) -> None:
    bench = stock(*HALVES, session=OneLineMended)
    assert bench.step(5)
    bench.gone("b")

    assert [bench.step(), bench.step()] == [True, True]


def test_beams_are_rebuilt_in_the_order_in_which_they_were_sent(stock: Callable[..., StockBench]) -> None:
    bench = stock(*HALVES, session=OneLineMended)
    assert bench.step(5, batch=2)
    assert bench.step(batch=2, order=[1, 1])
    bench.gone("b")

    right = bench.step(batch=2, order=[1, 0])

    assert not right
    assert [request.order for request in bench["y"].received] == [(1, 0)], "an order for a cache that is empty"


def test_deep_prompts_do_not_travel_with_a_replay(stock: Callable[..., StockBench]) -> None:
    prompts = torch.ones(6, 1, 2, HIDDEN, dtype=torch.float64)
    bench = stock(*HALVES, session=OneLineMended)
    assert bench.step(5, prompts=prompts)
    bench.gone("b")

    right = bench.step()

    assert not right
    assert [request.prompts for request in bench["y"].received] == [False]


def test_a_history_longer_than_one_request_may_be_is_sent_in_one_request(stock: Callable[..., StockBench]) -> None:
    bench = stock(*HALVES, session=OneLineMended)
    for server in bench.servers.values():
        server.max_batch_size = 8
    assert all(bench.step() for _ in range(9))
    bench.gone("b")

    with pytest.raises(Exception, match="Task size greater than max_batch_size"):
        bench.step()

    assert set(bench.seen("y")) == {"0+10"}


# --- D6: the end of a stream ------------------------------------------------------------------------------------


def test_a_death_in_mid_step_is_noticed_when_the_request_times_out(stock: Callable[..., StockBench]) -> None:
    noticed: list[str] = []
    bench = stock("a=0:6", max_retries=1)
    assert bench.step(5)
    bench["a"].will(Die)
    bench.config.request_timeout = 0.3
    bench.manager.on_request_failure = lambda _peer: noticed.append("failed")

    with pytest.raises(asyncio.TimeoutError):
        bench.step()

    assert noticed == ["failed"]
    assert ClientConfig().request_timeout == 180


# --- D9, D10: after an error ------------------------------------------------------------------------------------


def test_a_step_that_failed_on_the_second_server_is_on_the_first_one_twice(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:3", "b=3:6")
    bench["b"].will(*[RuntimeError("no")] * 3)
    inputs = bench.inputs(5)
    with pytest.raises(Exception, match="no"), torch.inference_mode():
        bench.session.step(inputs)
    assert bench.session.position == 0

    bench.reference.made = 0
    assert bench.step(5), "the second server is given what it was to get before"
    right = bench.step()

    assert bench.seen("a") == ["0+5", "5+5", "10+1"]
    assert bench.seen("b") == ["0+5", "5+1"]
    assert not right


def test_a_step_that_was_interrupted_is_on_the_first_server_twice(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:3", "b=3:6")
    assert bench.step(5)
    successes = bench.manager.on_request_success

    def press_ctrl_c(_peer: object) -> None:
        bench.manager.on_request_success = successes
        raise KeyboardInterrupt

    bench.manager.on_request_success = press_ctrl_c
    with pytest.raises(KeyboardInterrupt), torch.inference_mode():
        bench.session.step(bench.inputs())
    bench.reference.made -= HIDDEN

    right = bench.step()

    assert bench.seen("a") == ["0+5", "5+1", "6+1"]
    assert not right


class Stops(Exception):
    """The caller's own."""


class Halting:
    """A streamer that fails at its n-th token."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def put(self, _value: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise Stops

    def end(self) -> None:
        """Never reached."""


def test_generate_after_a_generate_that_failed_feeds_a_stale_token(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:3", num_blocks=3)
    model = RemoteModel(bench.manager)
    chosen = {"do_sample": False, "pad_token_id": PAD, "eos_token_id": STOP, "session": bench.session}
    expected = LocalModel(3).new_ids([[1, 0, 3]], max_new_tokens=10, do_sample=False)[0]
    with torch.inference_mode():
        first = model.generate(torch.tensor([[1, 0, 3]]), max_new_tokens=3, **chosen)[0, 3:].tolist()
        with pytest.raises(Stops):
            # The prompt is the first thing that a streamer gets.
            model.generate(None, max_new_tokens=4, streamer=Halting(3), **chosen)
        rest = model.generate(None, max_new_tokens=4, **chosen)[0].tolist()

    assert first == expected[:3]
    # Two tokens came, the second of them from a step whose input was the first; neither is known any more.
    assert bench.session.output_ids[0, 3:].tolist() == [*first, *rest]
    assert rest != expected[3:7]
    assert rest != expected[5:9]


def test_a_generate_that_is_refused_cuts_the_prompt_of_the_next_one(stock: Callable[..., StockBench]) -> None:
    bench, other = stock("a=0:3", num_blocks=3), stock("a=0:3", num_blocks=3)
    chosen = {"do_sample": False, "pad_token_id": PAD, "eos_token_id": STOP}
    prompt = torch.tensor([[1, 0, 3]])
    try:
        with torch.inference_mode():
            RemoteModel(bench.manager).generate(prompt, max_new_tokens=2, session=bench.session, **chosen)
            with pytest.raises(ValueError, match="not used by the model"):
                RemoteModel(bench.manager).generate(
                    None, max_new_tokens=2, session=bench.session, no_such_setting=1, **chosen
                )
            RemoteModel(other.manager).generate(
                torch.tensor([[1, 0, 3, 5, 2, 6]]), max_new_tokens=1, session=other.session, **chosen
            )
    finally:
        _skipped_tokens.set(0)

    assert other.seen("a") == ["0+2"], "of six"


# --- D11: the cost of the history -------------------------------------------------------------------------------


def test_each_step_copies_the_whole_history(stock: Callable[..., StockBench]) -> None:
    written = []
    for steps in (20, 40):
        bench = stock("a=0:6", max_length=100)
        bench.step()
        with JoinedBytes() as joined:
            for _ in range(steps):
                bench.session.step(bench.inputs())
        written.append(joined.written)

    # Lengths 2 to n + 1, each written anew.
    assert written == [8 * HIDDEN * sum(range(2, steps + 2)) for steps in (20, 40)]


# --- D13, D25, D27: everything is retried, and blamed on the server ---------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Cannot allocate KV cache for 99 tokens, max = 64", id="the caller's own mistake"),
        pytest.param("Could not allocate 4096 bytes immediately: out of memory", id="a full cache"),
    ],
)
def test_whatever_a_server_says_is_retried_and_the_server_is_banned(
    stock: Callable[..., StockBench], text: str
) -> None:
    bench = stock("a=0:6", max_retries=7)
    bench["a"].will(*[RuntimeError(text)] * 7)

    with pytest.raises(Exception, match=text[:12]):
        bench.step(3)

    assert bench["a"].dials == 7
    assert bench.banned() == {"a"}
    assert ClientConfig().max_retries is None, "seven is this test's choice: there is no end"


def test_no_client_tells_a_server_how_long_to_wait_for_room(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6")

    bench.step(3)

    assert "max_length" in bench["a"].received[0].metadata
    assert "alloc_timeout" not in bench["a"].received[0].metadata


def test_another_batch_size_costs_a_healthy_server_and_the_session(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6")
    assert bench.step(3, batch=2)
    told: list[str] = []
    bench.manager.get_retry_delay = lambda _attempt: told.append(str(sys.exc_info()[1])[:24]) or 0

    with pytest.raises(AssertionError, match="Broken input cache"), torch.inference_mode():
        bench.session.step(bench.inputs(batch=3))

    assert told == ["Sizes of tensors must ma", "Broken input cache: span"]
    assert bench.banned() == {"a"}
    with pytest.raises(AssertionError, match="Broken input cache"):
        bench.step(batch=2)


# --- D14: server-to-server push ---------------------------------------------------------------------------------


def test_the_request_that_a_server_looks_at_never_names_the_next_server(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:3", "b=3:6", use_server_to_server=True)

    bench.step(3)
    bench.step()

    first, second = (request.metadata for request in bench["a"].received)
    # The server pushes by the metadata of a stream's first request; see test_stock_defects_of_servers.
    assert "next_servers" not in first
    assert [hop[2:] for hop in second["next_servers"]] == [(3, 6)]


# --- D15: closing -----------------------------------------------------------------------------------------------


def test_closing_waits_for_the_server_without_a_limit(stock: Callable[..., StockBench]) -> None:
    bench = stock("a=0:6")
    bench.step(3)
    (one,) = bench.session._server_sessions
    bench["a"].open_streams[0]._take_requests = lambda: None  # stopped: it reads nothing

    async def within(limit_s: float) -> None:
        await asyncio.wait_for(one._aclose_stream(), limit_s)

    with pytest.raises(asyncio.TimeoutError):
        RemoteExpertWorker.run_coroutine(within(0.2))
    assert one.closed is False


def test_a_stream_that_was_opened_and_not_used_stays_open(stock: Callable[..., StockBench]) -> None:
    bench = stock(*HALVES)
    bench.step(5)
    bench.gone("b")
    with pytest.raises(AssertionError):
        bench.step()

    bench.session.close()

    assert not bench["a"].open_streams
    assert bench["y"].open_streams
    assert bench["y"].received == []
