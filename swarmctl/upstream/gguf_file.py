"""Reads GGUF files: the metadata as plain values, and tensors one at a time, dequantised.

The header is parsed here, since `gguf.GGUFReader` spends most of an import on it (six seconds for 98,000 strings);
the formats of the numbers are left to `gguf.quants`.
"""

from __future__ import annotations

import importlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swarmctl.errors import SwarmctlError, UpstreamMissing
from swarmctl.upstream.checkpoint import Array

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# The format's number of each scalar type → numpy's name for it.
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Where a tensor is. `shape` is in PyTorch's order ([out, in]); `offset` counts from the file's start."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """One file, mapped into memory; `fields` are its metadata: str, int, float, bool, or tuples of them.

    Raises:
        SwarmctlError: when it is no GGUF file of version 2 or 3, or is cut off within its header.
        UpstreamMissing: when the package gguf is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._gguf = importlib.import_module("gguf")
            self._quants = importlib.import_module("gguf.quants")
        except ImportError as error:
            raise UpstreamMissing(
                "gguf is not installed", reasons=(str(error),), hints=("pip install gguf",)
            ) from error
        self._path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.fields, self._entries = _Parser(self._data).parse()
        except (ValueError, struct.error, KeyError, OverflowError, OSError) as error:
            raise SwarmctlError(f"{path} is no GGUF file, or a broken one", reasons=(str(error),)) from error

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor, by name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> Array:
        """The tensor, float32, in PyTorch's order.

        Raises:
            SwarmctlError: when the file ends before the tensor does, or its numbers have a format that is not known.
        """
        entry = self._entries[name]
        try:
            kind = self._gguf.GGMLQuantizationType(entry.kind)
            numbers, size_bytes = self._gguf.GGML_QUANT_SIZES[kind]
            row_bytes = entry.shape[-1] // numbers * size_bytes
            rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
            raw = np.frombuffer(self._data, np.uint8, count=rows * row_bytes, offset=entry.offset)
            weights: Array = self._quants.dequantize(raw.reshape(rows, row_bytes), kind)
            return weights.reshape(entry.shape)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise SwarmctlError(f"{name} in {self._path} cannot be read", reasons=(str(error),)) from error


class _Parser:
    """Walks through the header once."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, _Entry]]:
        magic, version, tensors, fields = self._unpack("<4sIQQ")
        if magic != b"GGUF" or version not in _VERSIONS:
            raise ValueError(f"it begins with {magic!r} and version {version}")
        found = {self._string(): self._value(*self._unpack("<I")) for _ in range(fields)}
        listed = [(self._string(), self._tensor()) for _ in range(tensors)]
        alignment = int(found.get("general.alignment", _DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        entries = {
            name: _Entry(shape=shape, kind=kind, offset=start + offset) for name, (shape, kind, offset) in listed
        }
        return found, entries

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        text = self._data[self._at : self._at + length]
        if len(text) < length:
            raise ValueError("it is cut off")
        self._at += length
        return text.decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> tuple[Any, ...]:
        kind, length = self._unpack("<IQ")
        if kind in _SCALARS:
            return tuple(self._numbers(kind, length))
        return tuple(self._value(kind) for _ in range(length))

    def _numbers(self, kind: int, count: int) -> list[Any]:
        values = np.frombuffer(self._data, _SCALARS[kind], count=count, offset=self._at)
        self._at += values.nbytes
        return list(values.tolist())

    def _tensor(self) -> tuple[tuple[int, ...], int, int]:
        (dimensions,) = self._unpack("<I")
        shape = self._unpack(f"<{dimensions}Q")
        kind, offset = self._unpack("<IQ")
        return tuple(reversed(shape)), kind, offset
