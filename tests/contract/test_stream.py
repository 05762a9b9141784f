"""One stream to one server, over a real socket and on hivemind's own event loop."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2, runtime_pb2
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.multiaddr import Multiaddr

from swarmctl.recovery import FailureKind
from swarmctl.upstream.failures import IDLE_S, ServerError, TooManyTokens, classify
from swarmctl.upstream.stream import HANDLER, ServerStream

LIMIT_S = 5.0
ANSWER = runtime_pb2.ExpertResponse(tensors=[runtime_pb2.Tensor(buffer=b"answer")])
Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
run = RemoteExpertWorker.run_coroutine


def a_request(size: int = 8) -> runtime_pb2.ExpertRequest:
    return runtime_pb2.ExpertRequest(uid="tiny.0", tensors=[runtime_pb2.Tensor(buffer=b"x" * size)])


async def read_request(reader: asyncio.StreamReader) -> runtime_pb2.ExpertRequest:
    request, _ = await P2P.receive_protobuf(runtime_pb2.ExpertRequest, reader)
    return request


class Socket:
    """Where p2pd would be: connects to whatever server the test gives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked_for: list[str] = []
        self._listening: asyncio.AbstractServer | None = None
        self._streams: list[ServerStream] = []

    async def serve(self, server: Server) -> None:
        self._listening = await asyncio.start_unix_server(server, path=str(self.path))

    async def close(self) -> None:
        """End everything on its own loop."""
        for stream in self._streams:
            await stream.close()
        if self._listening is not None:
            self._listening.close()

    async def call_binary_stream_handler(
        self, _peer: object, name: str
    ) -> tuple[None, asyncio.StreamReader, asyncio.StreamWriter]:
        self.asked_for.append(name)
        return None, *await asyncio.open_unix_connection(str(self.path))

    def open(self, server: Server) -> ServerStream:
        """A stream to `server`."""
        run(self.serve(server))
        stream = run(ServerStream.open(self, None, timeout_s=LIMIT_S))  # type: ignore[arg-type]
        self._streams.append(stream)
        return stream


@pytest.fixture
def socket() -> Iterator[Socket]:
    # A unix socket's path must be short.
    with tempfile.TemporaryDirectory() as folder:
        socket = Socket(Path(folder) / "s")
        yield socket
        run(socket.close())


def ask(stream: ServerStream, request: runtime_pb2.ExpertRequest | None = None, timeout_s: float = LIMIT_S) -> bytes:
    answer = run(stream.exchange(request or a_request(), timeout_s=timeout_s))
    return bytes(answer.tensors[0].buffer)


def test_requests_are_answered_one_by_one_on_the_inference_handler(socket: Socket) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await P2P.send_protobuf(runtime_pb2.ExpertResponse(tensors=(await read_request(reader)).tensors), writer)

    stream = socket.open(echo)

    assert ask(stream, a_request(3)) == b"xxx"
    assert ask(stream, a_request(3_000_000)) == b"x" * 3_000_000
    assert socket.asked_for == [HANDLER]


def test_the_caller_is_told_when_the_request_has_left_and_before_the_answer(socket: Socket) -> None:
    happened: list[str] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        happened.append("read")
        await P2P.send_protobuf(ANSWER, writer)

    stream = socket.open(answers)

    run(stream.exchange(a_request(), timeout_s=LIMIT_S, sent=lambda: happened.append("sent")))

    assert happened == ["sent", "read"]


def test_a_server_that_dies_over_a_request_is_noticed_at_once(socket: Socket) -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.close()

    stream = socket.open(dies)
    began = time.monotonic()

    with pytest.raises(EOFError) as caught:
        ask(stream)

    assert time.monotonic() - began < LIMIT_S / 2
    assert classify(caught.value).kind is FailureKind.LOST


def test_a_server_that_dies_in_the_middle_of_its_answer_is_lost(socket: Socket) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(P2P.MESSAGE_MARKER + (100).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + b"half")
        writer.close()

    with pytest.raises(EOFError):
        ask(socket.open(half))


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_stream_that_ended_between_two_requests_is_told_from_a_broken_server(socket: Socket, how: str) -> None:
    gone = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await P2P.send_protobuf(ANSWER, writer)
        if how == "reset":
            writer.transport.abort()
        else:
            writer.close()
        gone.set()

    stream = socket.open(once)
    assert ask(stream) == b"answer"
    run(gone.wait())

    for _ in range(2):  # the second request meets a connection that is closed on this side too
        with pytest.raises((EOFError, ConnectionError)) as caught:
            ask(stream)
        assert classify(caught.value, idle_s=IDLE_S).kind is FailureKind.EXPIRED


