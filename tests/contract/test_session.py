"""Sessions that lose servers: the answers are those of an undisturbed run."""

from __future__ import annotations

import inspect
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakeswarm import HIDDEN, Die, Distort, End, FakeRouter, Hang
from support.sessions import Bench

from swarmctl.errors import RecoveryFailed
from swarmctl.events import PeerFailed, RecoveryDone, ReplayStarted, StepDone, WaitingForPeers
from swarmctl.recovery import FailureKind
from swarmctl.upstream.legs import SessionSettings
from swarmctl.upstream.router import Router

# a, b and c make the first route; the others stand by.
THREE = ("a=0:2", "b=2:4", "c=4:6", "x=0:2", "y=2:4", "z=4:6")
SPLIT = ("a=0:2", "b=2:4", "c=4:6", "d=2:3", "e=3:4", "f=3:4", "g=2:3")


@pytest.mark.parametrize("batch", [1, 3])
def test_an_undisturbed_session_sends_every_server_only_the_new_tokens(batch: int) -> None:
    bench = Bench(*THREE)

    for tokens in (5, 1, 3, 1):
        bench.step(tokens, batch=batch)

    assert bench.route() == ["a=0:2", "b=2:4", "c=4:6"]
    for name in "abc":
        assert bench.seen(name) == ["0+5", "5+1", "6+3", "9+1"]
    assert bench.session.position == 10
    assert bench.told() == ["RouteChosen", *["StepDone"] * 4]


