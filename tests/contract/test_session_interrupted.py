"""Sessions whose steps are interrupted or refused: they stay where they were, and go on right."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from support.fakeswarm import HIDDEN, Die, FakeServer, Hang
from support.interrupts import PressAt, ctrl_c_interrupts, press_soon
from support.sessions import Bench

from swarmctl.errors import RequestInvalid
from swarmctl.events import Event, Hop
from swarmctl.recovery import FailureKind
from swarmctl.upstream.hooks import Hooks
from swarmctl.upstream.legs import SessionSettings

SPLIT = ("a=0:2", "b=2:4", "c=4:6", "d=2:3", "e=3:4", "x=0:2", "z=4:6")


# A session's own code.
OWN = ("upstream/session.py", "upstream/legs.py", "upstream/history.py")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    with ctrl_c_interrupts():
        yield


# --- interrupts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_ctrl_c_while_a_server_computes_leaves_the_session_where_it_was(place: str) -> None:
    armed = False

    def press(hop: Hop, _position: int, _replay: bool) -> None:
        if armed and hop.node == place:
            press_soon()

    bench = Bench(*SPLIT, hooks=Hooks(request=press), settings=SessionSettings(step_timeout_s=30))
    bench.step(5, batch=2)
    bench.forget()
    armed = True
    bench[place].will(Hang)

    with pytest.raises(KeyboardInterrupt):
        bench.session.step(bench.inputs(3, batch=2), None, torch.tensor([1, 1]))

    assert bench.session.position == 5
    assert bench.router.failures == []
    untouched = [name for name in "bc" if name > place]
    assert streams(bench) == len(untouched)
    armed = False
    bench.step(2, batch=2, order=[1, 0])
    bench.step(batch=2, order=[0, 0])
    assert [bench.seen(name) for name in untouched] == [["5+2", "7+1"]] * len(untouched)


def test_ctrl_c_at_any_line_of_a_step_that_recovers_leaves_the_session_where_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    interrupted = 0
    for line in range(0, 10_000, 17):
        bench = Bench(*SPLIT, settings=SessionSettings(replay_chunk_tokens=4))
        bench.step(3, batch=2)
        bench.step(batch=2, order=[0, 0])
        bench["b"].will(Die)
        inputs = bench.inputs(batch=2)
        tracing = sys.gettrace()
        sys.settrace(PressAt(line, *OWN))
        try:
            bench.session.step(inputs, None, torch.tensor([1, 0]))
            break
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracing)
        assert bench.session.position == 4
        bench.step(2, batch=2, order=[1, 0])
        bench.step(batch=2, order=[1, 1])
    assert interrupted > 30
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize(
    "moment",
    ["PeerFailed", "RouteChanged", "ReplayStarted", "ReplayDone", "RecoveryDone", "StepDone"],
)
def test_a_sink_that_fails_costs_the_step_and_no_answer_after_it(moment: str) -> None:
    failing = False

    def sink(event: Event) -> None:
        if failing and type(event).__name__ == moment:
            raise BrokenPipeError("nobody reads")

    bench = Bench(*SPLIT, sink=sink)
    bench.step(3)
    # The server lives on, so that it could be sent a step that its cache does not begin with.
    bench["b"].will(RuntimeError("no"))
    failing = True

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        bench.session.step(bench.inputs(2))

    failing = False
    assert bench.session.position == 3
    bench.step(2)
    bench.step()


def test_a_drill_that_fails_is_raised_and_no_server_is_blamed() -> None:
    failing = False

    def hook(_hop: Hop, _position: int, _replay: bool) -> None:
        if failing:
            raise ConnectionError("the host of the node does not answer")

    bench = Bench(*SPLIT, hooks=Hooks(request=hook))
    bench.step(3)
    failing = True

    with pytest.raises(ConnectionError, match="host of the node"):
        bench.session.step(bench.inputs())

    failing = False
    assert bench.router.failures == []
    bench.step(2)


def test_the_hook_is_told_of_every_request_and_which_are_replays() -> None:
    told: list[tuple[str, int, bool]] = []
    bench = Bench(
        *SPLIT,
        hooks=Hooks(request=lambda hop, position, replay: told.append((str(hop.node), position, replay))),
        settings=SessionSettings(replay_chunk_tokens=3),
    )
    bench.step(3)
    told.clear()
    bench["b"].will(Die)

    bench.step(2)

    replays = [(name, position, True) for name in "de" for position in (0, 3)]
    assert told == [("a", 3, False), ("b", 3, False), *replays, ("c", 3, False)]


# --- refusals ---------------------------------------------------------------------------------------------------


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("inputs", "prompts", "order", "says"),
    [
        (ones(3, 1, HIDDEN), None, None, "opened for a batch of 2, this step has 3"),
        (ones(2, 1, HIDDEN + 1), None, None, "hidden size of 2, this step has 3"),
        (ones(2, 0, HIDDEN), None, None, r"one token at least, got \[2, 0, 2\]"),
        (ones(2, HIDDEN), None, None, r"got \[2, 2\]"),
        (ones(2, 16, HIDDEN), None, None, "opened for 20 tokens; 5 are cached and 16 more do not fit"),
        (ones(2, 1, HIDDEN), None, torch.tensor([0]), "hypo_ids has 1 entries for a batch of 2"),
        (ones(2, 1, HIDDEN), None, torch.tensor([0, 2]), "numbers of sequences, 0 to 1"),
        (ones(2, 1, HIDDEN), None, torch.tensor([0, -1]), "numbers of sequences, 0 to 1"),
        (ones(2, 1, HIDDEN), None, torch.tensor([0.0, 1.0]), "must be int64"),
        (ones(2, 1, HIDDEN), ones(6, 1, 1, HIDDEN), None, "come with the first step; the session is at position 5"),
    ],
)
def test_a_step_that_does_not_fit_the_session_is_refused_and_asks_nobody(
    inputs: torch.Tensor, prompts: torch.Tensor | None, order: torch.Tensor | None, says: str
) -> None:
    bench = Bench(*SPLIT, max_length=20)
    bench.step(5, batch=2)
    bench.forget()

    with pytest.raises(RequestInvalid, match=says):
        bench.session.step(inputs, prompts, order)

    assert not any(server.received for server in bench.servers.values())
    bench.step(15, batch=2, order=[1, 0])


@pytest.mark.parametrize(
    "prompts", [ones(5, 1, 2, HIDDEN), ones(6, 3, 2, HIDDEN), ones(6, 1, 2, HIDDEN + 1), ones(6, 2, HIDDEN)]
)
def test_deep_prompts_of_the_wrong_shape_are_refused(prompts: torch.Tensor) -> None:
    bench = Bench(*SPLIT)

    with pytest.raises(RequestInvalid, match=r"deep prompts take \[6, 2 or 1, prefix, 2\]"):
        bench.session.step(ones(2, 4, HIDDEN), prompts)


def test_deep_prompts_longer_than_the_first_step_are_refused() -> None:
    with pytest.raises(RequestInvalid, match="of 5 positions do not fit into a first step of 4 tokens"):
        Bench(*SPLIT).session.step(ones(1, 4, HIDDEN), ones(6, 1, 5, HIDDEN))


def test_a_session_longer_than_the_servers_allow_is_refused_at_once_and_nobody_is_banned() -> None:
    bench = Bench(*SPLIT, max_length=64)
    bench["b"].max_length = 32

    with pytest.raises(RequestInvalid, match="longer than the servers allow") as caught:
        bench.session.step(bench.inputs(3))

    assert "max = 32" in caught.value.reasons[0]
    assert bench.router.failures == []
    bench["b"].max_length = 64
    bench.step(3)


def test_a_server_that_takes_fewer_tokens_gets_smaller_requests_on_a_fresh_stream() -> None:
    bench = Bench("a=0:6")
    bench["a"].max_batch_size = 11

    bench.step(16, batch=2)
    bench.step(batch=2)

    assert bench.seen("a") == ["0+16", "0+8", "0+4", "4+4", "8+4", "12+4", "16+1"]
    assert bench.router.failures == []


def test_a_live_server_that_takes_fewer_tokens_is_fed_anew_in_smaller_requests() -> None:
    bench = Bench("a=0:3", "b=3:6")
    bench.step(3)
    bench["a"].max_batch_size = 4

    bench.step(9)

    assert bench.seen("a") == ["0+3", "3+9", "0+4", "4+4", "8+4"]
    assert bench.seen("b") == ["0+3", "3+9"]
    assert bench.router.failures == [("a", FailureKind.EXPIRED)]
    bench.step()


def test_a_replay_that_is_refused_in_the_middle_begins_again_on_another_stream() -> None:
    bench = Bench(*SPLIT, settings=SessionSettings(replay_chunk_tokens=4))
    bench.step(7)
    bench["a"].will(Die)
    bench["x"].will(None, RuntimeError("Task size greater than max_batch_size (3), it can't be processed"))

    bench.step()

    assert bench.seen("x") == ["0+4", "0+2", "2+2", "4+2", "6+2"]
    assert bench.router.failures == [("a", FailureKind.LOST)]


def test_a_batch_that_no_request_can_carry_is_refused() -> None:
    bench = Bench("a=0:6")
    bench["a"].max_batch_size = 2

    with pytest.raises(RequestInvalid, match="3 x 1 positions are more than a server takes in one request"):
        bench.session.step(bench.inputs(2, batch=3))


def test_deep_prompts_that_no_request_can_carry_are_refused() -> None:
    bench = Bench("a=0:6")
    bench["a"].max_batch_size = 4

    with pytest.raises(RequestInvalid, match="1 x 5 positions are more"):
        bench.session.step(bench.inputs(8), ones(6, 1, 5, HIDDEN))


# --- what else a caller may do ----------------------------------------------------------------------------------


def test_a_caller_may_use_its_buffer_again() -> None:
    bench = Bench(*SPLIT)
    buffer = torch.empty(1, 3, HIDDEN, dtype=torch.float64)
    for _ in range(2):
        buffer.copy_(bench.inputs(3))
        assert torch.equal(bench.session.step(buffer), bench.reference.step(buffer.clone()))
        buffer.zero_()
    bench["a"].will(Die)

    bench.step()


def test_answers_come_in_the_dtype_of_the_inputs_whatever_the_servers_compute_in() -> None:
    bench = Bench(*SPLIT)
    bench.router.dtype = "float64"
    inputs = bench.inputs(3).float()

    answer = bench.session.step(inputs)

    assert answer.dtype == torch.float32
    assert torch.equal(answer, bench.reference.step(inputs).float())


def test_a_session_that_is_set_back_goes_on_from_there() -> None:
    bench = Bench(*SPLIT)
    bench.step(5, batch=2)
    bench.step(2, batch=2, order=[1, 1])

    bench.session.position = 4

    bench.reference.cut(4)
    bench.step(3, batch=2, order=[1, 0])
    bench["c"].will(Die)
    bench.step(batch=2)


def test_a_session_that_is_set_back_to_its_beginning_may_have_another_batch() -> None:
    bench = Bench(*SPLIT)
    bench.step(5, batch=2)

    bench.session.position = 0

    bench.reference.cut(0)
    bench.step(3, batch=3)


def test_closing_ends_every_stream_and_may_be_done_twice() -> None:
    bench = Bench(*SPLIT)
    bench.step(3)
    assert streams(bench) == 3

    bench.session.close()
    bench.session.close()

    assert streams(bench) == 0
    with pytest.raises(RequestInvalid, match="the session is closed"):
        bench.session.step(bench.inputs())


def test_leaving_the_session_closes_it_also_by_an_error() -> None:
    bench = Bench(*SPLIT)

    bench["a"].max_length = 10

    with pytest.raises(RequestInvalid), bench.session:
        bench.step(3)

    assert streams(bench) == 0


def test_closing_waits_for_no_server() -> None:
    bench = Bench(*SPLIT, settings=SessionSettings(step_timeout_s=0.05, recover_timeout_s=0.05))
    bench.step(3)
    for server in bench.servers.values():
        server.will(*[Hang] * 3)
    began = time.monotonic()

    bench.session.close()

    assert time.monotonic() - began < 1.0
    assert streams(bench) == 0


def streams(bench: Bench) -> int:
    servers: list[FakeServer] = list(bench.servers.values())
    return sum(len(server.open_streams) for server in servers)
