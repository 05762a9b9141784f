"""What the swarm file needs to know of a model, read from its `config.json` without torch and without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_BLOCKS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embed", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
# BLOOM's seq_length is left out on purpose: it says how the model was trained and limits nothing.
_POSITIONS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """The shape of a model. `family` is the checkpoint's `model_type`: llama, bloom, falcon, or another.

    `num_kv_heads` equals `num_heads` where queries share no keys. `max_positions` is None where the model sets no
    limit (BLOOM's ALiBi). `torch_dtype` is the name of the type that the weights are stored in, None if unknown.
    `eos_token_ids` is empty for a model that never ends by itself.
    """

    source: str
    family: str
    num_blocks: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    max_positions: int | None = None
    torch_dtype: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    bos_token_id: int | None = None


def read_profile(source: str) -> ModelProfile | None:
    """The profile of a folder or of a well-known hub name; None for a hub name that is not known here.

    Raises:
        ValueError: `source` is written as a folder and is none, or its `config.json` is missing, broken or lacks
            the model's shape.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _profile_of(source, _read_config(folder / "config.json"))
    if known := _KNOWN.get(source):
        return replace(known, source=source)
    if folder.is_absolute() or source.startswith(("~", ".")):
        raise ValueError(f"there is no folder {folder}")
    return None


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no config.json, so it is no checkpoint") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} holds no mapping, so it is no model configuration")
    if not isinstance(raw.get("model_type"), str):
        raise ValueError(f"{path} names no model_type")
    return raw


def _profile_of(source: str, raw: Mapping[str, Any]) -> ModelProfile:
    heads = _count(source, raw, _HEADS)
    return ModelProfile(
        source=source,
        family=raw["model_type"],
        num_blocks=_count(source, raw, _BLOCKS),
        hidden_size=_count(source, raw, _HIDDEN),
        num_heads=heads,
        num_kv_heads=_kv_heads(source, raw, heads),
        vocab_size=_count(source, raw, ("vocab_size",)),
        max_positions=_count(source, raw, _POSITIONS) if _first(raw, _POSITIONS) is not None else None,
        torch_dtype=_dtype(raw),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
        pad_token_id=_token_id(raw.get("pad_token_id")),
        bos_token_id=_token_id(raw.get("bos_token_id")),
    )


def _kv_heads(source: str, raw: Mapping[str, Any], heads: int) -> int:
    # transformers ignores Falcon's num_kv_heads unless the checkpoint has the newer decoder.
    if raw["model_type"] == "falcon" and not raw.get("new_decoder_architecture", False):
        return 1 if raw.get("multi_query", True) else heads
    return _count(source, raw, _KV_HEADS) if _first(raw, _KV_HEADS) is not None else heads


def _first(raw: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _count(source: str, raw: Mapping[str, Any], names: Sequence[str]) -> int:
    value = _first(raw, names)
    where = f"the config.json of {source}"
    if value is None:
        raise ValueError(f"{where} has no {names[0]}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where} gives {value!r} for {names[0]}, which is no positive whole number")
    return value


def _dtype(raw: Mapping[str, Any]) -> str | None:
    # transformers renamed the key in its fifth version.
    value = raw.get("torch_dtype") or raw.get("dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


def _token_id(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _token_ids(value: Any) -> tuple[int, ...]:
    found = (_token_id(item) for item in (value if isinstance(value, list) else [value]))
    return tuple(item for item in found if item is not None)


_LLAMA_2_70B = ModelProfile(
    source="",
    family="llama",
    num_blocks=80,
    hidden_size=8192,
    num_heads=64,
    num_kv_heads=8,
    vocab_size=32000,
    max_positions=4096,
    eos_token_ids=(2,),
    bos_token_id=1,
)
_BLOOM = ModelProfile(
    source="",
    family="bloom",
    num_blocks=70,
    hidden_size=14336,
    num_heads=112,
    num_kv_heads=112,
    vocab_size=250880,
    eos_token_ids=(2,),
    pad_token_id=3,
    bos_token_id=1,
)
_FALCON_40B = ModelProfile(
    source="",
    family="falcon",
    num_blocks=60,
    hidden_size=8192,
    num_heads=128,
    num_kv_heads=8,
    vocab_size=65024,
    max_positions=2048,
    torch_dtype="bfloat16",
    eos_token_ids=(11,),
    bos_token_id=11,
)

# The shapes that the models' cards and config.json files on the hub give.
_KNOWN: Mapping[str, ModelProfile] = {
    "petals-team/StableBeluga2": _LLAMA_2_70B,
    "stabilityai/StableBeluga2": _LLAMA_2_70B,
    "meta-llama/Llama-2-70b-hf": replace(_LLAMA_2_70B, torch_dtype="float16"),
    "meta-llama/Llama-2-70b-chat-hf": replace(_LLAMA_2_70B, torch_dtype="float16"),
    "bigscience/bloom": _BLOOM,
    "bigscience/bloomz": _BLOOM,
    "bigscience/bloom-560m": replace(_BLOOM, num_blocks=24, hidden_size=1024, num_heads=16, num_kv_heads=16),
    "bigscience/bloom-7b1": replace(_BLOOM, num_blocks=30, hidden_size=4096, num_heads=32, num_kv_heads=32),
    "tiiuae/falcon-40b": _FALCON_40B,
    "tiiuae/falcon-40b-instruct": _FALCON_40B,
}
