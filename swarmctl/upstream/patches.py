"""Every upstream name that swarmctl rebinds, why, and what upstream must change for the entry to go.

Seams that exist come first: sessions go in through `generate(session=…)`, routers through `RemoteSequential`, server
settings through `Server(…)`. What is left is here, and nothing is bound outside `patching.applied`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from swarmctl import tether
from swarmctl.upstream.patching import Patch

_LLAMA, _FALCON = "petals.models.llama.block", "petals.models.falcon.block"
# On a module of Falcon's, beside its own names, so that the graphs live and die with the module.
_GRAPHED = "_swarmctl_graphed"


def daemon_dies_with_us() -> Patch:
    """libp2p's daemon is started through a wrapper that ties its life to the process that started it."""

    def replacement(original: Any) -> Any:
        make = original.__func__

        def make_process_args(*args: Any, **kwargs: Any) -> list[str]:
            return tether.wrap(make(*args, **{**kwargs, "natPortMap": False, "autonat": False}))

        return staticmethod(make_process_args)

    return Patch(
        name="daemon-dies-with-us",
        target="hivemind.p2p.p2p_daemon:P2P._make_process_args",
        replacement=replacement,
        why="p2pd outlives a killed parent and goes on answering the network; it also asks routers for port mappings",
        until="hivemind arms a parent-death signal in p2pd and lets the caller switch NAT mapping off everywhere",
        relies_on={
            "hivemind.p2p.p2p_daemon:P2P._make_process_args": ("884deaf9",),
            "hivemind.p2p.p2p_daemon:P2P._terminate": ("26dc7fa0",),
        },
    )


def sockets_in(folder: Path) -> Patch:
    """libp2p's unix sockets are made in a folder of ours, so that they can be swept after a crash."""
    return Patch(
        name="sockets-in-our-folder",
        target="hivemind.p2p.p2p_daemon:P2P._UNIX_SOCKET_PREFIX",
        replacement=lambda _original: f"/unix{folder}/",
        why="sockets in the shared temporary folder stay behind when a process is killed, and name nobody",
        until="hivemind takes the folder of its sockets as a parameter",
    )


class _Unanswered(dict[Any, Any]):
    """Calls by their id. One whose caller has gone, or has its answer, is not among them."""

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


def late_answers_are_dropped() -> Patch:
    """An answer that meets the cancelling of its call, in the same turn of the event loop, is dropped."""

    def replacement(original: Any) -> Any:
        async def _ensure_persistent_conn(self: Any) -> None:
            self._pending_calls = _Unanswered(self._pending_calls)
            await original(self)

        return _ensure_persistent_conn

    control = "hivemind.p2p.p2p_daemon_bindings.control:ControlClient"
    return Patch(
        name="late-answers-are-dropped",
        target=f"{control}._ensure_persistent_conn",
        replacement=replacement,
        why=(
            "such an answer ends the task that reads all answers: from then on no call of this process is answered, "
            "to whomever it goes; whoever calls with a time limit meets it sooner or later"
        ),
        until="hivemind asks whether a call is still waited for before it sets its answer",
        relies_on={
            f"{control}._ensure_persistent_conn": ("12c1cde1",),
            f"{control}._read_from_persistent_conn": ("4b6868d0",),
            f"{control}.call_unary_handler": ("2c2d6cb1",),
        },
    )


def blocks_are_counted(report: Callable[[int], None]) -> Patch:
    """`report(k)` is called after the server has loaded its k-th block."""

    def replacement(original: Any) -> Any:
        loaded = 0

        def load_pretrained_block(*args: Any, **kwargs: Any) -> Any:
            nonlocal loaded
            block = original(*args, **kwargs)
            loaded += 1
            report(loaded)
            return block

        return load_pretrained_block

    return Patch(
        name="blocks-are-counted",
        target="petals.server.server:load_pretrained_block",
        replacement=replacement,
        why="loading takes minutes for large models and petals tells nobody how far it is",
        until="petals reports its loading progress",
    )


def tasks_are_timed(task: Callable[[object], AbstractContextManager[None]]) -> Patch:
    """`task(runtime)` is entered while that runtime computes one task, on the thread that does."""

    def replacement(original: Any) -> Any:
        def process_batch(self: Any, pool: Any, batch_index: Any, *batch: Any) -> Any:
            with task(self):
                return original(self, pool, batch_index, *batch)

        return process_batch

    return Patch(
        name="tasks-are-timed",
        target="hivemind.moe.server.runtime:Runtime.process_batch",
        replacement=replacement,
        why="a server that is busy and one that hangs look alike from outside: neither answers, and nobody counts",
        until="hivemind's runtime says what it is computing, and since when",
        relies_on={
            "hivemind.moe.server.runtime:Runtime.process_batch": ("5a256a1f",),
            "hivemind.moe.server.runtime:Runtime.run": ("a6832b19",),
            # Its own thread is the one that computes.
            "petals.server.server:ModuleContainer.run": ("2a42271d",),
        },
    )


def nothing_is_compiled() -> Patch:
    """`torch.compile` leaves functions as they are; bound while bitsandbytes is imported, where it is not used."""

    def compile_nothing(function: Any = None, **_settings: Any) -> Any:
        return function if function is not None else lambda later: later

    return Patch(
        name="nothing-is-compiled",
        target="torch:compile",
        replacement=lambda _original: compile_nothing,
        why="bitsandbytes prepares its CPU kernels on import, which loads torch's compiler: half of a server's start",
        until="bitsandbytes prepares its kernels when they are used first, or petals imports it only for quantisation",
    )


