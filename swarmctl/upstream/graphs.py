"""CUDA graphs for functions that meet more than one shape: one graph for each, and a bounded number of them.

A CUDA graph is a list of kernels that is recorded once and replayed on the memory it was recorded with; that saves
the launches, which for one token cost more than the arithmetic. petals records one graph a function, at the first
batch size that a block sees, and copies all later inputs into that one's memory.

    inputs ─▶ shapes known? ─ yes ──────▶ copied in ─▶ replay ─▶ outputs
                  └─ no ─▶ room? ─ yes ─▶ recorded ─┘
                             └─ no, too large, or not to be recorded ─▶ the function itself
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

logger = logging.getLogger(__name__)

Outputs: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
Function: TypeAlias = Callable[..., Outputs]
Work: TypeAlias = Callable[[], None]
Record: TypeAlias = Callable[[Work, torch.device], Work]
"""Records work on a device and returns its replay, which does the same on the same memory. It may do the work several
times, or not at all, before it returns. Raises RuntimeError when the work cannot be recorded."""

_GRAPHS = 8
# 28 rows of StableBeluga2's widest function in float16. Above that a launch is small against the arithmetic, and
# 8 graphs for each of 3 functions of 40 blocks would hold more than a GiB.
_INPUT_BYTES = 512 * 1024
_PATIENCE = 64
# torch's own advice: libraries set themselves up in the first calls, which must not end up in a graph.
_WARM_UPS = 3


class Graphed:
    """`function`, replayed from a graph of its own for each combination of shapes, types and device of its inputs.

    Only in inference mode; otherwise, with autocast, or with more than `max_bytes` of inputs the function itself is
    called, and likewise for shapes that could not be recorded. At most `limit` combinations are kept, those used most
    recently; once there are so many, a new one is computed by the function itself until it was asked for `patience`
    times, because recording at every step would cost more than graphs save.

    As with petals' graphs, an output is valid until the next call with the same shapes, which overwrites it. Inputs
    are copied and never written to. Not for several threads at once; not shared between functions.
    """

    def __init__(
        self,
        function: Function,
        record: Record,
        *,
        limit: int = _GRAPHS,
        max_bytes: int = _INPUT_BYTES,
        patience: int = _PATIENCE,
    ) -> None:
        self._function, self._record = function, record
        self._limit, self._max_bytes, self._patience = limit, max_bytes, patience
        # In the order of their last use.
        self._known: dict[tuple[Any, ...], Function] = {}
        self._asked: Counter[tuple[Any, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        """What `function(*inputs)` returns, a tensor or a tuple of tensors."""
        if not self._may_be_recorded(inputs):
            return self._function(*inputs)
        signature = tuple((each.shape, each.dtype, each.device) for each in inputs)
        if signature not in self._known and not self._has_room(signature):
            return self._function(*inputs)
        compute = self._known.pop(signature, None) or self._recorded(inputs)
        self._known[signature] = compute
        return compute(*inputs)

    def _may_be_recorded(self, inputs: tuple[torch.Tensor, ...]) -> bool:
        # A graph has no gradient, and autocast's cached weights would not outlive the recording.
        if not torch.is_inference_mode_enabled() or torch.is_autocast_enabled():
            return False
        return sum(each.numel() * each.element_size() for each in inputs) <= self._max_bytes

    def _has_room(self, signature: tuple[Any, ...]) -> bool:
        if len(self._known) < self._limit:
            return True
        self._asked[signature] += 1
        if self._asked[signature] < self._patience:
            return False
        self._asked.clear()
        del self._known[next(iter(self._known))]
        return True

    def _recorded(self, inputs: tuple[torch.Tensor, ...]) -> Function:
        try:
            return _Recording(self._function, inputs, self._record)
        except RuntimeError as error:
            shapes = ", ".join(str(list(each.shape)) for each in inputs)
            logger.warning("no CUDA graph for inputs of %s, which are computed without: %s", shapes, error)
            return self._function


class _Recording:
    """A function at fixed shapes, with memory of its own for what goes in and what comes out."""

    def __init__(self, function: Function, inputs: tuple[torch.Tensor, ...], record: Record) -> None:
        self._function = function
        # The caller's own memory would be overwritten by later inputs; rotary tables are passed as views.
        self._inputs = tuple(each.clone() for each in inputs)
        sample = function(*self._inputs)
        self._is_single = isinstance(sample, torch.Tensor)
        # Outside the graph's memory, so that graphs which share theirs do not overwrite each other's outputs.
        self._outputs = tuple(torch.empty_like(each) for each in _listed(sample))
        self._replay = record(self._compute, inputs[0].device)

    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given)
        self._replay()
        outputs = tuple(each.detach() for each in self._outputs)
        return outputs[0] if self._is_single else outputs

    def _compute(self) -> None:
        for kept, made in zip(self._outputs, _listed(self._function(*self._inputs)), strict=True):
            kept.copy_(made)


def _listed(outputs: Outputs) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs


@dataclass(frozen=True, kw_only=True)
class _Arena:
    """Where the graphs of one device are recorded, and the memory that they share for what they compute in between.

    torch forgets a pool when its last graph goes, and refuses to use it again; `anchor` is a graph that stays.
    """

    stream: Any
    pool: Any
    anchor: Any


class CudaRecorder:
    """Records work as CUDA graphs. All graphs of one recorder share one memory pool a device.

    That is safe only for work whose results are outside the pool, and for replays that do not overlap: on one
    stream a device, which is what a petals server has.
    """

    def __init__(self) -> None:
        self._arenas: dict[torch.device, _Arena] = {}
        # torch records one graph at a time.
        self._lock = threading.Lock()

    def __call__(self, work: Work, device: torch.device) -> Work:
        """See `Record`."""
        # The inner context puts the stream back, which torch leaves behind when a recording fails at its end.
        with self._lock, torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            if device not in self._arenas:
                self._arenas[device] = _open_arena(device)
            arena = self._arenas[device]
            replay: Work = _graph_of(work, arena.stream, arena.pool).replay
            return replay


def _open_arena(device: torch.device) -> _Arena:
    stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
    number = torch.zeros(1, device=device)
    return _Arena(stream=stream, pool=pool, anchor=_graph_of(lambda: number.add_(1), stream, pool))


def _graph_of(work: Callable[[], object], stream: Any, pool: Any) -> Any:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate meanwhile; by default that would fail there, and here.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


def by_shape() -> Callable[[Function], Function]:
    """Makes `Graphed` functions that share one recorder; for one process."""
    record = CudaRecorder()
    return lambda function: Graphed(function, record)


def eager(function: Function) -> Function:
    """The function itself, for a server without graphs."""
    return function