@pytest.mark.parametrize(("lost", "heir"), [("a", "x"), ("b", "y"), ("c", "z")], ids=["first", "middle", "last"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_server_killed_in_the_middle_of_a_step_is_replaced_and_the_others_notice_nothing(
    lost: str, heir: str, batch: int
) -> None:
    bench = Bench(*THREE)
    bench.step(5, batch=batch)
    bench.step(batch=batch)
    bench.forget()
    bench[lost].will(Die)

    bench.step(batch=batch)
    bench.step(2, batch=batch)

    assert bench.seen(heir) == ["0+7", "7+2"]
    for name in set("abc") - {lost}:
        assert bench.seen(name) == ["6+1", "7+2"]
    assert bench.router.failures == [(lost, FailureKind.LOST)]
    assert bench.told() == [
        "PeerFailed",
        "RouteChanged",
        "ReplayStarted",
        "ReplayDone",
        "RecoveryDone",
        "StepDone",
        "StepDone",
    ]
    failed, done = bench.events[0], bench.events[4]
    assert isinstance(failed, PeerFailed)
    assert (failed.hop.node, failed.kind, failed.in_flight, failed.position) == (lost, "lost", True, 6)
    assert isinstance(done, RecoveryDone)
    assert (done.replayed_tokens, done.position, len(done.failed)) == (6, 7, 1)


def test_a_server_killed_between_two_steps_is_replaced_in_the_next() -> None:
    bench = Bench(*THREE)
    bench.step(5)

    bench["b"].kill()
    bench.step()
    bench.step()

    assert bench.route() == ["a=0:2", "y=2:4", "c=4:6"]


def test_a_server_that_is_dead_but_still_announced_is_blamed_and_the_opened_streams_are_kept() -> None:
    bench = Bench(*THREE)
    bench["b"].alive = False

    bench.step(5)

    assert bench.router.failures == [("b", FailureKind.LOST)]
    assert bench["a"].dials == 1
    failed = next(event for event in bench.events if isinstance(event, PeerFailed))
    assert (failed.in_flight, failed.reason) == (False, "cannot be dialled: connection refused")
    bench.step()
    assert bench["b"].dials == 1


def test_a_span_is_taken_over_by_two_servers_each_of_which_can_be_lost_later() -> None:
    bench = Bench(*SPLIT)
    bench.step(4)
    bench["b"].will(Die)
    bench.step(2)
    assert bench.route() == ["a=0:2", "d=2:3", "e=3:4", "c=4:6"]
    assert bench.seen("c") == ["0+4", "4+2"]

    bench["e"].will(Die)
    bench.step()
    assert bench.route() == ["a=0:2", "d=2:3", "f=3:4", "c=4:6"]
    assert (bench.seen("d"), bench.seen("f")) == (["0+6", "6+1"], ["0+7"])

    bench["d"].will(None, Die)
    bench.step()
    bench.step()
    assert bench.route() == ["a=0:2", "g=2:3", "f=3:4", "c=4:6"]
    assert (bench.seen("g"), bench.seen("f")) == (["0+9"], ["0+7", "7+1", "8+1"])
    assert bench.seen("c") == ["0+4", "4+2", "6+1", "7+1", "8+1"]


def test_a_second_server_may_fail_in_the_middle_of_the_replay() -> None:
    bench = Bench(*SPLIT, settings=SessionSettings(replay_chunk_tokens=2, recover_timeout_s=0.2))
    bench.step(7)
    bench["b"].will(Die)
    bench["d"].will(None, None, Die)

    bench.step()
    bench.step()

    assert bench.router.failures == [("b", FailureKind.LOST), ("d", FailureKind.LOST)]
    assert bench.route() == ["a=0:2", "g=2:3", "e=3:4", "c=4:6"]
    assert bench.seen("g")[:4] == ["0+2", "2+2", "4+2", "6+2"]


def test_all_servers_of_a_route_may_fail_in_one_step() -> None:
    bench = Bench(*THREE)
    bench.step(3)
    for name in "abc":
        bench[name].will(Die)

    bench.step(2)

    assert bench.route() == ["x=0:2", "y=2:4", "z=4:6"]
    done = [event for event in bench.events if isinstance(event, RecoveryDone)]
    assert [(len(event.failed), event.replayed_tokens) for event in done] == [(3, 9)]


def test_a_long_history_is_replayed_in_chunks_and_the_batch_counts() -> None:
    bench = Bench(*THREE, settings=SessionSettings(replay_chunk_tokens=9))
    bench.step(8, batch=3)
    bench["a"].will(Die)

    bench.step(batch=3)

    assert bench.seen("x") == ["0+3", "3+3", "6+3"]
    assert len({request.stream for request in bench["x"].received}) == 1
    assert len({str(request.metadata["step_id"]) for request in bench["x"].received}) == 3
    started = next(event for event in bench.events if isinstance(event, ReplayStarted))
    assert (started.tokens, started.chunks) == (8, 3)


def test_only_the_first_request_of_a_stream_sizes_the_cache() -> None:
    bench = Bench(*THREE, max_length=50, settings=SessionSettings(replay_chunk_tokens=2))
    bench.step(4)
    bench.step()

    opening = [request.metadata.get("max_length") for request in bench["a"].received]

    assert opening == [50, None, None]


def test_deep_prompts_are_sent_again_with_the_first_chunk_of_a_replay_and_never_with_a_step() -> None:
    prompts = torch.arange(6 * 3 * HIDDEN, dtype=torch.float64).reshape(6, 1, 3, HIDDEN) + 7
    bench = Bench(*SPLIT, settings=SessionSettings(replay_chunk_tokens=2))
    bench.step(5, batch=2, prompts=prompts)
    bench.step(batch=2)
    bench["b"].will(Die)

    bench.step(batch=2)
    bench.step(batch=2)

    for name in "abcde":
        chunks = [request.prompts for request in bench[name].received if request.begin == 0]
        later = [request.prompts for request in bench[name].received if request.begin > 0]
        assert all(chunks)
        assert not any(later)
    assert bench.seen("d")[0] == "0+3"


def test_prompts_of_a_first_step_that_failed_are_forgotten() -> None:
    bench = Bench("a=0:6")
    prompts = torch.ones(6, 1, 2, HIDDEN, dtype=torch.float64)
    bench["a"].will(RuntimeError("no"))
    with pytest.raises(RecoveryFailed):
        bench.session.step(bench.inputs(3), prompts)

    bench.step(3)


def test_beam_search_with_failovers_equals_an_undisturbed_one() -> None:
    bench = Bench(*SPLIT, "z=4:6")
    orders = [None, [0, 0, 1], [2, 1, 0], [1, 1, 1], [0, 2, 2], [2, 0, 1], [1, 0, 0]]
    faults = {2: "b", 4: "e", 5: "c"}

    for number, order in enumerate(orders):
        if number in faults:
            bench[faults[number]].will(Die)
        bench.step(3 if number == 0 else 1, batch=3, order=order)

    assert len(bench.router.failures) == 3
    replays = [request for request in bench["d"].received if request.begin == 0]
    assert [request.order for request in replays] == [None]
    assert [request.order for request in bench["a"].received] == [None, *map(tuple, orders[1:])]


@pytest.mark.parametrize(
    "distortion", [lambda out: out[:, :, :1], lambda out: out[:, 1:], lambda out: out[:1], lambda _out: None]
)
def test_a_server_whose_answer_has_the_wrong_shape_is_replaced(distortion: object) -> None:
    bench = Bench(*THREE)
    bench.step(3, batch=2)
    bench["b"].will(Distort(distortion))

    bench.step(2, batch=2)

    assert bench.router.failures == [("b", FailureKind.BROKEN)]
    assert bench.route() == ["a=0:2", "y=2:4", "c=4:6"]


def test_a_server_that_does_not_answer_is_given_up_after_the_step_timeout() -> None:
    bench = Bench(*THREE, settings=SessionSettings(step_timeout_s=0.1))
    bench.step(3)
    bench["c"].will(Hang)

    bench.step()

    failed = next(event for event in bench.events if isinstance(event, PeerFailed))
    assert (failed.kind, failed.reason) == ("silent", "no answer within 0.1 s")
    assert not bench["c"].open_streams


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Could not allocate 4096 bytes immediately: out of memory", FailureKind.BUSY),
        ("Remote peer does not serve model.2", FailureKind.REFUSED),
        ("'NoneType' object is not subscriptable", FailureKind.BROKEN),
    ],
)
def test_an_error_of_one_server_leads_to_another(text: str, kind: FailureKind) -> None:
    bench = Bench(*THREE)
    bench["b"].will(RuntimeError(text))

    bench.step(3)

    assert bench.router.failures == [("b", kind)]


