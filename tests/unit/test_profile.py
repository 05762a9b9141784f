from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarmctl.models.profile import ModelProfile, read_profile

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BLOOM = {
    "model_type": "bloom",
    "n_layer": 24,
    "n_embed": 1024,
    "num_attention_heads": 16,
    "vocab_size": 250880,
    "seq_length": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
FALCON = {
    "model_type": "falcon",
    "num_hidden_layers": 60,
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "vocab_size": 65024,
}


def checkpoint(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_llama_folder_is_read_with_its_grouped_queries(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, LLAMA)
    assert read_profile(source) == ModelProfile(
        source=source,
        family="llama",
        num_blocks=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        vocab_size=49152,
        max_positions=8192,
        torch_dtype="bfloat16",
        eos_token_ids=(2,),
        pad_token_id=0,
        bos_token_id=1,
    )


@pytest.mark.parametrize("names", [{}, {"hidden_size": 1024, "n_embed": None}, {"n_embd": 1024, "n_embed": None}])
@pytest.mark.parametrize("heads", [{}, {"n_head": 16, "num_attention_heads": None}])
def test_a_bloom_folder_is_read_by_either_of_its_names(
    tmp_path: Path, names: dict[str, Any], heads: dict[str, Any]
) -> None:
    profile = read_profile(checkpoint(tmp_path, {**BLOOM, **names, **heads}))
    assert profile is not None
    assert (profile.family, profile.num_blocks, profile.hidden_size) == ("bloom", 24, 1024)
    assert (profile.num_heads, profile.num_kv_heads) == (16, 16)
    assert profile.max_positions is None, "ALiBi sets no limit"
    assert profile.torch_dtype is None


@pytest.mark.parametrize(
    ("extra", "kv_heads"),
    [({"new_decoder_architecture": True}, 8), ({"multi_query": True}, 1), ({"multi_query": False}, 128), ({}, 1)],
)
def test_falcon_shares_keys_as_its_decoder_does(tmp_path: Path, extra: dict[str, Any], kv_heads: int) -> None:
    profile = read_profile(checkpoint(tmp_path, {**FALCON, **extra}))
    assert profile is not None
    assert profile.num_kv_heads == kv_heads


@pytest.mark.parametrize(("written", "ids"), [(None, ()), (2, (2,)), ([2, 32000], (2, 32000)), ([], ())])
def test_a_model_may_end_with_none_one_or_several_tokens(tmp_path: Path, written: Any, ids: tuple[int, ...]) -> None:
    profile = read_profile(checkpoint(tmp_path, {**LLAMA, "eos_token_id": written, "pad_token_id": -1}))
    assert profile is not None
    assert profile.eos_token_ids == ids
    assert profile.pad_token_id is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("petals-team/StableBeluga2", ("llama", 80, 8192, 64, 8)),
        ("stabilityai/StableBeluga2", ("llama", 80, 8192, 64, 8)),
        ("meta-llama/Llama-2-70b-hf", ("llama", 80, 8192, 64, 8)),
        ("meta-llama/Llama-2-70b-chat-hf", ("llama", 80, 8192, 64, 8)),
        ("bigscience/bloom", ("bloom", 70, 14336, 112, 112)),
        ("bigscience/bloomz", ("bloom", 70, 14336, 112, 112)),
        ("bigscience/bloom-560m", ("bloom", 24, 1024, 16, 16)),
        ("bigscience/bloom-7b1", ("bloom", 30, 4096, 32, 32)),
        ("tiiuae/falcon-40b", ("falcon", 60, 8192, 128, 8)),
    ],
)
def test_a_well_known_hub_name_needs_no_network(name: str, shape: tuple[str, int, int, int, int]) -> None:
    profile = read_profile(name)
    assert profile is not None
    assert profile.source == name
    found = (profile.family, profile.num_blocks, profile.hidden_size, profile.num_heads, profile.num_kv_heads)
    assert found == shape


def test_an_unknown_hub_name_has_no_profile() -> None:
    assert read_profile("somebody/some-model") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON: Expecting property name .* in line 1"),
        ("[]", "holds no mapping"),
        ("{}", "names no model_type"),
        (b"\xff", "cannot be read"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_hidden_layers": 0}, "gives 0 for num_hidden_layers, which is no positive whole number"),
        ({"num_attention_heads": "9"}, "gives '9' for num_attention_heads"),
        ({"vocab_size": True}, "gives True for vocab_size"),
    ],
)
def test_a_broken_configuration_is_refused_with_its_fault(tmp_path: Path, content: Any, problem: str) -> None:
    text = json.dumps({**LLAMA, **content}) if isinstance(content, dict) else content
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=problem):
        read_profile(str(tmp_path))


def test_a_folder_without_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json, so it is no checkpoint"):
        read_profile(str(tmp_path))
    with pytest.raises(ValueError, match="there is no folder"):
        read_profile(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="there is no folder"):
        read_profile("./absent")
