"""A look at a server: by its heartbeat where it has one, by a ping and a token where it has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2, runtime_pb2
from petals.server.handler import TransformerConnectionHandler
from support.fakeswarm import DIAL_ERROR, peer_id

from swarmctl.upstream.heartbeat import HANDLER, Beat, encode_beat
from swarmctl.upstream.liveness import FORWARD, PING, Forward, LifeSign, Liveness, forward_one_token, look

PEER = PeerID.from_base58(peer_id("a"))
TOKEN = Forward(uid="model.3", hidden_size=4, dtype="float32")
SHORT_S = 0.05

Answer = Callable[[Any], Awaitable[Any]]


def beat(**changes: Any) -> Answer:
    said = Beat(**{"computes": True, "busy_s": 2.0, "done": 7, "version": "0.1.0", "graphs": "eager", **changes})
    return answers(runtime_pb2.ExpertResponse(metadata=encode_beat(said)))


def answers(message: Any) -> Answer:
    async def answer(_request: Any) -> Any:
        return message

    return answer


def fails(error: Exception) -> Answer:
    async def answer(_request: Any) -> Any:
        raise error

    return answer


async def hangs(_request: Any) -> Any:
    await asyncio.Event().wait()


async def computes(request: Any) -> Any:
    return runtime_pb2.ExpertResponse(tensors=request.tensors[:1])


async def unsupported(_request: Any) -> Any:
    # libp2p's words, as hivemind's daemon gives them
    raise P2PDaemonError("failed to negotiate protocol: protocols not supported: [x]")


def token(value: torch.Tensor) -> Answer:
    return answers(runtime_pb2.ExpertResponse(tensors=[serialize_torch_tensor(value)]))


PONG = answers(dht_pb2.PingResponse())
REFUSED = fails(P2PDaemonError(f"failed to dial: {DIAL_ERROR.format(peer=peer_id('a'))}"))


class Server:
    """The handlers of one peer, as libp2p's client reaches them; `asked` counts the calls."""

    def __init__(self, *, heart: Answer = unsupported, pong: Answer = PONG, compute: Answer = computes) -> None:
        self.handlers = {HANDLER: heart, PING: pong, FORWARD: compute}
        self.asked: list[str] = []

    async def call_protobuf_handler(self, peer: PeerID, name: str, request: Any, answer: type) -> Any:
        assert peer == PEER
        self.asked.append(name)
        response = await self.handlers[name](request)
        assert isinstance(response, answer)
        return response

    def look(self, *, within_s: float = 5.0, forward: Forward | None = TOKEN) -> Liveness:
        return asyncio.run(look(self, PEER, within_s=within_s, forward=forward))  # type: ignore[arg-type]


def test_a_server_of_ours_is_asked_for_its_heartbeat_and_for_nothing_else() -> None:
    server = Server(heart=beat())

    life = server.look()

    assert (life.sign, life.is_there, life.busy_s, life.ours) == (LifeSign.ALIVE, True, 2.0, True)
    assert life.beat is not None
    assert life.beat.done == 7
    assert server.asked == [HANDLER]


def test_a_server_whose_runtime_has_ended_answers_and_is_not_there() -> None:
    life = Server(heart=beat(computes=False)).look()

    assert (life.sign, life.is_there, life.ours, life.reason) == (LifeSign.HUNG, False, True, "its runtime has ended")


def test_a_process_that_computes_and_was_stopped_is_silent_whatever_goes_on_around_it() -> None:
    server = Server(heart=hangs, pong=PONG, compute=computes)

    begun = time.monotonic()
    life = server.look(within_s=SHORT_S)

    assert (life.sign, life.is_there, life.ours) == (LifeSign.SILENT, False, None)
    assert life.reason == "no answer within 0.05 s"
    assert SHORT_S <= time.monotonic() - begun < 20 * SHORT_S
    assert server.asked == [HANDLER]


def test_a_connection_that_breaks_under_the_question_is_dialled_anew() -> None:
    broken = [P2PDaemonError("stream reset")]

    async def heart(request: Any) -> Any:
        if broken:
            raise broken.pop()
        return await beat()(request)

    assert Server(heart=heart).look().sign is LifeSign.ALIVE


def test_a_peer_that_cannot_be_dialled_is_silent_at_once() -> None:
    server = Server(heart=REFUSED)

    life = server.look(within_s=60.0)

    assert server.asked == [HANDLER] * 2
    assert life.sign is LifeSign.SILENT
    assert life.reason is not None
    assert "connection refused" in life.reason
    assert "\n" not in life.reason


def test_a_stock_server_that_computes_a_token_is_alive_before_its_ping_is_answered() -> None:
    life = Server(pong=hangs).look()

    assert (life.sign, life.is_there, life.ours, life.busy_s) == (LifeSign.ALIVE, True, False, 0.0)


def test_a_stock_server_that_answers_a_ping_and_computes_no_token_may_be_busy() -> None:
    life = Server(compute=hangs).look(within_s=SHORT_S)

    assert (life.sign, life.is_there, life.ours) == (LifeSign.UNKNOWN, True, False)
    assert life.reason == "no answer within 0.05 s"


