"""Every way in which petals, hivemind and libp2p say that a request failed, and what a session makes of it."""

from __future__ import annotations

import asyncio
from concurrent import futures
from pathlib import Path

import hivemind
import petals
import pytest
from hivemind.p2p import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, DispatchFailure, raise_if_failed
from hivemind.proto import p2pd_pb2
from support.fakeswarm import DIAL_ERROR

from swarmctl.blocks import BlockRange, PeerId
from swarmctl.errors import ExitCode, RequestInvalid
from swarmctl.recovery import FailureKind, GiveUp
from swarmctl.upstream.failures import (
    IDLE_S,
    ServerError,
    StreamSpent,
    TooManyTokens,
    classify,
    gave_up,
    server_error,
)

PETALS, HIVEMIND = Path(petals.__file__).parent, Path(hivemind.__file__).parent


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Could not allocate 8192 bytes immediately: out of memory", FailureKind.BUSY),
        ("Could not allocate 8192 within 10.0 seconds", FailureKind.BUSY),
        ("Could not allocate 8192 (timeout=10.0)", FailureKind.BUSY),
        ("Could not allocate 8192 bytes, max cache size = 4096 bytes", FailureKind.BUSY),
        ("Server's attention cache is full, failed to allocate 8192 bytes in 9.9 seconds", FailureKind.BUSY),
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 10.75 GiB", FailureKind.BUSY),
        ("Remote peer does not serve StableBeluga2-hf.17", FailureKind.REFUSED),
        ("CUDA error: an illegal memory access was encountered", FailureKind.BROKEN),
        ("17", FailureKind.BROKEN),
        ("'NoneType' object has no attribute 'active_adapter'", FailureKind.BROKEN),
    ],
)
def test_an_error_of_a_server_is_told_apart_by_its_text(text: str, kind: FailureKind) -> None:
    failure = classify(server_error(text))

    assert (failure.kind, failure.reason) == (kind, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Cannot allocate KV cache for 100000 tokens, max = 8192", "longer than the servers allow"),
        (
            "Maximum length exceeded: prefix 60 + current 5 exceeds pre-allocated maximum 64",
            "longer than was asked for",
        ),
        (str(KeyError("adapter timdettmers/guanaco-65b not found")), "do not have this adapter"),
    ],
)
def test_the_callers_own_mistake_is_raised_with_the_servers_words(text: str, says: str) -> None:
    with pytest.raises(RequestInvalid, match=says) as caught:
        classify(server_error(text))

    assert caught.value.reasons == (f"a server says: {text}",)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_request_that_is_too_large_is_an_error_of_its_own() -> None:
    text = "Task size greater than max_batch_size (2048), it can't be processed"

    assert isinstance(server_error(text), TooManyTokens)
    assert not isinstance(server_error("anything else"), TooManyTokens)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("server/memory_cache.py", "Could not allocate {alloc_size} bytes immediately: out of memory"),
        ("server/memory_cache.py", "Could not allocate {alloc_size} within {timeout} seconds"),
        ("server/memory_cache.py", "Could not allocate {alloc_size} (timeout={timeout})"),
        ("server/memory_cache.py", "Server's attention cache is full, failed to allocate"),
        ("server/handler.py", "Cannot allocate KV cache for {max_length} tokens, max = {self.inference_max_length}"),
        ("server/handler.py", "Remote peer does not serve {uid}"),
        ("server/handler.py", "adapter {active_adapter} not found"),
        ("server/block_functions.py", "Maximum length exceeded: prefix {prefix_length} + current {length_increment}"),
        ("server/task_pool.py", "Task size greater than max_batch_size ({self.max_batch_size})"),
    ],
)
def test_the_installed_petals_still_says_it_in_these_words(where: str, text: str) -> None:
    assert text in (PETALS / where).read_text(encoding="utf-8")


def test_the_installed_hivemind_still_sends_only_the_text_of_an_error() -> None:
    source = (HIVEMIND / "p2p" / "p2p_daemon.py").read_text(encoding="utf-8")

    assert "P2P.send_protobuf(RPCError(message=str(e)), writer)" in source