def test_what_a_server_says_between_two_requests_is_heard_instead_of_a_broken_connection(socket: Socket) -> None:
    gone = asyncio.Event()

    async def says_why(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await P2P.send_protobuf(ANSWER, writer)
        # What a handler sends when its session_timeout is over: the text of a TimeoutError.
        await P2P.send_protobuf(RPCError(message=str(asyncio.TimeoutError())), writer)
        writer.transport.write_eof()
        writer.close()
        gone.set()

    sent: list[str] = []
    stream = socket.open(says_why)
    assert ask(stream) == b"answer"
    run(gone.wait())

    with pytest.raises(ServerError) as caught:
        run(stream.exchange(a_request(), timeout_s=LIMIT_S, sent=lambda: sent.append("sent")))

    assert str(caught.value) == ""
    assert classify(caught.value, idle_s=0.1).kind is FailureKind.EXPIRED
    assert sent == [], "a request to a stream that has ended does not leave"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Task size greater than max_batch_size (8), it can't be processed", TooManyTokens), ("no", ServerError)],
)
def test_an_error_of_the_server_is_raised_with_its_text(socket: Socket, text: str, kind: type[Exception]) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await P2P.send_protobuf(RPCError(message=text), writer)
        writer.close()

    with pytest.raises(kind) as caught:
        ask(socket.open(refuses))

    assert type(caught.value) is kind
    assert str(caught.value) == text


def test_a_server_that_does_not_answer_runs_into_the_limit(socket: Socket) -> None:
    async def hangs(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(asyncio.TimeoutError):
        ask(socket.open(hangs), timeout_s=0.05)


def test_a_server_that_reads_nothing_runs_into_the_limit_too(socket: Socket) -> None:
    # Nobody else holds a connection that is not read from: the next garbage collection would reset it.
    held: list[object] = []

    async def stopped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.extend([reader, writer])
        writer.transport.pause_reading()

    with pytest.raises(asyncio.TimeoutError):
        ask(socket.open(stopped), a_request(8_000_000), timeout_s=0.1)


@pytest.mark.skipif(not hasattr(asyncio.StreamWriter, "__del__"), reason="this Python leaves it to a collection")
@pytest.mark.parametrize("timeout_s", [LIMIT_S, 0.1], ids=["refused", "not answered"])
def test_a_dial_that_fails_leaves_no_connection_to_the_daemon(socket: Socket, timeout_s: float) -> None:
    ended = asyncio.Event()

    async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_pbmsg_safe(reader, p2pd_pb2.Request())
        if timeout_s == LIMIT_S:
            refused = p2pd_pb2.ErrorResponse(msg="failed to dial")
            await write_pbmsg(writer, p2pd_pb2.Response(type=p2pd_pb2.Response.ERROR, error=refused))
        assert await reader.read() == b""
        ended.set()

    client = SimpleNamespace(daemon_connector=DaemonConnector(Multiaddr(f"/unix{socket.path}")))

    async def dial(peer: PeerID, name: str) -> Any:
        return await ControlClient.stream_open(client, peer, (name,))  # type: ignore[arg-type]

    async def fails() -> None:
        p2p = SimpleNamespace(call_binary_stream_handler=dial)
        with pytest.raises((ControlFailure, asyncio.TimeoutError)):
            await ServerStream.open(p2p, PeerID(b"\x12\x20" + bytes(32)), timeout_s=timeout_s)  # type: ignore[arg-type]

    run(socket.serve(daemon))
    gc.disable()
    try:
        run(fails())
        run(asyncio.wait_for(ended.wait(), LIMIT_S / 2))
    finally:
        gc.enable()


def test_closing_says_goodbye_and_waits_for_nobody(socket: Socket) -> None:
    heard: list[runtime_pb2.ExpertRequest] = []
    ended = asyncio.Event()

    async def listens(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        heard.append(await read_request(reader))
        assert await reader.read() == b""
        ended.set()

    stream = socket.open(listens)

    run(stream.close())
    run(asyncio.wait_for(ended.wait(), LIMIT_S))
    run(stream.close())

    # petals ends a session in order on a request without tensors.
    assert [len(request.tensors) for request in heard] == [0]
