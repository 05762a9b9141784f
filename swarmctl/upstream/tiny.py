"""Small random checkpoints in the shape of StableBeluga2 (Llama 2) and of BLOOM, for tests and for trying things out.

The weights are random but not arbitrary: attention is sharp and strong enough that the next token depends on the
whole text, so greedy output neither repeats one token nor hinges on the last bit of a logit. Every tensor is drawn
from its own name and the seed: the same shape gives the same bytes. Neither torch nor transformers is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from swarmctl.models.cache import MARK, building
from swarmctl.models.tiny import HEADS_PER_KV_HEAD, TinyShape
from swarmctl.upstream.checkpoint import Array, ShardWriter, write_settings
from swarmctl.upstream.tokenizer import SPACE, Roles, Vocabulary, byte_alphabet, learn_merges, write_tokenizer

__all__ = ["TinyShape", "origin_of", "write_tiny"]

# Changes with whatever changes the bytes that a shape gives.
_RECIPE = "1"
_PAD = "<pad>"
# Large against float32 noise: two logits closer than it hardly ever lead.
_LOGIT_SPREAD = 6.0
_TEXT = """
The swarm keeps its blocks on many machines, and each machine serves a span of them. A client sends the hidden
states of its tokens through every span in order, and the last one gives them back to the head, which names the next
token. When a server is lost, another one that holds the same blocks takes its place. The client still has what it
sent before, so it can send the history again, and the new server builds the same cache that the old one had. After
that the step goes on as if nothing had happened. An operator wants to know which blocks are held only once, what may
be taken away without a gap, and how long a pause the users will see. It is good to practise this on small models
with random weights: they load in a moment, they need no network, and their words mean nothing at all. There is a
first time for each thing that can break, and it should come on a quiet morning with all the people at their desks.
"""


def write_tiny(shape: TinyShape, folder: Path) -> Path:
    """Write a checkpoint of `shape` and return `folder`, which holds the old or the whole new one at any time.

    Raises:
        Refused: when `folder` holds something that swarmctl did not make; nothing is changed.
    """
    with building(folder, origin=origin_of(shape)) as partial:
        _fill(shape, partial)
    return folder


def origin_of(shape: TinyShape) -> dict[str, str]:
    """What the manifest says of a checkpoint of this shape."""
    return {"tiny": _RECIPE, **{name: str(value) for name, value in asdict(shape).items()}}


def _fill(shape: TinyShape, folder: Path) -> None:
    vocabulary = _vocabulary(shape.vocab_size)
    shards = list(_llama(shape) if shape.family == "llama" else _bloom(shape))
    # Only tokens that print may be chosen often, so that the output is letters on every terminal.
    quiet = np.array([not _prints(token) for token in vocabulary.tokens])
    head = shards[-1].get("lm_head.weight", shards[0].get("word_embeddings.weight"))
    assert head is not None
    head[quiet] *= 0.05

    writer = ShardWriter(folder, len(shards))
    for shard in shards:
        writer.write(shard)
    writer.finish()
    write_settings(folder / "config.json", _config(shape))
    write_settings(folder / "generation_config.json", {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0})
    write_tokenizer(folder, vocabulary, Roles(pad=_PAD), max_length=shape.max_positions)


def _vocabulary(size: int) -> Vocabulary:
    """Padding, the 256 bytes, what `_TEXT` teaches, and numbered words that no text is ever split into."""
    base = (_PAD, *byte_alphabet())
    merges = learn_merges(_TEXT, size - len(base))
    learnt = tuple(dict.fromkeys(left + right for left, right in merges))
    filler = tuple(f"{SPACE}w{number}" for number in range(len(base) + len(learnt), size))
    return Vocabulary(tokens=(*base, *learnt, *filler), merges=merges, special=(_PAD,))


def _prints(token: str) -> bool:
    letters = token.replace(SPACE, "")
    return token != _PAD and letters.isascii() and letters.isprintable()


def _config(shape: TinyShape) -> dict[str, object]:
    common: dict[str, object] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "torch_dtype": "float32",
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        MARK: {"tiny": asdict(shape)},
    }
    if shape.family == "llama":
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": shape.blocks,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.inner_size,
            "max_position_embeddings": shape.max_positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            **common,
        }
    return {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "n_layer": shape.blocks,
        "n_head": shape.heads,
        "seq_length": shape.max_positions,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "apply_residual_connection_post_layernorm": False,
        "slow_but_exact": False,
        "pretraining_tp": 1,
        **common,
    }


def _draw(shape: TinyShape, name: str, *size: int) -> Array:
    """Standard normal numbers [*size] that depend on seed and name alone."""
    digest = hashlib.sha256(f"{shape.seed}/{name}".encode()).digest()
    # RandomState's stream is frozen; that of numpy's newer generators may change with a release
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4")).standard_normal(size)


def _matrix(shape: TinyShape, name: str, rows: int, columns: int, gain: float) -> Array:
    """[rows, columns], float32; maps inputs of variance 1 to outputs of standard deviation `gain`."""
    return (_draw(shape, name, rows, columns) * gain / np.sqrt(columns)).astype(np.float32)


def _norm(shape: TinyShape, name: str) -> Array:
    return (1 + 0.1 * _draw(shape, name, shape.hidden_size)).astype(np.float32)


def _bias(shape: TinyShape, name: str, size: int) -> Array:
    return (0.1 * _draw(shape, name, size)).astype(np.float32)


def _llama(shape: TinyShape) -> Iterator[dict[str, Array]]:
    hidden, inner, kv = shape.hidden_size, shape.inner_size, shape.hidden_size // HEADS_PER_KV_HEAD
    matrices = {
        "self_attn.q_proj": (hidden, hidden, 2.0),
        "self_attn.k_proj": (kv, hidden, 2.0),
        "self_attn.v_proj": (kv, hidden, 1.0),
        "self_attn.o_proj": (hidden, hidden, 1.0),
        "mlp.gate_proj": (inner, hidden, 1.0),
        "mlp.up_proj": (inner, hidden, 1.0),
        "mlp.down_proj": (hidden, inner, 1.0),
    }
    name = "model.embed_tokens.weight"
    yield {name: _matrix(shape, name, shape.vocab_size, hidden, np.sqrt(hidden))}
    for block in range(shape.blocks):
        prefix = f"model.layers.{block}"
        shard = {f"{prefix}.{key}.weight": size for key, size in matrices.items()}
        norms = [f"{prefix}.{key}.weight" for key in ("input_layernorm", "post_attention_layernorm")]
        yield {
            **{name: _matrix(shape, name, *size) for name, size in shard.items()},
            **{name: _norm(shape, name) for name in norms},
        }
    name = "lm_head.weight"
    head = _matrix(shape, name, shape.vocab_size, hidden, _LOGIT_SPREAD)
    yield {name: head, "model.norm.weight": _norm(shape, "model.norm.weight")}


def _bloom(shape: TinyShape) -> Iterator[dict[str, Array]]:
    hidden = shape.hidden_size
    layers = {
        "self_attention.dense": (hidden, hidden, 1.5),
        "mlp.dense_h_to_4h": (4 * hidden, hidden, 1.0),
        "mlp.dense_4h_to_h": (hidden, 4 * hidden, 1.0),
    }
    name = "word_embeddings.weight"
    words = _matrix(shape, name, shape.vocab_size, hidden, _LOGIT_SPREAD)
    yield {name: words, **_layer_norm(shape, "word_embeddings_layernorm")}
    for block in range(shape.blocks):
        fused = f"h.{block}.self_attention.query_key_value"
        shard = {f"{fused}.weight": _bloom_qkv(shape, fused), f"{fused}.bias": _bias(shape, fused, 3 * hidden)}
        for key, (rows, columns, gain) in layers.items():
            name = f"h.{block}.{key}"
            shard[f"{name}.weight"] = _matrix(shape, f"{name}.weight", rows, columns, gain)
            shard[f"{name}.bias"] = _bias(shape, f"{name}.bias", rows)
        for key in ("input_layernorm", "post_attention_layernorm"):
            shard.update(_layer_norm(shape, f"h.{block}.{key}"))
        yield shard if block else _echo(shape, shard)
    last = _layer_norm(shape, "ln_f")
    # The head is the embedding, so a token in the residual stream would call itself; negated, it is held back.
    last["ln_f.weight"] *= -1
    yield last


def _bloom_qkv(shape: TinyShape, name: str) -> Array:
    """[heads × (query, key, value) × head width, hidden_size], in the order in which BLOOM fuses them."""
    gains = {"query": 2.0, "key": 2.0, "value": 1.5}
    size = (shape.heads, 1, shape.hidden_size // shape.heads, shape.hidden_size)
    parts = [
        _matrix(shape, f"{name}.{part}", shape.hidden_size, shape.hidden_size, gain).reshape(size)
        for part, gain in gains.items()
    ]
    return np.concatenate(parts, axis=1).reshape(3 * shape.hidden_size, shape.hidden_size)


def _echo(shape: TinyShape, shard: dict[str, Array]) -> dict[str, Array]:
    """Block 0 with attention that copies what it attends to, so that the head holds back recent tokens.

    ALiBi prefers the last few tokens so much that random blocks alone run into short loops.
    """
    hidden, heads = shape.hidden_size, shape.heads
    echoing = {name: tensor.copy() for name, tensor in shard.items()}
    copy = 4 * np.eye(hidden, dtype=np.float32)
    fused = echoing["h.0.self_attention.query_key_value.weight"].reshape(heads, 3, hidden // heads, hidden)
    fused[:, :2] /= 2
    fused[:, 2] = copy.reshape(heads, hidden // heads, hidden)
    echoing["h.0.self_attention.dense.weight"] = copy
    return echoing


def _layer_norm(shape: TinyShape, name: str) -> dict[str, Array]:
    return {
        f"{name}.weight": _norm(shape, f"{name}.weight"),
        f"{name}.bias": _bias(shape, f"{name}.bias", shape.hidden_size),
    }
