"""One inference stream to one server, read by us: its end is an error at once.

hivemind's client, when the stream ends, waits for its own writer, which waits for a request that never comes (its
`P2P._iterate_protobuf_stream_handler`); a death in mid-step then shows only when the request times out. Here one
request is written and one answer is read, on the raw stream that hivemind offers for that.

To go: hivemind raises when a stream ends before the answer.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hivemind.p2p import P2P, PeerID
from hivemind.proto import runtime_pb2

from swarmctl.upstream.failures import server_error

HANDLER = "TransformerConnectionHandler.rpc_inference"


class ServerStream:
    """An open stream. All methods run on the event loop of the `P2P` it was opened with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answered_at: float | None = None

    @classmethod
    async def open(cls, p2p: P2P, peer: PeerID, *, timeout_s: float) -> ServerStream:
        """Dial `peer` and open a stream.

        Raises:
            asyncio.TimeoutError, P2PDaemonError: see `failures.classify`.
        """
        try:
            _, reader, writer = await asyncio.wait_for(p2p.call_binary_stream_handler(peer, HANDLER), timeout_s)
        except BaseException as error:
            # hivemind leaves its connection to the daemon open when a dial is refused. It ends with the variables that
            # hold it, and the error would keep those, in a cycle that waits for a garbage collection.
            traceback.clear_frames(error.__traceback__)
            raise
        return cls(reader, writer)

    async def exchange(
        self, request: runtime_pb2.ExpertRequest, *, timeout_s: float, sent: Callable[[], None] | None = None
    ) -> runtime_pb2.ExpertResponse:
        """Send one request and read its answer. `sent` is called when the request has left, before any answer.

        Raises:
            EOFError, ConnectionError, asyncio.TimeoutError, ServerError: see `failures.classify`.
        """
        return await asyncio.wait_for(self._exchange(request, sent), timeout_s)

    async def _exchange(
        self, request: runtime_pb2.ExpertRequest, sent: Callable[[], None] | None
    ) -> runtime_pb2.ExpertResponse:
        answer = asyncio.ensure_future(P2P.receive_protobuf(runtime_pb2.ExpertResponse, self._reader))
        try:
            # What a server has sent unasked is its last word; a write to what it has closed would lose it.
            await asyncio.sleep(0)
            if not answer.done():
                await self._send(request)
                if sent is not None:
                    sent()
            response, error = await answer
        finally:
            answer.cancel()
            answer.add_done_callback(_take)
        if error is not None:
            raise server_error(error.message)
        if response is None:
            raise EOFError("the server ended the stream")
        self.answered_at = asyncio.get_running_loop().time()
        return response

    async def _send(self, request: runtime_pb2.ExpertRequest) -> None:
        if self._writer.is_closing():
            # uvloop answers a write to a closed connection with a bare RuntimeError.
            raise ConnectionResetError("the connection was closed before the request")
        await P2P.send_protobuf(request, self._writer)

    async def close(self) -> None:
        """End the stream without waiting for the peer, which may be gone; a server frees its cache at the end."""
        with suppress(ConnectionError, RuntimeError, OSError):
            # An empty request is petals' way to end a session in order; it is buffered, not awaited.
            payload = runtime_pb2.ExpertRequest().SerializeToString()
            self._writer.write(P2P.MESSAGE_MARKER + len(payload).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + payload)
        with suppress(ConnectionError, RuntimeError, OSError):
            self._writer.close()


def _take(task: asyncio.Future[Any]) -> None:
    # asyncio complains of an exception that nobody takes.
    if not task.cancelled():
        task.exception()
