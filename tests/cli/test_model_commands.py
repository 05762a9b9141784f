from __future__ import annotations

from pathlib import Path

from swarmctl.operations.models import ImportResult
from swarmctl_cli.commands.model import told


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


def test_the_same_tiny_model_is_not_written_twice_and_another_one_stays_unless_forced(bare):
    target = bare.folder / "tiny"
    make = ("model", "tiny", "--blocks", "1", "-o", str(target))
    assert bare(*make).out == f"wrote {target}: 1 llama blocks\n"
    written = (target / "swarmctl.json").read_bytes()

    assert bare(*make).out == f"{target} holds just this model already (1 llama blocks), nothing to do\n"

    refused = bare(*make, "--seed", "1")
    assert refused.code == 5
    assert refused.err.startswith(f"error: {target} holds another checkpoint and was left as it is\n")
    assert "  it was made from something else: seed changed\n" in refused.err
    assert (target / "swarmctl.json").read_bytes() == written

    assert bare(*make, "--seed", "1", "--force").code == 0
    assert (target / "swarmctl.json").read_bytes() != written


def test_an_import_is_told_as_a_sentence():
    target = Path("smol")
    first = ImportResult(path=target, rebuilt=True, reason="there was none before")
    again = ImportResult(path=target, rebuilt=False, reason="it was whole")
    assert told(first, "a.gguf") == "imported a.gguf into smol (there was none before)"
    assert told(again, "a.gguf") == "smol holds a.gguf already and is whole, nothing to do"
