"""What a good file means: defaults, derived names, merged settings, and where a file is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmctl.blocks import BlockRange, HostName, NodeName
from swarmctl.config import find, load, preset_text, validate_text
from swarmctl.errors import ConfigError, UsageError
from swarmctl.spec import BootstrapSpec, Domain, Endpoint, HostSpec, RedundancyPolicy, ServerSettings, SwarmSpec

HEAD = "version: 1\nswarm: lab\nmodel: {source: me/tiny, blocks: 6, hidden_size: 64}\n"


def spec_of(text: str, base: Path = Path("/nowhere")) -> SwarmSpec:
    spec, findings = validate_text(text, "swarm.yaml", base)
    assert spec is not None, [str(finding) for finding in findings]
    return spec


def checkpoint(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    shape = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 99}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **shape, **config}))
    return folder


def test_the_smallest_file_is_one_machine_with_one_bootstrap_peer() -> None:
    spec = spec_of(f'{HEAD}nodes: {{a: {{blocks: "0:6"}}}}\n')
    assert spec.hosts == {"here": HostSpec(name=HostName("here"))}
    assert spec.bootstraps == (BootstrapSpec(name=NodeName("bootstrap-0"), host=HostName("here")),)
    assert spec.redundancy == RedundancyPolicy(minimum=1, target=2, by=Domain.HOST)
    assert spec.nodes[NodeName("a")].blocks == BlockRange(0, 6)
    assert spec.nodes[NodeName("a")].settings == ServerSettings(device="cpu")
    assert spec.path is None


def test_empty_sections_mean_their_defaults() -> None:
    empty = "defaults:\nhosts:\nbootstrap:\nredundancy:\nclient:\n"
    nodes = 'nodes: {a: {blocks: "0:6"}}\n'
    assert spec_of(HEAD + nodes + empty) == spec_of(HEAD + nodes)


def test_a_node_overrides_the_defaults_and_null_takes_one_back() -> None:
    spec = spec_of(
        f"{HEAD}defaults: {{attn_cache_tokens: 16_384, threads: 2, update_period: 5m}}\n"
        'nodes: {a: {blocks: "0:6"}, b: {blocks: "0:6", attn_cache_tokens: null, threads: 4, update_period: 250ms}}\n'
    )
    a, b = (node.settings for node in spec.nodes.values())
    assert (a.attn_cache_tokens, a.threads, a.update_period_s) == (16384, 2, 300.0)
    assert (b.attn_cache_tokens, b.threads, b.update_period_s) == (None, 4, 0.25)


@pytest.mark.parametrize(
    ("written", "meant"), [("on", True), ("off", False), ("true", True), ("false", False), ('"off"', False)]
)
def test_a_switch_is_on_or_off_and_other_readers_words_for_it_are_taken(written: str, meant: bool) -> None:
    (node,) = spec_of(f'{HEAD}nodes: {{a: {{blocks: "0:6", cuda_graphs: {written}}}}}\n').nodes.values()
    assert node.settings.cuda_graphs is meant


def test_a_node_behind_something_that_forwards_is_announced_there() -> None:
    (a, b) = spec_of(
        f"{HEAD}nodes:\n  a: {{blocks: 0:6, port: 4000, announce: 203.0.113.5:31340}}\n  b: {{blocks: 0:6}}\n"
    ).nodes.values()
    assert (a.port, a.announce, b.announce) == (4000, Endpoint(ip="203.0.113.5", port=31340), None)


def test_a_bootstrap_peer_behind_something_that_forwards_is_announced_there() -> None:
    spec = spec_of(f"{HEAD}bootstrap: [{{port: 4000, announce: 203.0.113.5:31337}}]\nnodes: {{a: {{blocks: 0:6}}}}\n")
    assert spec.bootstraps[0].announce == Endpoint(ip="203.0.113.5", port=31337)


@pytest.mark.parametrize(("written", "meant"), [("{}", 5), ("{restarts: 0}", 0), ("{restarts: 9}", 9)])
def test_a_server_that_ended_by_itself_is_started_again_as_often_as_the_file_says(written: str, meant: int) -> None:
    (node,) = spec_of(f"{HEAD}defaults: {written}\nnodes: {{a: {{blocks: 0:6}}}}\n").nodes.values()
    assert node.settings.restarts == meant


def test_an_unquoted_range_is_read_as_written() -> None:
    # YAML 1.1 takes 5:30 for the number 330.
    text = HEAD.replace("blocks: 6", "blocks: 30") + "nodes: {a: {blocks: 0:5}, b: {blocks: 5:30}}\n"
    assert [node.blocks for node in spec_of(text).nodes.values()] == [BlockRange(0, 5), BlockRange(5, 30)]


def test_names_that_look_like_other_types_stay_names() -> None:
    spec = spec_of(f"{HEAD}hosts: {{no: {{connect: local}}}}\nnodes: {{1: {{host: no, blocks: 0:6}}}}\n")
    assert list(spec.hosts) == ["no"]
    assert list(spec.nodes) == ["1"]


def test_the_device_follows_from_the_cards_that_a_host_lists() -> None:
    spec = spec_of(
        f"{HEAD}hosts: {{x: {{connect: local, gpus: [3]}}, y: {{connect: local}}}}\n"
        "nodes:\n  a: {host: x, blocks: 0:6}\n  b: {host: y, blocks: 0:6}\n  c: {host: x, blocks: 0:6, device: cpu}\n"
    )
    assert [(node.settings.device, node.gpu) for node in spec.nodes.values()] == [
        ("cuda", 3),
        ("cpu", None),
        ("cpu", None),
    ]


def test_a_remote_host_is_reached_at_the_host_part_of_its_login() -> None:
    spec = spec_of(
        f"{HEAD}hosts: {{x: {{ssh: ops@192.0.2.11}}, y: {{ssh: box, address: 192.0.2.12}}}}\n"
        "bootstrap: [{host: y, port: 31337}]\nnodes: {a: {host: x, blocks: 0:6}}\n"
    )
    assert [host.address for host in spec.hosts.values()] == ["192.0.2.11", "192.0.2.12"]
    assert spec.bootstraps == (BootstrapSpec(name=NodeName("bootstrap-0"), host=HostName("y"), port=31337),)


def test_a_target_that_is_not_given_is_at_least_the_minimum() -> None:
    nodes = "".join(f"  n{i}: {{blocks: 0:6}}\n" for i in range(3))
    spec = spec_of(f"{HEAD}redundancy: {{min: 3, by: gpu}}\nnodes:\n{nodes}")
    assert (spec.redundancy.minimum, spec.redundancy.target) == (3, 3)


@pytest.mark.parametrize(
    ("source", "blocks", "prefix"),
    [
        ("petals-team/StableBeluga2", 80, "StableBeluga2-hf"),
        ("meta-llama/Llama-2-70b-hf", 80, "Llama-2-70b-hf"),
        ("bigscience/bloom-560m", 24, "bigscience/bloom-560m-petals"),
        ("tiiuae/falcon-40b", 60, "falcon-40b"),
        ("me/My.Model, blocks: 6, hidden_size: 64", 6, "lab-My-Model"),
        ("./folder.v2 x", 6, "lab-folder-v2-x"),
    ],
)
def test_the_name_in_the_swarm_is_derived_from_the_model(tmp_path: Path, source: str, blocks: int, prefix: str) -> None:
    checkpoint(tmp_path / "folder.v2 x")
    nodes = f"defaults: {{torch_dtype: float32}}\nnodes: {{a: {{blocks: 0:{blocks}}}}}\n"
    spec = spec_of(f"version: 1\nswarm: lab\nmodel: {{source: {source}}}\n{nodes}", tmp_path)
    assert spec.model.dht_prefix == prefix


def test_a_folder_is_relative_to_the_file_and_becomes_absolute(tmp_path: Path) -> None:
    checkpoint(tmp_path / "models/tiny", num_hidden_layers=9)
    text = "version: 1\nswarm: lab\nmodel: {source: models/tiny}\nnodes: {a: {blocks: 0:9}}\n"
    (tmp_path / "swarm.yaml").write_text(text)
    spec = load(tmp_path / "swarm.yaml")
    assert spec.model.source == str(tmp_path / "models/tiny")
    assert (spec.model.num_blocks, spec.model.hidden_size) == (9, 64)
    assert spec.path == str(tmp_path / "swarm.yaml")


@pytest.mark.parametrize("written", ["~/tiny", "$HOME/tiny", "${HOME}/x/../tiny"])
def test_home_and_variables_expand_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    checkpoint(tmp_path / "tiny")
    text = f'version: 1\nswarm: lab\nmodel: {{source: "{written}"}}\nnodes: {{a: {{blocks: 0:6}}}}\n'
    assert spec_of(text).model.source == str(tmp_path / "tiny")


def test_load_raises_with_every_finding(tmp_path: Path) -> None:
    path = tmp_path / "swarm.yaml"
    path.write_text(f"{HEAD}nodes: {{a: {{blocks: 9:8}}, b: {{blok: 0:6}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.exit_code == 3
    assert caught.value.message == f"{path} is invalid: 2 faults"
    assert [finding.path for finding in caught.value.findings] == ["nodes.a.blocks", "nodes.b.blok"]
    assert all(finding.file == str(path) for finding in caught.value.findings)


def test_load_says_what_is_wrong_with_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no swarm file"):
        load(tmp_path / "swarm.yaml")
    with pytest.raises(ConfigError, match=r"cannot read .*: is a directory"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"swarm: caf\xe9\n")
    with pytest.raises(ConfigError, match="byte 10 is 0xe9"):
        load(tmp_path / "latin.yaml")


def test_the_file_is_found_in_the_nearest_folder_above(tmp_path: Path) -> None:
    inner = tmp_path / "a/b/c"
    inner.mkdir(parents=True)
    (tmp_path / "a/swarm.yaml").touch()
    (tmp_path / "a/b/swarm.yaml").mkdir()
    assert find(inner) == tmp_path / "a/swarm.yaml"
    (inner / "swarm.yaml").touch()
    assert find(inner) == inner / "swarm.yaml"


def test_no_file_is_found_where_there_is_none(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert found is None or tmp_path not in found.parents


def test_an_unknown_preset_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="there is no preset tiny-lama") as caught:
        preset_text("tiny-lama")
    assert caught.value.hints == ("swarmctl init tiny-llama",)
