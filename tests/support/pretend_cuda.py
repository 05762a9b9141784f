"""CUDA graphs on a CPU: `torch.cuda`'s names for them, with what they promise.

A recording computes nothing. A replay runs the recorded operations again, on the memory that they had when they were
recorded, whatever the program's variables point to by then. Streams exist, and only say which one is current.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class PretendGraph:
    """`torch.cuda.CUDAGraph`: operations with the tensors that they take and make."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def replay(self) -> None:
        for operation, args, kwargs, made in self.steps:
            again = operation(*args, **kwargs)
            for kept, new in zip(_tensors(made), _tensors(again), strict=True):
                # A view needs no kernel, and an operation in place has done its work.
                if kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: PretendGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_place = operation._schema.is_mutable
        made = args[0] if in_place else operation(*args, **(kwargs or {}))
        self._graph.steps.append((operation, args, kwargs or {}, made))
        given = {each.untyped_storage().data_ptr() for each in _tensors(args)}
        for each in _tensors(made):
            if not in_place and each.is_floating_point() and each.untyped_storage().data_ptr() not in given:
                each.fill_(float("nan"))
        return made


class PretendStream:
    """`torch.cuda.Stream`."""

    def __init__(self, *_args: object) -> None:
        self.waited_for: list[PretendStream] = []

    def wait_stream(self, other: PretendStream) -> None:
        self.waited_for.append(other)


class PretendCuda:
    """What was recorded, in which pools, and which stream is current. `broken`: recordings fail at their end."""

    def __init__(self) -> None:
        self.default = PretendStream()
        self.current = self.default
        self.pools: list[object] = []
        self.graphs: list[PretendGraph] = []
        self.broken = False

    @contextmanager
    def stream(self, stream: PretendStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(
        self,
        graph: PretendGraph,
        pool: object = None,
        stream: PretendStream | None = None,
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        """As torch's: when a recording cannot be ended, its stream stays the current one."""
        assert capture_error_mode in ("global", "thread_local", "relaxed")
        before, self.current = self.current, stream or PretendStream()
        with _Recorder(graph):
            yield
        if self.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.current = before
        self.pools.append(pool)
        self.graphs.append(graph)


def install(monkeypatch: pytest.MonkeyPatch) -> PretendCuda:
    """Binds the pretence to `torch.cuda` until the test is over."""
    cuda = PretendCuda()

    def no_device(_device: object) -> AbstractContextManager[None]:
        return nullcontext()

    names: dict[str, Any] = {
        "CUDAGraph": PretendGraph,
        "Stream": PretendStream,
        "stream": cuda.stream,
        "graph": cuda.graph,
        "current_stream": lambda _device=None: cuda.current,
        "device": no_device,
        "graph_pool_handle": object,
    }
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return cuda


def take_cpu_for_cuda(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., Any]) -> None:
    """Lets functions that ask whether a tensor is on `cuda` ask for `cpu`; nothing else of them changes."""
    for function in functions:
        assert isinstance(function, types.FunctionType)
        code = function.__code__
        assert code.co_consts.count("cuda") == 1
        changed = tuple("cpu" if constant == "cuda" else constant for constant in code.co_consts)
        monkeypatch.setattr(function, "__code__", code.replace(co_consts=changed))


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [each for value in values for each in _tensors(value)]
    return []
