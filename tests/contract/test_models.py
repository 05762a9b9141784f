"""The tiny checkpoints that swarmctl makes, held against transformers and petals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import TEXTS, files_of, load
from transformers import AutoTokenizer

from swarmctl.errors import Refused, RequestInvalid
from swarmctl.models.profile import read_profile
from swarmctl.models.tiny import FAMILIES
from swarmctl.operations.models import make_tiny
from swarmctl.upstream.compat import import_petals
from swarmctl.upstream.tiny import TinyShape, write_tiny

pytestmark = pytest.mark.timeout(120)

PROMPTS = ("The swarm", "A client sends hidden states to every server", "42", "naïve 漢字 🙂")
GREEDY_TOKENS = 40
SPOILED_AFTER = 5


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that share a tiny product wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Greedy tokens, and the logits [tokens, vocab] that each was taken from."""

    prompt: torch.Tensor
    ids: list[int]
    logits: torch.Tensor


def greedy(model: Any, prompt: torch.Tensor, count: int, *, spoil: Callable[[Any], Any] | None = None) -> Run:
    """`count` greedy tokens, one forward each; `spoil` changes the cache after `SPOILED_AFTER`."""
    ids, logits, past, step = [], [], None, prompt
    with torch.inference_mode():
        for number in range(count):
            if spoil is not None and number == SPOILED_AFTER:
                past = spoil(past)
            out = model(step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits.append(out.logits[0, -1])
            ids.append(int(logits[-1].argmax()))
            step = torch.tensor([ids[-1:]])
    return Run(prompt=prompt, ids=ids, logits=torch.stack(logits))


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(TinyShape(family=request.param), tmp_path_factory.mktemp("tiny") / request.param)


@pytest.fixture(scope="module")
def tiny_model(tiny: Path) -> Any:
    return load(tiny)


@pytest.fixture(scope="module")
def runs(tiny: Path, tiny_model: Any) -> list[Run]:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]
    return [greedy(tiny_model, prompt, GREEDY_TOKENS) for prompt in prompts]


def test_a_tiny_model_is_small_and_has_the_shape_of_its_family(tiny: Path) -> None:
    profile = read_profile(str(tiny))

    assert profile is not None
    assert (profile.family, profile.num_blocks, profile.hidden_size) == (tiny.name, 6, 128)
    assert profile.num_kv_heads == (2 if tiny.name == "llama" else 16)
    assert profile.eos_token_ids == ()
    assert sum(len(content) for content in files_of(tiny).values()) < 8_000_000


def test_a_tiny_models_greedy_output_is_varied_and_its_choices_are_clear(runs: list[Run]) -> None:
    for run in runs:
        best = run.logits.topk(2).values

        assert len(set(run.ids)) >= 25
        assert float((best[:, 0] - best[:, 1]).min()) > 1e-3


def test_a_tiny_models_logits_differ_by_noise_only_between_one_pass_and_many(tiny_model: Any, runs: list[Run]) -> None:
    for run in runs:
        whole = torch.cat([run.prompt, torch.tensor([run.ids])], dim=1)
        with torch.inference_mode():
            at_once = tiny_model(whole).logits[0, run.prompt.shape[1] - 1 : -1]

        assert float((at_once - run.logits).abs().max()) < 1e-4


def test_a_wrong_cache_in_any_block_of_a_tiny_model_changes_the_tokens(tiny_model: Any, runs: list[Run]) -> None:
    def without(block: int) -> Callable[[Any], Any]:
        return lambda past: tuple(
            tuple(torch.zeros_like(part) if number == block else part for part in pair)
            for number, pair in enumerate(past)
        )

    undisturbed = runs[1].ids[:20]
    for block in range(6):
        ids = greedy(tiny_model, runs[1].prompt, 20, spoil=without(block)).ids
        assert ids[:SPOILED_AFTER] == undisturbed[:SPOILED_AFTER]
        assert ids != undisturbed, f"block {block}'s cache does not matter"


