"""What petals' own server does: each test is a defect that our client or launcher must live with or mend.

See `test_stock_defects`. The graphs that stick to one batch size (D20) are in `test_graphs`.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import petals.server
import pytest
import torch
from hivemind.moe.server.runtime import Runtime
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.tensor_descr import TensorDescriptor
from petals.data_structures import ModelInfo, ServerInfo, ServerState
from petals.server.backend import TransformerBackend
from petals.server.handler import TransformerConnectionHandler
from petals.server.memory_cache import MemoryCache
from petals.server.server import ModuleAnnouncerThread, ModuleContainer
from petals.server.task_pool import PrioritizedTaskPool
from support.fakedht import FakeDht
from support.fakeswarm import PREFIX, peer_id

CONTEXT = SimpleNamespace(remote_id="a client")


class Handler(TransformerConnectionHandler):
    """petals' handler without its process; `pushed` has what it would have sent to other servers."""

    def __init__(self, **settings: Any) -> None:
        self.pushed: list[runtime_pb2.ExpertRequest] = []
        self.dht_prefix = PREFIX
        self.request_timeout = 5.0
        self._p2p = None
        vars(self).update(settings)

    def get_stub(self, _p2p: object, _peer: object) -> Any:
        async def rpc_push(request: runtime_pb2.ExpertRequest, timeout: float) -> None:
            self.pushed.append(request)

        return SimpleNamespace(rpc_push=rpc_push)


def a_request(**metadata: Any) -> runtime_pb2.ExpertRequest:
    tensors = [runtime_pb2.Tensor(buffer=b"hidden"), runtime_pb2.Tensor(), runtime_pb2.Tensor()]
    return runtime_pb2.ExpertRequest(uid=f"{PREFIX}.0", tensors=tensors, metadata=MSGPackSerializer.dumps(metadata))


# --- D12: a healthy server ends a stream ------------------------------------------------------------------------


def test_a_stream_that_is_idle_ends_without_a_word() -> None:
    async def never() -> AsyncIterator[runtime_pb2.ExpertRequest]:
        await asyncio.Event().wait()
        yield a_request()

    async def steps() -> int:
        handler = Handler(step_timeout=0.05)
        taken = handler._iterate_inference_steps(a_request(), never(), None, [f"{PREFIX}.0"], CONTEXT)
        return len([step async for step in taken])

    assert asyncio.run(steps()) == 1, "no error: the generator ends, and so does the stream"


# --- D14: server-to-server push ---------------------------------------------------------------------------------


def test_a_server_pushes_by_the_metadata_of_a_streams_first_request_which_names_nobody() -> None:
    handler, outputs = Handler(), runtime_pb2.Tensor(buffer=b"outputs")
    first: dict[str, Any] = {"session_id": "1", "step_id": "x", "max_length": 64}
    later = {**first, "next_servers": [(peer_id("b"), "2", 3, 6)]}

    asyncio.run(handler._push_outputs(a_request(), outputs, first))
    assert handler.pushed == []
    asyncio.run(handler._push_outputs(a_request(), outputs, later))
    assert [request.uid for request in handler.pushed] == [f"{PREFIX}.3 {PREFIX}.4 {PREFIX}.5"]

    # And it is the first one's that it uses: `metadata` is assigned once, before the loop over the steps.
    function = next(
        node
        for node in ast.walk(ast.parse(_source("handler.py")))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "rpc_inference"
    )
    stored = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == "metadata" and _is_stored(n)]
    loop = next(node for node in ast.walk(function) if isinstance(node, ast.AsyncFor))
    assert len(stored) == 1
    assert stored[0].lineno < loop.lineno


# --- D18: work for a client that is gone ------------------------------------------------------------------------


def test_a_task_whose_client_is_gone_is_computed_all_the_same() -> None:
    pool = PrioritizedTaskPool(lambda hidden: (hidden,), max_batch_size=64, name="pool", start=True)
    try:
        future = pool.submit_task(torch.ones(1, 1, 2))
        future.cancel()

        uid, inputs = pool.load_batch_to_runtime(timeout=10)

        assert uid == future._uid
        assert torch.equal(inputs[0], torch.ones(1, 1, 2))
    finally:
        pool.shutdown()


def test_a_step_whose_cache_was_freed_fails_with_a_number() -> None:
    cache = MemoryCache(max_size_bytes=1024)

    async def come_and_go() -> int:
        task = asyncio.ensure_future(cache._schedule_alloc(64, TensorDescriptor((16,), torch.float32), timeout=0.0))
        (handle,) = await task
        cache._free(64, task)
        return int(handle)

    handle = asyncio.run(come_and_go())

    with pytest.raises(KeyError, match=f"^{handle}$"), cache.use_cache(handle):
        pass


# --- D22: what counts as healthy --------------------------------------------------------------------------------


def test_a_server_whose_runtime_has_ended_is_healthy() -> None:
    alive = SimpleNamespace(is_alive=lambda: True)
    runtime = Runtime({})  # never started: it computes nothing
    runtime.pools = (alive,)

    assert not runtime.is_alive()
    assert ModuleContainer.is_healthy(SimpleNamespace(conn_handlers=[alive], runtime=runtime))


def test_one_error_of_the_dht_ends_a_servers_announcements() -> None:
    dht = FakeDht()
    dht.error = RuntimeError("no bootstrap peer answers")
    announcer = ModuleAnnouncerThread(
        [f"{PREFIX}.0"],
        dht,
        ServerInfo(state=ServerState.ONLINE, throughput=1.0, torch_dtype="float32"),
        ModelInfo(num_blocks=6),
        block_config=SimpleNamespace(hidden_size=64, num_key_value_groups=1),
        memory_cache=SimpleNamespace(bytes_left=4096),
        update_period=0.0,
        expiration=10.0,
    )

    with pytest.raises(RuntimeError, match="no bootstrap peer answers"):
        announcer.run()


# --- D26, D27: what a server believes of its client -------------------------------------------------------------


def test_no_server_lets_its_client_choose_a_position() -> None:
    # 2.3.0.dev2 does, behind an assertion on a tuple, which never fires. If this fails, the installed petals is such.
    source = _source("block_functions.py")

    assert "start_from_position" not in source
    assert "prefix_length += length_increment" in source
    always_true = [
        node
        for path in Path(petals.server.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple)
    ]
    assert not always_true


@pytest.mark.parametrize("batch", [1, 3])
def test_a_cache_takes_only_the_batch_size_that_it_was_made_for(batch: int) -> None:
    heads, size, length = 2, 4, 16
    cache = [torch.zeros(2, heads, size, length), torch.zeros(2, heads, length, size)]
    fresh = [torch.ones(batch * heads, size, 1), torch.ones(batch * heads, 1, size)]

    with pytest.raises(RuntimeError, match="invalid for input of size"):
        TransformerBackend._update_cache_inplace(SimpleNamespace(), cache, fresh, 0)


def _source(name: str) -> str:
    return (Path(petals.server.__path__[0]) / name).read_text(encoding="utf-8")


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