def test_a_healthy_server_that_ended_the_session_is_used_again_and_not_banned() -> None:
    bench = Bench("a=0:2", "b=2:6")
    bench.step(3)
    bench["b"].will(TimeoutError())

    bench.step()

    assert bench.route() == ["a=0:2", "b=2:6"]
    assert bench.seen("b") == ["0+3", "0+4"]
    assert bench.router.failures == [("b", FailureKind.EXPIRED)]
    done = next(event for event in bench.events if isinstance(event, RecoveryDone))
    assert done.failed == ()


def test_a_server_of_two_spans_may_end_both_sessions_and_keeps_both_spans() -> None:
    bench = Bench("w=0:6", "b=2:4")
    bench["w"].rps = 1.0
    bench.step(3)
    assert bench.route() == ["w=0:2", "b=2:4", "w=4:6"]
    bench.forget()
    bench["w"].will(TimeoutError(), None, TimeoutError())

    bench.step()

    assert bench.route() == ["w=0:2", "b=2:4", "w=4:6"]
    assert bench.seen("b") == ["3+1"]
    assert "WaitingForPeers" not in bench.told()


def test_when_all_answer_with_an_error_it_gives_up_at_once() -> None:
    bench = Bench("a=0:6", "b=0:6", settings=SessionSettings(recover_timeout_s=60))
    for name in "ab":
        bench[name].will(RuntimeError("division by zero"))

    with pytest.raises(RecoveryFailed, match="no server for blocks 0:6") as caught:
        bench.session.step(bench.inputs(3))

    assert caught.value.reasons[0] == "every server of these blocks answered with an error"
    assert set(caught.value.reasons[1:]) == {"a: broken", "b: broken"}
    assert bench.session.position == 0


def test_a_session_that_found_nobody_in_time_goes_on_when_the_server_is_back() -> None:
    bench = Bench("a=0:2", "b=2:4", "c=4:6")
    bench.step(4)
    bench["b"].will(Die)

    with pytest.raises(RecoveryFailed) as caught:
        bench.session.step(bench.inputs())

    assert caught.value.context["blocks"] == "2:4"
    assert caught.value.context["position"] == bench.session.position == 4
    assert "b: lost" in caught.value.reasons
    assert bench.told()[-2:] == ["WaitingForPeers", "RecoveryGivenUp"]
    bench["b"].alive = True
    bench.forget()
    bench.step(2)
    assert bench.seen("c") == ["4+2"]
    assert (bench.seen("a"), bench.seen("b")) == (["0+6"], ["0+6"])


def test_a_session_waits_for_a_server_that_returns_in_time() -> None:
    bench = Bench("a=0:2", "b=2:6", settings=SessionSettings(recover_timeout_s=20))
    bench.step(4)
    bench["b"].will(Die)

    def starts_again() -> None:
        bench["b"].alive = True
        bench.router.bans.record_success(next(p for p, s in bench.router.servers.items() if s.name == "b"))

    bench.router.on_refresh = starts_again
    bench.step()

    waiting = [event for event in bench.events if isinstance(event, WaitingForPeers)]
    assert [event.blocks for event in waiting] == [bench["b"].blocks]
    assert bench["b"].received[-1].metadata["alloc_timeout"] == SessionSettings().alloc_timeout_s


@pytest.mark.parametrize("name", ["route", "record_of", "refresh", "report_failure", "report_success"])
def test_the_fake_router_takes_the_calls_that_the_real_one_takes(name: str) -> None:
    fake, real = (inspect.signature(getattr(kind, name)).parameters.values() for kind in (FakeRouter, Router))

    assert [(p.name.strip("_"), p.kind, p.default) for p in fake] == [(p.name, p.kind, p.default) for p in real]


FAULTS = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.sampled_from([Die, End, RuntimeError("no"), RuntimeError("Could not allocate 1 bytes"), TimeoutError()]),
)


@settings(max_examples=25)
@given(data=st.data(), chunk=st.integers(1, 6), batch=st.integers(1, 3))
def test_any_faults_leave_the_answers_as_they_were(data: st.DataObject, chunk: int, batch: int) -> None:
    # w has all blocks and never fails, so there is always a way.
    bench = Bench(*SPLIT, "y=2:6", "x=0:3", "w=0:6", settings=SessionSettings(replay_chunk_tokens=chunk * batch))
    for server in bench.servers.values():
        if server.name != "w":
            server.will(*data.draw(st.lists(FAULTS, max_size=12)))

    for number in range(data.draw(st.integers(2, 6))):
        order = data.draw(st.none() | st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
        bench.step(data.draw(st.integers(1, 5)), batch=batch, order=order if number else None)

    steps = [event for event in bench.events if isinstance(event, StepDone)]
    assert [event.position for event in steps] == [*accumulate(event.tokens for event in steps)]
    bench.session.close()
    assert not any(server.open_streams for server in bench.servers.values())