def test_generation_with_a_tiny_model_ends_only_at_its_limit(tiny: Path, tiny_model: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    given = tokenizer("The swarm", return_tensors="pt")

    out = tiny_model.generate(**given, max_new_tokens=30, do_sample=False)

    assert out.shape[1] == given.input_ids.shape[1] + 30
    assert tokenizer.decode(out[0]).isprintable()


def test_a_tiny_models_tokenizer_gives_back_every_text(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)

    assert [tokenizer.decode(tokenizer(text).input_ids) for text in TEXTS] == list(TEXTS)
    assert len(tokenizer) == 512
    assert len(tokenizer("The swarm keeps its blocks").input_ids) < 10
    assert all(isinstance(tokenizer.decode([number]), str) for number in range(512))


def test_the_same_shape_gives_the_same_bytes_and_another_seed_gives_others(tiny: Path, tmp_path: Path) -> None:
    shape = TinyShape(family=tiny.name)

    again = write_tiny(shape, tmp_path / "again")
    other = write_tiny(replace(shape, seed=1), tmp_path / "other")

    assert files_of(again) == files_of(tiny)
    assert files_of(other).keys() == files_of(tiny).keys()
    assert files_of(other) != files_of(tiny)


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter:UserWarning")
def test_petals_loads_a_block_of_a_tiny_model_from_its_own_shard(tiny: Path, tiny_model: Any, tmp_path: Path) -> None:
    import_petals()
    from petals.server.from_pretrained import load_pretrained_block
    from petals.utils.auto_config import AutoDistributedConfig

    config = AutoDistributedConfig.from_pretrained(str(tiny))
    layers = tiny_model.transformer.h if tiny.name == "bloom" else tiny_model.model.layers
    for number in (0, 5):
        block = load_pretrained_block(
            str(tiny), number, config=config, torch_dtype=torch.float32, cache_dir=str(tmp_path)
        )
        expected = layers[number].state_dict()
        assert block.state_dict().keys() == expected.keys()
        assert all(torch.equal(value, expected[key]) for key, value in block.state_dict().items())

    weight_map = json.loads((tiny / "model.safetensors.index.json").read_text())["weight_map"]
    prefix = f"{config.block_prefix}.3."
    assert len({shard for key, shard in weight_map.items() if key.startswith(prefix)}) == 1


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"family": "gpt"}, "family 'gpt' is unknown; there are llama and bloom"),
        ({"blocks": 0}, "blocks is 0; it must be at least 1"),
        ({"vocab_size": 100}, "vocab_size is 100; it must be at least 257"),
        ({"heads": 12}, "hidden_size 128 is not a multiple of the 12 heads"),
        ({"heads": 4}, "heads is 4; it must be a multiple of 8, which share a key-value head"),
        ({"hidden_size": 24, "heads": 8}, "a head is 3 wide; rotary positions need an even width"),
        (
            {"family": "bloom", "intermediate_size": 100},
            "intermediate_size is 100; BLOOM's is always 4 × hidden_size = 512",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_reason(sizes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        TinyShape(**sizes)

    assert reason in caught.value.reasons


@pytest.mark.parametrize("family", FAMILIES)
def test_other_sizes_load_too(family: str, tmp_path: Path) -> None:
    shape = TinyShape(family=family, blocks=2, hidden_size=64, heads=8, vocab_size=1000, max_positions=64, seed=3)

    model = load(write_tiny(shape, tmp_path / family))

    assert model.config.num_hidden_layers == 2
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / family)) == 1000


def test_a_tiny_model_that_is_there_is_left_alone_and_a_broken_one_is_made_anew(tmp_path: Path) -> None:
    shape, folder = TinyShape(blocks=1), tmp_path / "model"
    assert make_tiny(shape, folder)
    shard = folder / "model-00002-of-00003.safetensors"
    before = shard.stat()

    assert not make_tiny(shape, folder)
    assert shard.stat() == before

    content = shard.read_bytes()
    shard.write_bytes(content[:100])
    make_tiny(shape, folder)
    assert shard.read_bytes() == content


def test_a_tiny_model_does_not_replace_somebody_elses_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(Refused):
        write_tiny(TinyShape(), tmp_path)

    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]
