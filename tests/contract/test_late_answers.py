"""An answer that comes in the same turn of the loop in which its call is cancelled must not end the reader of all."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.utils import write_pbmsg
from hivemind.proto import p2pd_pb2

from swarmctl.upstream import patches
from swarmctl.upstream.patching import applied


class Daemon:
    """The daemon's end of a control connection: says what it is told to, in one piece."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.said = bytearray()

    async def open_persistent_connection(self) -> tuple[asyncio.StreamReader, Daemon]:
        return self.reader, self

    def write(self, data: bytes) -> None:
        self.said += data

    async def drain(self) -> None:
        return

    def close(self) -> None:
        return

    async def answer(self, call: UUID, text: bytes) -> None:
        answer = p2pd_pb2.PersistentConnectionResponse(
            callId=call.bytes, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=text)
        )
        spoken = Daemon()
        await write_pbmsg(spoken, answer)  # type: ignore[arg-type]
        self.reader.feed_data(bytes(spoken.said))


async def answer_after_a_cancelled_call() -> bytes:
    """One call is cancelled as its answer comes; what a second one gets."""
    daemon = Daemon()
    control = await ControlClient.create(daemon)  # type: ignore[arg-type]
    try:
        first, second = uuid4(), uuid4()
        cancelled, waited_for = asyncio.Future[bytes](), asyncio.Future[bytes]()
        control._pending_calls[first], control._pending_calls[second] = cancelled, waited_for
        cancelled.cancel()  # the caller's task has not yet run to take it out
        await daemon.answer(first, b"late")
        await daemon.answer(second, b"in time")
        done, _ = await asyncio.wait({waited_for, control._read_task}, return_when=asyncio.FIRST_COMPLETED)
        return await next(iter(done))
    finally:
        control.close()


def test_stock_hivemind_reads_no_answer_after_one_that_came_too_late() -> None:
    with pytest.raises(asyncio.InvalidStateError):
        asyncio.run(answer_after_a_cancelled_call())


def test_the_next_call_is_answered_when_late_answers_are_dropped() -> None:
    with applied(patches.late_answers_are_dropped()):
        assert asyncio.run(answer_after_a_cancelled_call()) == b"in time"
