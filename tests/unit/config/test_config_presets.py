"""The files in configs/: each loads, and the reference names every key with its true default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarmctl.config import json_schema, preset_path, preset_text, presets, validate_text
from swarmctl.config.durations import format_duration
from swarmctl.config.schema import REQUIRED, section_keys
from swarmctl.coverage import Verdict, analyse, holders_declared
from swarmctl.spec import SwarmSpec

# Where each preset that needs a folder expects it, and how many blocks it expects there.
FOLDERS = {
    "local-demo": (".cache/swarmctl/models/smollm2-135m-instruct", "llama", 30),
    "tiny-llama": ("tiny-llama", "llama", 6),
    "tiny-bloom": ("tiny-bloom", "bloom", 6),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, family, blocks in FOLDERS.values():
        (tmp_path / folder).mkdir(parents=True)
        config = {"model_type": family, "n_layer": blocks, "hidden_size": 64, "n_head": 8, "vocab_size": 99}
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_preset_is_a_file_with_that_text() -> None:
    assert preset_path("reference").read_text(encoding="utf-8") == preset_text("reference")


def loaded(name: str, home: Path) -> SwarmSpec:
    spec, findings = validate_text(preset_text(name), f"{name}.yaml", home)
    assert spec is not None, [str(finding) for finding in findings]
    return spec


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_described(name: str, home: Path) -> None:
    spec = loaded(name, home)
    assert re.fullmatch(r"[A-Z].*\.", presets()[name])
    assert analyse(spec, holders_declared(spec)).verdict is Verdict.REDUNDANT


@pytest.mark.parametrize("name", FOLDERS)
def test_a_preset_without_its_model_has_only_that_fault_and_says_what_makes_it(name: str, tmp_path: Path) -> None:
    text = preset_text(name).replace("~", str(tmp_path))
    spec, findings = validate_text(text, f"{name}.yaml", tmp_path)
    assert spec is None
    assert [finding.path for finding in findings] == ["model.source"]
    assert "swarmctl model " in str(findings[0].hint)


def test_the_demo_needs_two_servers_to_replace_one(home: Path) -> None:
    nodes = {str(name): str(node.blocks) for name, node in loaded("local-demo", home).nodes.items()}
    assert nodes == {"left-a": "0:15", "left-b1": "0:8", "left-b2": "8:15", "right-a": "15:30", "right-b": "15:30"}


def test_stable_beluga2_survives_the_loss_of_any_host(home: Path) -> None:
    spec = loaded("stable-beluga2", home)
    report = analyse(spec, holders_declared(spec))
    assert (len(spec.hosts), len(spec.nodes), spec.model.num_blocks) == (5, 10, 80)
    assert set(report.replicas) == {2}
    assert set(report.may_lose_hosts) == set(spec.hosts)
    assert {(node.settings.quant, len(node.blocks)) for node in spec.nodes.values()} == {("nf4", 16)}


@pytest.mark.parametrize("name", ["two-hosts", "stable-beluga2"])
def test_a_preset_for_several_machines_can_be_let_through_a_firewall_and_joined_while_any_one_is_down(
    name: str, home: Path
) -> None:
    spec = loaded(name, home)
    assert all(peer.port for peer in spec.bootstraps)
    assert all(node.port for node in spec.nodes.values())
    assert len({peer.host for peer in spec.bootstraps}) == 2
    assert {port for node in spec.nodes.values() if (port := node.port)} <= {31340, 31341, 31342}


def test_the_reference_shows_that_an_entry_with_several_cards_is_several_nodes(home: Path) -> None:
    nodes = loaded("reference", home).nodes.values()
    assert [(str(node.name), node.gpu, str(node.blocks), node.port) for node in nodes][2:] == [
        ("a-2", 2, "0:40", 31350),
        ("a-3", 3, "40:80", 31351),
    ]


def test_the_reference_has_every_key_of_the_schema_and_no_other() -> None:
    found = _keys(yaml.compose(preset_text("reference")))
    overrides = {f"nodes.*.{key}" for key in section_keys()["defaults"]}
    known = {f"{section}.{key}".lstrip(".") for section, keys in section_keys().items() for key in keys}
    assert set(found) - known == set()
    assert known - overrides - set(found) == set()
    assert set(found) & overrides, "one override shows that a node may have them"


def test_the_reference_states_the_default_of_every_key() -> None:
    text = preset_text("reference")
    lines = text.splitlines()
    stated = {key: _comment_above(lines, line) for key, line in _keys(yaml.compose(text)).items()}
    defaults = _defaults(json_schema())
    wrong = {}
    for key, default in defaults.items():
        expected = "Required." if default is REQUIRED else f"Default: {default}"
        if not re.search(rf"{re.escape(expected)}(?![\w-])", stated[key]):
            wrong[key] = (expected, stated[key])
    assert not wrong


def _keys(node: Any, path: str = "") -> dict[str, int]:
    """Path of each key → the line (from 0) where it stands first; names of hosts and nodes become `*`."""
    found: dict[str, int] = {}
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.MappingNode):
                found = {**_keys(item, f"{path}[]"), **found}
        return found
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        inner = f"{path}.*" if path in ("hosts", "nodes") else f"{path}.{key.value}".lstrip(".")
        if not inner.endswith("*"):
            found.setdefault(inner, key.start_mark.line)
        found = {**_keys(value, inner), **found}
    return found


def _comment_above(lines: list[str], line: int) -> str:
    comment: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip(" -").startswith("#"):
            break
        comment.insert(0, text.strip(" -#"))
    return " ".join(comment)


def _defaults(schema: dict[str, Any]) -> dict[str, object]:
    """Path of each scalar key → its default as the file would write it, or REQUIRED."""
    found: dict[str, object] = {}
    places = {"model": "Model", "redundancy": "Redundancy", "defaults": "Settings", "client": "Client"}
    places |= {"hosts.*": "Host", "bootstrap[]": "Bootstrap", "nodes.*": "Node"}
    sections = {path: schema["$defs"][f"{name}Section"] for path, name in places.items()}
    sections[""] = schema
    for path, section in sections.items():
        for key, declared in section["properties"].items():
            if "$ref" in declared or (path == "" and key in ("hosts", "nodes", "bootstrap")):
                continue
            if path == "nodes.*" and key in section_keys()["defaults"]:
                continue
            required = key in section.get("required", ())
            found[f"{path}.{key}".lstrip(".")] = REQUIRED if required else _written(declared)
    return found


def _written(declared: dict[str, Any]) -> str:
    default = declared["default"]
    is_duration = any("ms|s|m|h" in kind.get("pattern", "") for kind in declared.get("anyOf", ()))
    return (
        str(format_duration(default)) if is_duration else default if isinstance(default, str) else json.dumps(default)
    )
