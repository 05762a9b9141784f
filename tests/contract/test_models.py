"""The checkpoints that swarmctl makes, held against transformers, petals and the GGUF format's own library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from swarmctl.errors import Refused, RequestInvalid, SwarmctlError, UpstreamMissing
from swarmctl.models import cache
from swarmctl.models.profile import read_profile
from swarmctl.models.tiny import FAMILIES
from swarmctl.operations.models import folder_for, import_model, make_tiny
from swarmctl.upstream.compat import import_petals
from swarmctl.upstream.gguf import DEMO_SOURCE, find_source, import_gguf
from swarmctl.upstream.tiny import TinyShape, write_tiny

pytestmark = pytest.mark.timeout(120)

TEXTS = ("The swarm keeps its blocks.", "naïve 漢字 🙂, it 's ok . \n\t 1234  x", " <|im_end| >\r\n")
PROMPTS = ("The swarm", "A client sends hidden states to every server", "42", "naïve 漢字 🙂")
GREEDY_TOKENS = 40
SPOILED_AFTER = 5


def nothing(done: int, total: int) -> None:
    """A progress that nobody watches."""


def load(folder: Path) -> Any:
    """The checkpoint as transformers' model; fails on a key that is missing, unexpected or of another shape."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert {kind: keys for kind, keys in report.items() if keys} == {}
    return model.eval()


def files_of(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name != cache.MANIFEST}


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


# --- tiny models ------------------------------------------------------------------------------------------------


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
    shard = make_tiny(shape, folder) / "model-00002-of-00003.safetensors"
    before = shard.stat()

    make_tiny(shape, folder)
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


# --- import of GGUF files ---------------------------------------------------------------------------------------