def test_a_stock_server_that_answers_neither_is_silent_within_the_whole_limit() -> None:
    begun = time.monotonic()
    life = Server(pong=hangs, compute=hangs).look(within_s=SHORT_S)

    assert (life.sign, life.is_there) == (LifeSign.SILENT, False)
    assert time.monotonic() - begun < 20 * SHORT_S


def test_without_a_forward_a_stock_server_is_pinged_only() -> None:
    there, gone = Server(), Server(pong=hangs)

    assert there.look(forward=None).sign is LifeSign.UNKNOWN
    assert gone.look(forward=None, within_s=SHORT_S).sign is LifeSign.SILENT
    assert there.asked == gone.asked == [HANDLER, PING]


def test_a_server_without_dht_handlers_has_answered_the_ping_by_saying_so() -> None:
    for refusal in (unsupported, fails(P2PHandlerError("no"))):
        assert Server(pong=refusal).look(forward=None).sign is LifeSign.UNKNOWN


def test_a_peer_that_serves_no_blocks_is_not_there() -> None:
    life = Server(compute=unsupported).look()

    assert (life.sign, life.is_there, life.reason) == (LifeSign.HUNG, False, "it serves no blocks")


def test_an_error_of_a_stock_servers_is_told_and_proves_that_somebody_is_there() -> None:
    life = Server(compute=fails(P2PHandlerError("RuntimeError('CUDA error')"))).look()

    assert (life.sign, life.is_there, life.reason) == (LifeSign.UNKNOWN, True, "RuntimeError('CUDA error')")


@pytest.mark.parametrize(
    "nonsense",
    [
        answers(runtime_pb2.ExpertResponse(metadata=b"\xc1")),
        answers(runtime_pb2.ExpertResponse()),
        beat(busy_s=-1.0),
        fails(P2PHandlerError("KeyError('x')")),
    ],
    ids=["garbage", "nothing", "a wrong value", "an error"],
)
def test_a_heartbeat_that_is_none_makes_a_stock_server(nonsense: Answer) -> None:
    life = Server(heart=nonsense).look()

    assert (life.sign, life.ours) == (LifeSign.ALIVE, False)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (answers(runtime_pb2.ExpertResponse()), "without a tensor"),
        (token(torch.ones(1, 2, 4)), r"the shape \[1, 2, 4\] for \[1, 1, 4\]"),
        (token(torch.full((1, 1, 4), float("nan"))), "not finite"),
    ],
    ids=["nothing", "another shape", "not a number"],
)
def test_a_token_that_no_block_computes_is_refused(answer: Answer, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        asyncio.run(forward_one_token(Server(compute=answer), PEER, TOKEN))  # type: ignore[arg-type]
    assert Server(compute=answer).look().sign is LifeSign.UNKNOWN


@pytest.mark.parametrize(
    ("named", "sent"),
    [("bfloat16", "bfloat16"), (None, "float32"), ("int8", "float32"), ("nn", "float32"), ("", "float32")],
)
def test_the_token_has_the_type_of_the_servers_record_if_that_is_one(named: str | None, sent: str) -> None:
    requests: list[Any] = []

    async def compute(request: Any) -> Any:
        requests.append(request)
        return await computes(request)

    asyncio.run(
        forward_one_token(Server(compute=compute), PEER, Forward(uid="model.3", hidden_size=4, dtype=named))  # type: ignore[arg-type]
    )

    assert (requests[0].uid, requests[0].tensors[0].dtype, list(requests[0].tensors[0].size)) == (
        "model.3",
        sent,
        [1, 1, 4],
    )


def test_a_client_that_was_held_up_itself_takes_the_answer_that_lay_there() -> None:
    async def main() -> Liveness:
        loop = asyncio.get_running_loop()
        there = loop.create_future()

        async def heart(request: Any) -> Any:
            await there
            # What libp2p's client does before an answer is the caller's: it is read, and two tasks are woken.
            for _ in range(3):
                await asyncio.sleep(0)
            return await beat()(request)

        def hold_up() -> None:
            time.sleep(3 * SHORT_S)
            there.set_result(None)

        loop.call_later(SHORT_S / 2, hold_up)
        return await look(Server(heart=heart), PEER, within_s=SHORT_S)  # type: ignore[arg-type]

    assert asyncio.run(main()).sign is LifeSign.ALIVE


def test_a_look_that_is_given_up_leaves_nothing_under_way() -> None:
    async def main() -> set[asyncio.Task[Any]]:
        for server in (Server(heart=hangs), Server(pong=hangs, compute=hangs), Server(pong=hangs)):
            await look(server, PEER, within_s=SHORT_S, forward=TOKEN)  # type: ignore[arg-type]
        looking = asyncio.ensure_future(look(Server(compute=hangs), PEER, within_s=60.0, forward=TOKEN))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        looking.cancel()
        await asyncio.wait({looking})
        for _ in range(5):
            await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(main()) == set()


def test_handlers_have_the_names_that_hivemind_and_petals_give_them() -> None:
    assert TransformerConnectionHandler._get_handle_name(None, "rpc_forward") == FORWARD
    assert DHTProtocol._get_handle_name(None, "rpc_ping") == PING
