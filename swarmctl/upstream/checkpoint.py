"""A checkpoint folder written shard by shard, so that no more than one shard is ever in memory.

model-00001-of-00008.safetensors    embeddings
model-00002-of-00008.safetensors    block 0, and so on: a server opens only the shards of its blocks
model-00008-of-00008.safetensors    final norm and head
model.safetensors.index.json        which tensor is in which shard
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
from safetensors.numpy import save_file

Array: TypeAlias = npt.NDArray[Any]
INDEX_NAME = "model.safetensors.index.json"


class ShardWriter:
    """Writes `count` shards into an existing folder, then the index.

    Arrays are written as they are: C-contiguous, float32 or float16, in PyTorch's orientation ([out, in]).
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._written = 0
        self._size_bytes = 0
        self._shard_of: dict[str, str] = {}

    def write(self, tensors: Mapping[str, Array]) -> None:
        """Write the next shard.

        Raises:
            ValueError: when all shards are written, or a tensor is already in an earlier one.
        """
        if self._written == self._count:
            raise ValueError(f"all {self._count} shards are written")
        if repeated := sorted(self._shard_of.keys() & tensors.keys()):
            raise ValueError(f"{repeated[0]} is in two shards")
        self._written += 1
        name = f"model-{self._written:05}-of-{self._count:05}.safetensors"
        # transformers refuses safetensors files that do not say which framework's layout they hold
        save_file(dict(tensors), self._folder / name, metadata={"format": "pt"})
        # safetensors makes files that only their owner can read; nodes may run under another account
        (self._folder / name).chmod(0o644)
        self._size_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._shard_of.update(dict.fromkeys(tensors, name))

    def finish(self) -> None:
        """Write the index.

        Raises:
            ValueError: when a shard is missing.
        """
        if self._written != self._count:
            raise ValueError(f"{self._written} of {self._count} shards are written")
        index = {
            "metadata": {"total_size": self._size_bytes},
            "weight_map": {tensor: self._shard_of[tensor] for tensor in sorted(self._shard_of)},
        }
        write_settings(self._folder / INDEX_NAME, index)


def write_settings(path: Path, value: Mapping[str, object]) -> None:
    """Write one of the checkpoint's JSON files, in the order of `value`."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
