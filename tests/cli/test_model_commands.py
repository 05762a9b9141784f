from __future__ import annotations


def test_a_tiny_model_is_written_with_a_tokenizer_and_said_where(bare):
    target = bare.folder / "tiny"
    done = bare("-o", "name", "model", "tiny", "--family", "llama", "--blocks", "2", "-o", str(target))
    assert (done.code, done.out) == (0, f"{target}\n")
    assert {"config.json", "tokenizer.json"} <= {file.name for file in target.iterdir()}


def test_sizes_that_do_not_fit_are_refused_before_anything_is_written(bare):
    target = bare.folder / "tiny"
    done = bare("model", "tiny", "--heads", "3", "-o", str(target))
    assert done.code == 2
    assert done.err.startswith("error: a tiny model of this shape cannot be made\n")
    assert not target.exists()


def test_an_import_of_nothing_says_so(bare):
    done = bare("-o", "json", "model", "import", str(bare.folder / "no.gguf"), "-o", str(bare.folder / "model"))
    assert done.code == 2
    assert done.document["error"]["code"] == "RequestInvalid"
    assert not (bare.folder / "model").exists()