BEGIN, END, SPARE, WORD = "<|im_start|>", "<|im_end|>", "<spare>", "<keep this>"
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def in_llama_cpp_order(weights: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head interleaved: first half, second half → pairs."""
    rows = [
        head[number // 2 + (number % 2) * (len(head) // 2)]
        for head in np.split(weights, heads)
        for number in range(len(head))
    ]
    stacked: np.ndarray[Any, Any] = np.stack(rows)
    return stacked


class Reference:
    """A random Llama model whose matrices are what Q8_0 makes of them, and the GGUF file that holds it."""

    def __init__(self, path: Path, *, tied: bool) -> None:
        torch.manual_seed(0)
        letters = sorted(gguf_alphabet())
        self.tokens = [BEGIN, END, SPARE, WORD, *letters, "ab"]
        config = LlamaConfig(
            vocab_size=len(self.tokens),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=128,
            rms_norm_eps=1e-6,
            rope_theta=50000.0,
            initializer_range=0.3,
            tie_word_embeddings=tied,
        )
        self.path = path
        self.model: Any = LlamaForCausalLM(config).eval()
        self._tied = tied
        self._write()

    def _write(self) -> None:
        writer = gguf.GGUFWriter(self.path, "llama")
        writer.add_block_count(2)
        writer.add_context_length(128)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(96)
        writer.add_head_count(8)
        writer.add_head_count_kv(2)
        writer.add_rope_freq_base(50000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(self.tokens)
        writer.add_token_types([3, 3, 3, 4, *([1] * (len(self.tokens) - 4))])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_pad_token_id(1)
        writer.add_add_bos_token(True)
        writer.add_chat_template(CHAT)
        for name, parameter in self.model.named_parameters():
            self._add(writer, name, parameter)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _add(self, writer: Any, name: str, parameter: torch.Tensor) -> None:
        weights = parameter.detach().numpy()
        kind = F32 if weights.ndim == 1 else Q8_0
        raw = gguf.quants.quantize(weights, kind)
        parameter.data = torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind)))
        if name.endswith("q_proj.weight"):
            raw = in_llama_cpp_order(raw, 8)
        if name.endswith("k_proj.weight"):
            raw = in_llama_cpp_order(raw, 2)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)


def gguf_alphabet() -> set[str]:
    """The characters that stand for bytes, derived as the format's users do: printable ones for themselves."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return {chr(code) for code in itself} | {chr(256 + number) for number in range(256 - len(itself))}


def gguf_name(name: str) -> str:
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    found = known.get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return str(found)


@pytest.fixture(scope="module", params=["tied", "untied"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("gguf") / "Some-Llama.Q8_0.gguf", tied=request.param == "tied")


@pytest.fixture(scope="module")
def imported(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_gguf(reference.path, tmp_path_factory.mktemp("imported"), nothing)


@pytest.fixture
def source(reference: Reference) -> Path:
    return reference.path


def test_an_imported_model_computes_what_the_original_does(reference: Reference, imported: Path) -> None:
    model = load(imported)
    ids = torch.randint(0, len(reference.tokens), (3, 17), generator=torch.Generator().manual_seed(1))

    with torch.inference_mode():
        expected, found = reference.model(ids).logits, model(ids).logits

    assert float(expected.std()) > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_an_import_reports_each_tensor_and_can_store_half_precision(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    import_gguf(source, tmp_path / "half", lambda done, total: seen.append((done, total)), dtype="float16")

    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total in seen} == {len(seen)} == {2 * 9 + 3}
    assert AutoConfig.from_pretrained(tmp_path / "half").torch_dtype is torch.float16
    for shard in (tmp_path / "half").glob("*.safetensors"):
        with safe_open(shard, framework="pt") as file:
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118


def test_an_imported_tokenizer_gives_back_every_text_and_knows_its_roles(imported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(imported)

    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert ids[0] == 0
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.tokenize(f"ab{WORD}ab 12") == ["ab", WORD, "ab", "Ġ", "1", "2"]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (BEGIN, END, SPARE)


def test_a_chat_prompt_holds_the_end_of_turn_but_no_padding(imported: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(imported)
    config = AutoConfig.from_pretrained(imported)

    ids = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}])

    assert tokenizer.decode(ids) == f"{BEGIN}user\nab{END}\n"
    assert config.eos_token_id == 1
    assert config.eos_token_id in ids
    assert config.pad_token_id not in ids


def truncated(path: Path, to: Path, size_bytes: int) -> Path:
    to.write_bytes(path.read_bytes()[:size_bytes])
    return to


@pytest.mark.parametrize("kept", [0, 3, 20, 1000, -100])
def test_a_file_that_is_cut_off_is_a_known_error(source: Path, tmp_path: Path, kept: int) -> None:
    broken = truncated(source, tmp_path / "cut.gguf", kept)

    with pytest.raises(SwarmctlError, match=r"cut\.gguf"):
        import_gguf(broken, tmp_path / "out", nothing)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "f.gguf", "falcon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(SwarmctlError, match="this file holds falcon"):
        import_gguf(tmp_path / "f.gguf", tmp_path / "out", nothing)


def test_a_missing_source_is_named_with_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match="there is no file") as caught:
        import_model(tmp_path / "none.gguf", tmp_path / "out", progress=nothing)

    assert DEMO_SOURCE in caught.value.hints[0]


def import_counted(source: Path, folder: Path, **options: Any) -> tuple[bool, str, int]:
    calls: list[int] = []
    done = import_model(source, folder, progress=lambda n, _: calls.append(n), **options)
    assert done.path == folder
    assert cache.is_complete(folder, deep=True)
    return done.rebuilt, done.reason, len(calls)


def test_a_whole_import_is_left_alone_and_a_broken_one_is_made_anew(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shard = folder / "model-00002-of-00003.safetensors"

    assert import_counted(source, folder) == (True, f"there is no folder {folder}", 21)
    assert import_counted(source, folder) == (False, "it was whole", 0)
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:1000])
    assert import_counted(source, folder) == (True, f"{shard.name} has 1000 of {size} bytes", 21)
    (folder / cache.MANIFEST).unlink()
    assert import_counted(source, folder) == (True, "swarmctl.json is missing, so it was never finished", 21)
    assert import_counted(source, folder, force=True) == (True, "asked for", 21)
    assert import_counted(source, folder, dtype="float16") == (
        True,
        "it was made from something else: dtype changed",
        21,
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_an_import_that_fails_leaves_the_old_checkpoint(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    import_model(source, folder, progress=nothing)
    broken = truncated(source, tmp_path / "broken.gguf", -100)

    with pytest.raises(SwarmctlError):
        import_model(broken, folder, progress=nothing)

    assert cache.verify(folder, deep=True) == ()
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", "broken.gguf"}


def test_an_import_never_replaces_somebody_elses_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(Refused):
        import_model(source, tmp_path, progress=nothing, force=True)

    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_imports_go_to_a_folder_named_after_their_source() -> None:
    assert folder_for(DEMO_SOURCE, Path("/c")) == Path("/c/smollm2-135m-instruct")
    assert folder_for("models/Some-Llama.Q8_0.gguf", Path("/c")) == Path("/c/some-llama.q8_0")


def shapes_in(folder: Path) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {}
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as file:
            shapes.update({key: file.get_slice(key).get_shape() for key in file.keys()})  # noqa: SIM118
    return shapes


def test_the_demos_model_imports_with_every_key_of_its_shape(tmp_path: Path) -> None:
    try:
        find_source(DEMO_SOURCE)
    except UpstreamMissing as missing:
        pytest.skip(f"{missing}: {missing.hints[0]}")

    folder = import_gguf(DEMO_SOURCE, tmp_path / "model", nothing)

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    expected = {key: list(value.shape) for key, value in model.state_dict().items() if "inv_freq" not in key}
    assert shapes_in(folder) == expected
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": TEXTS[1]}], add_generation_prompt=True)
    assert TEXTS[1] in tokenizer.decode(chat)
    assert tokenizer.eos_token_id in chat
    assert tokenizer.pad_token_id not in chat
    # as the tokenizer of the original splits it
    assert tokenizer.tokenize("The capital of France, 1789") == [
        "The", "Ġcapital", "Ġof", "ĠFrance", ",", "Ġ", "1", "7", "8", "9",
    ]  # fmt: skip
