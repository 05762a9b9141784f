from __future__ import annotations

import json

import pytest
import yaml

BAD = """\
version: 1
swarm: lab
model: {source: lab/model, blocks: 8, hidden_size: 64, dht_prefix: lab}
defaults: {torch_dtype: float32}
nodes:
  a: {blocks: "8:4"}
  b: {blocks: "0:8", prot: 1}
"""


def test_init_writes_a_preset_and_says_what_comes_next(bare):
    done = bare("init", "tiny-llama", "-o", str(bare.folder / "swarm.yaml"))
    assert done.code == 0
    assert "from the preset tiny-llama" in done.out
    assert "next: " in done.err
    assert (bare.folder / "swarm.yaml").read_text().startswith("# A tiny random model")


def test_init_leaves_a_file_that_is_there_alone(shell):
    path = shell.folder / "swarm.yaml"
    before = path.read_text()
    done = shell("init", "tiny-llama", "-o", str(path))
    assert done.code == 5
    assert f"hint: swarmctl init tiny-llama -o {path} --force" in done.err
    assert path.read_text() == before
    assert shell("init", "tiny-llama", "-o", str(path), "--force").code == 0


def test_init_of_an_unknown_preset_names_the_nearest(bare):
    done = bare("init", "tiny-lama")
    assert done.code == 2
    assert "hint: swarmctl init tiny-llama" in done.err


def test_init_lists_presets_with_what_they_are_for(bare):
    listed = bare("init", "--list")
    assert listed.out.startswith("PRESET")
    assert "stable-beluga2" in bare("-o", "name", "init", "--list").out.split()


def test_init_to_stdout_is_the_file_alone(bare):
    done = bare("init", "reference", "-o", "-")
    assert done.code == 0
    assert yaml.safe_load(done.out)["version"] == 1


def test_a_valid_file_is_summed_up_in_one_line(shell):
    done = shell("config", "validate")
    assert done.code == 0
    assert done.out == f"{shell.folder}/swarm.yaml is valid: swarm lab, 30 blocks, 5 nodes on 1 host\n"


def test_an_invalid_file_shows_every_fault_with_its_line_and_gives_three(bare):
    path = bare.folder / "bad.yaml"
    path.write_text(BAD)
    done = bare("config", "validate", str(path))
    assert (done.code, done.out) == (3, "")
    assert f"{path}:6:15: nodes.a.blocks:" in done.err
    assert '       6 |   a: {blocks: "8:4"}' in done.err
    assert f"{path}:7:22: nodes.b.prot:" in done.err
    document = bare("-c", str(path), "config", "validate", "-o", "json").document
    assert document["error"]["code"] == "ConfigError"
    findings = document["error"]["context"]["findings"]
    assert [(finding["line"], finding["path"]) for finding in findings] == [(6, "nodes.a.blocks"), (7, "nodes.b.prot")]


def test_without_a_file_every_command_says_how_to_get_one(bare):
    for words in (["status"], ["up"], ["config", "show"]):
        done = bare(*words)
        assert done.code == 3
        assert "hint: swarmctl init" in done.err


def test_a_file_is_found_in_a_folder_above(shell):
    below = shell.folder / "deep" / "down"
    below.mkdir(parents=True)
    shell.folder = below
    assert shell("config", "validate").code == 0


def test_the_environment_names_the_file_and_the_option_goes_before_it(shell):
    path = shell.folder / "other.yaml"
    path.write_text((shell.folder / "swarm.yaml").read_text().replace("swarm: lab", "swarm: other"))
    shell.env["SWARMCTL_CONFIG"] = str(path)
    assert shell("config", "validate", "-o", "json").document["swarm"] == "other"
    first = str(shell.folder / "swarm.yaml")
    assert shell("config", "validate", "-c", first, "-o", "json").document["swarm"] == "lab"


def test_show_fills_in_the_defaults_and_is_a_valid_file(shell):
    text = shell("config", "show").out
    assert "attn_cache_tokens" in text
    (shell.folder / "again.yaml").write_text(text)
    assert shell("config", "validate", str(shell.folder / "again.yaml")).code == 0


def test_the_schema_is_json(bare):
    assert "properties" in json.loads(bare("config", "schema").out)


def test_init_into_a_folder_that_is_not_there_is_a_plain_sentence(bare):
    done = bare("init", "-o", str(bare.folder / "no" / "swarm.yaml"))
    assert done.code == 2
    assert done.err.startswith("error: cannot write ")


def test_init_without_a_name_writes_the_tiny_swarm_and_says_how_to_make_its_model(bare):
    path = bare.folder / "swarm.yaml"
    done = bare("init", "-o", str(path))
    assert (done.code, done.out) == (0, f"wrote {path} from the preset tiny-llama\n")
    assert f"next: swarmctl model tiny --family llama -o {bare.folder}/tiny-llama\n" in done.err
    assert f"then: look through {path}, swarmctl config validate, swarmctl up" in done.err


def test_init_does_not_speak_of_a_model_that_is_there(bare):
    (bare.folder / "tiny-llama").mkdir()
    done = bare("init", "-o", str(bare.folder / "swarm.yaml"))
    assert "model tiny" not in done.err
    assert "swarmctl config validate and swarmctl up" in done.err


@pytest.mark.parametrize("preset", ["two-hosts", "stable-beluga2"])
def test_init_of_a_swarm_with_other_machines_names_the_steps_that_they_need_before_up(bare, preset):
    done = bare("init", preset, "-o", str(bare.folder / "swarm.yaml"))
    assert done.code == 0
    assert "swarmctl config validate" in done.err
    assert done.err.index("host setup") < done.err.index("host check") < done.err.index(" up\n")


def test_init_into_a_file_that_is_named_as_a_format_is_taken_for_a_slip(bare):
    done = bare("init", "-o", "json")
    assert done.code == 2
    assert done.err.startswith("error: -o json names a format, and for init -o is the file to write\n")
    assert "hint: swarmctl -o json init tiny-llama\n" in done.err