@pytest.mark.parametrize(
    "error",
    [
        EOFError("the server ended the stream"),
        asyncio.IncompleteReadError(b"", 1),
        ConnectionResetError("Connection lost"),
        BrokenPipeError(32, "Broken pipe"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("idle_s", "kind"),
    [(0.0, FailureKind.LOST), (IDLE_S - 1, FailureKind.LOST), (IDLE_S + 1, FailureKind.EXPIRED)],
)
def test_the_end_of_a_stream_is_a_death_unless_it_had_been_idle(
    error: Exception, idle_s: float, kind: FailureKind
) -> None:
    assert classify(error, idle_s=idle_s).kind is kind


def test_an_idle_stream_that_ended_says_for_how_long() -> None:
    assert classify(EOFError(), idle_s=31.4).reason == "stream ended after 31 s without a step"


@pytest.mark.parametrize("error", [TimeoutError(), asyncio.TimeoutError(), futures.TimeoutError()])
def test_no_answer_in_time_is_silence_also_after_a_long_pause(error: Exception) -> None:
    failure = classify(error, idle_s=100.0, within_s=15.0)

    assert (failure.kind, failure.reason) == (FailureKind.SILENT, "no answer within 15 s")


def test_an_error_without_a_text_ends_a_session_that_is_too_old_and_is_an_error_on_a_new_stream() -> None:
    # What a server sends when its session_timeout is over is the text of a TimeoutError.
    silent = server_error(str(asyncio.TimeoutError()))

    assert classify(silent, idle_s=0.01).kind is FailureKind.EXPIRED
    assert classify(silent, idle_s=0.0).kind is FailureKind.BROKEN
    assert classify(silent).reason == "the server answered with an error without a text"


def test_a_stream_that_was_used_up_may_be_opened_again() -> None:
    assert classify(StreamSpent("smaller requests, please")).kind is FailureKind.EXPIRED


def dial_error(text: str) -> Exception:
    """What hivemind makes of libp2p's answer to a dial."""
    response = p2pd_pb2.Response(type=p2pd_pb2.Response.ERROR, error=p2pd_pb2.ErrorResponse(msg=text))
    with pytest.raises(ControlFailure) as caught:
        raise_if_failed(response)
    return caught.value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DIAL_ERROR.format(peer="QmX"), "cannot be dialled: connection refused"),
        ("failed to dial QmX:\n  * [/ip4/10.0.0.9/tcp/1] dial tcp4: connect: no route to host", "no route to host"),
        ("failed to dial QmX:\n  * [/ip4/10.0.0.9/tcp/1] dial tcp4 10.0.0.9:1: i/o timeout", "i/o timeout"),
        ("failed to dial QmX: context deadline exceeded", "context deadline exceeded"),
        ("failed to find any peer in table: no addresses", "no addresses"),
        ("routing:\n   not   found", "cannot be dialled: Connect failed. msg=routing: not found"),
    ],
)
def test_a_peer_that_cannot_be_dialled_is_lost_and_the_reason_is_one_line(text: str, reason: str) -> None:
    failure = classify(dial_error(text))

    assert failure.kind is FailureKind.LOST
    assert failure.reason.endswith(reason)
    assert "\n" not in failure.reason
    assert len(failure.reason) < 150


BACK_OFF = "failed to dial QmX: all dials failed\n  * [/ip4/10.0.0.9/tcp/1] dial backoff"


def test_a_peer_that_libp2p_does_not_dial_yet_is_not_lost() -> None:
    failure = classify(dial_error(BACK_OFF))

    assert failure.kind is FailureKind.UNDIALLED
    assert "waits" in failure.reason


def test_a_peer_with_one_address_that_was_dialled_in_vain_is_lost() -> None:
    tried = "\n  * [/ip4/10.0.0.7/tcp/1] dial tcp4: connect: no route to host"

    assert classify(dial_error(BACK_OFF + tried)).kind is FailureKind.LOST


@pytest.mark.parametrize("kind", [P2PDaemonError, ControlFailure, DispatchFailure])
def test_every_error_of_the_libp2p_daemon_is_a_lost_peer(kind: type[Exception]) -> None:
    assert classify(kind("stream reset")).kind is FailureKind.LOST


def test_a_peer_without_petals_handlers_refuses() -> None:
    text = (
        "failed to negotiate protocol: protocols not supported: [TransformerConnectionHandler.rpc_inference]\n  at QmX"
    )

    failure = classify(dial_error(text))

    assert failure.kind is FailureKind.REFUSED
    assert "\n" not in failure.reason


@pytest.mark.parametrize("error", [ValueError("asked for [1, 2, 3], got [1]"), IndexError("list index out of range")])
def test_anything_else_is_a_broken_server_and_names_the_error(error: Exception) -> None:
    failure = classify(error)

    assert (failure.kind, failure.reason) == (FailureKind.BROKEN, f"{type(error).__name__}: {error}")


def test_a_server_error_may_be_raised_as_it_is() -> None:
    assert str(server_error("what the server says")) == "what the server says"
    assert isinstance(server_error(""), ServerError)


@pytest.mark.parametrize(
    ("hopeless", "why"),
    [
        (False, "waited 61.2 s for a server (recover_timeout 60 s)"),
        (True, "every server of these blocks answered with an error"),
    ],
)
def test_giving_up_says_where_why_and_who_was_asked(hopeless: bool, why: str) -> None:
    tried = (PeerId("QmA"), PeerId("QmB"))
    verdict = GiveUp(need=BlockRange(3, 6), tried=tried, hopeless=hopeless)

    error = gave_up(verdict, position=17, waited_s=61.234, limit_s=60.0, tried=["a: lost", "b: busy"])

    assert str(error) == f"no server for blocks 3:6 at position 17\n  {why}\n  a: lost\n  b: busy"
    assert error.hints == ("swarmctl status", "swarmctl up")
    assert error.context == {"blocks": "3:6", "position": 17, "tried": ["QmA", "QmB"], "waited_s": 61.234}
    assert error.exit_code is ExitCode.CHECK_NEGATIVE