def graphs_fit_every_batch(graphed: Callable[[Any], Any]) -> tuple[Patch, ...]:
    """Steps of one token on CUDA use `graphed(function)` where petals replays the graph of the first batch size.

    `graphed` is called once for each function of each block. It returns what is called instead of the function, with
    the same inputs and outputs, and may return the function itself: then there are no graphs.
    """
    return (_llama_graphs(graphed), *_falcon_graphs(graphed))


def _llama_graphs(graphed: Callable[[Any], Any]) -> Patch:
    def replacement(_original: Any) -> Any:
        def make_inference_graphed_callable(callable: Any, sample_args: Any, num_warmup_iters: int = 3) -> Any:
            return graphed(callable)

        return make_inference_graphed_callable

    return Patch(
        name="llama-graphs-fit-every-batch",
        target=f"{_LLAMA}:make_inference_graphed_callable",
        replacement=replacement,
        why=(
            "a Llama block's graphs are recorded at the first batch size it sees, and other sizes fail; in float32 "
            "each step also overwrites the row of the rotary table that was recorded"
        ),
        until="petals records a graph for each batch size, in memory of its own",
        relies_on={
            "petals.utils.cuda_graphs:make_inference_graphed_callable": ("04218a4c",),
            f"{_LLAMA}:OptimizedLlamaAttention._optimized_apply_rotary": ("90e0f044",),
            f"{_LLAMA}:OptimizedLlamaDecoderLayer._optimized_input_layernorm": ("0503a974",),
            f"{_LLAMA}:OptimizedLlamaDecoderLayer._optimized_output_layernorm": ("010e31ad",),
            # When graphs are used, and that outputs are consumed within the block; 2.2.0.post1, 2.3.0.dev2.
            f"{_LLAMA}:OptimizedLlamaAttention.forward": ("495b9180", "42304c0d"),
            f"{_LLAMA}:OptimizedLlamaDecoderLayer.forward": ("aa47c339", "674700a4"),
        },
    )


def _falcon_graphs(graphed: Callable[[Any], Any]) -> tuple[Patch, ...]:
    def rotary(_module: Any) -> Any:
        return importlib.import_module(_FALCON).apply_rotary

    def split(attention: Any) -> Any:
        return attention._split_heads

    def norms(layer: Any) -> Any:
        attention, mlp = layer.ln_attn, layer.ln_mlp
        return lambda hidden: (attention(hidden), mlp(hidden))

    def patch(method: str, function: Callable[[Any], Any], relies_on: dict[str, tuple[str, ...]]) -> Patch:
        return Patch(
            name=f"falcon-graphs-fit-every-batch{method.rpartition('._optimized')[2].replace('_', '-')}",
            target=f"{_FALCON}:{method}",
            replacement=lambda _original: lambda module, *inputs: _kept(module, graphed, function)(*inputs),
            why=(
                "a Falcon block's graphs are recorded at the first batch size it sees, and other sizes fail; each "
                "step also overwrites the row of the rotary table that was recorded"
            ),
            until="petals records a graph for each batch size, in memory of its own",
            relies_on={f"{_FALCON}:{path}": known for path, known in relies_on.items()},
        )

    return (
        patch(
            "OptimizedFalconRotaryEmbedding._optimized_apply_rotary",
            rotary,
            {
                "apply_rotary": ("c6b73271",),
                "OptimizedFalconRotaryEmbedding._optimized_apply_rotary": ("6eb3cb75",),
                "OptimizedFalconRotaryEmbedding.forward": ("983a2b5c",),
            },
        ),
        patch(
            "OptimizedFalconAttention._optimized_split_heads",
            split,
            {
                "split_heads": ("b6d5f584",),
                "OptimizedFalconAttention._optimized_split_heads": ("71317491",),
                "OptimizedFalconAttention.forward": ("a3199b90",),
            },
        ),
        patch(
            "OptimizedFalconDecoderLayer._optimized_apply_ln",
            norms,
            {
                "OptimizedFalconDecoderLayer._optimized_apply_ln": ("77b5bb29",),
                "OptimizedFalconDecoderLayer.forward": ("50c19dfb",),
            },
        ),
    )


def _kept(module: Any, graphed: Callable[[Any], Any], function: Callable[[Any], Any]) -> Any:
    """What `module` keeps instead of its function; made when it is needed first."""
    own = vars(module)
    if _GRAPHED not in own:
        own[_GRAPHED] = graphed(function(module))
    return own[_GRAPHED]


def sessions_are(session: type) -> Patch:
    """`model.inference_session()` of an unchanged program opens our session."""
    return Patch(
        name="sessions-recover",
        target="petals.client.remote_sequential:InferenceSession",
        replacement=lambda _original: session,
        why="petals' session cannot replace a server that died after the first step",
        until="petals' session recovers, or its class can be chosen",
        relies_on={"petals.client.remote_sequential:RemoteSequential.inference_session": ("e99d5bc7",)},
    )


def catalogue() -> tuple[Patch, ...]:
    """All patches, for listing and for checking the installed versions; the replacements in it are never bound."""
    return (
        daemon_dies_with_us(),
        sockets_in(Path("/nonexistent")),
        late_answers_are_dropped(),
        blocks_are_counted(lambda _count: None),
        tasks_are_timed(lambda _runtime: nullcontext()),
        nothing_is_compiled(),
        *graphs_fit_every_batch(lambda function: function),
        sessions_are(object),
    )
