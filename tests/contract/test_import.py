"""Checkpoints imported from GGUF files, held against the original model and the format's own library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import safe_open
from support.checkpoints import BEGIN, END, SPARE, TEXTS, WORD, Reference, load
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from swarmctl.errors import Refused, RequestInvalid, SwarmctlError, UpstreamMissing
from swarmctl.models import cache
from swarmctl.operations.models import folder_for, import_model
from swarmctl.upstream.gguf import DEMO_SOURCE, find_source, import_gguf

pytestmark = pytest.mark.timeout(120)


def nothing(done: int, total: int) -> None:
    """A progress that nobody watches."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that share a tiny product wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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

    assert import_counted(source, folder) == (True, "there was none before", 21)
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
