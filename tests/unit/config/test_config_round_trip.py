"""`render` writes every default, and what it writes loads to the same swarm."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmctl.blocks import HostName
from swarmctl.config import render, validate_text
from swarmctl.config.durations import format_duration, parse_duration
from swarmctl.config.schema import section_keys

_words = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)
# Words that some YAML reader takes for something else than text.
_odd = st.sampled_from(
    ["no", "on", "null", "1e5", "1_000", "0o14", "1:30", "true", "0x1f", "12", "1.5", "=", "<<", "-"]
)
_texts = st.one_of(_words, _odd, st.text(max_size=5)).filter(lambda text: text.isprintable() and text != "")
_names = st.one_of(_words, _odd).filter(lambda name: re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]*", name) is not None)
_durations = st.one_of(
    st.integers(1, 10_000).map(lambda n: f"{n}ms"),
    st.integers(1, 8000).map(lambda n: f"{n}h"),
    st.floats(0.001, 10_000, allow_nan=False),
)
_counts = st.one_of(st.none(), st.integers(1, 100_000))
_settings: dict[str, st.SearchStrategy[Any]] = {
    "torch_dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
    "attn_cache_tokens": _counts,
    "inference_max_length": _counts,
    "max_batch_size": _counts,
    "update_period": _durations,
    "step_timeout": _durations,
    "session_timeout": _durations,
    "num_handlers": st.integers(1, 64),
    "throughput": st.one_of(st.none(), st.floats(1e-6, 1e9)),
    "threads": _counts,
    "cuda_graphs": st.sampled_from(["on", "off", True, False]),
    "restarts": st.integers(0, 100),
}


def _reached(port: int, announced: int) -> list[dict[str, Any]]:
    return [{"port": port}, {"port": port, "announce": f"203.0.113.5:{announced}"}]


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    hosts = draw(st.lists(_names, min_size=1, max_size=3, unique=True))
    # All hosts are this machine, so no two may list a card that both use.
    cards = {host: [3 * index + card for card in range(draw(st.integers(0, 3)))] for index, host in enumerate(hosts)}
    nodes: dict[str, Any] = {}
    for index in range(draw(st.integers(1, 4))):
        host = draw(st.sampled_from(hosts))
        card = {"gpu": cards[host].pop()} if cards[host] else {"device": "cpu"}
        own = draw(st.fixed_dictionaries({}, optional=_settings))
        nodes[f"n{index}"] = {
            "host": host,
            "blocks": "0:6",
            **draw(st.sampled_from([{"port": None}, *_reached(4000 + index, 5000 + index)])),
            **card,
            **own,
        }
    used = {name: [node["gpu"] for node in nodes.values() if node["host"] == name and "gpu" in node] for name in hosts}
    return {
        "version": 1,
        "swarm": draw(_names),
        "model": {"source": "me/tiny", "blocks": 6, "hidden_size": 64, "revision": draw(st.none() | _texts)},
        "redundancy": {
            "min": 1,
            "target": draw(st.integers(1, 5)),
            "by": draw(st.sampled_from(["gpu", "host", "rack"])),
        },
        "defaults": draw(st.fixed_dictionaries({}, optional=_settings)),
        "hosts": {
            name: {
                "connect": "local",
                "gpus": [*cards[name], *used[name]],
                "rack": draw(st.none() | _texts),
                "zone": draw(st.none() | _texts),
                "python": draw(st.none() | st.just('~/my env/bin/python: # "3"')),
            }
            for name in hosts
        },
        "bootstrap": [
            {"host": draw(st.sampled_from(hosts)), **draw(st.sampled_from([{}, *_reached(6000 + index, 7000 + index)]))}
            for index in range(draw(st.integers(1, 2)))
        ],
        "nodes": nodes,
        "client": {
            "step_timeout": draw(_durations),
            "max_length": draw(_counts),
            "allow_strangers": draw(st.booleans()),
        },
    }


@settings(max_examples=25, deadline=None)
@given(_files())
def test_what_is_rendered_loads_to_an_equal_swarm(file: dict[str, Any]) -> None:
    # JSON is YAML, and quotes every text, so that only `render` is on trial here.
    spec, findings = validate_text(json.dumps(file), "swarm.yaml", Path("/nowhere"))
    assert spec is not None, [str(finding) for finding in findings]
    rendered = render(spec)
    again, findings = validate_text(rendered, "swarm.yaml", Path("/elsewhere"))
    assert again == spec, (rendered, [str(finding) for finding in findings])
    assert render(again) == rendered


def test_everything_is_written_out() -> None:
    text = "version: 1\nswarm: lab\nmodel: {source: bigscience/bloom-560m}\nnodes: {a: {blocks: 0:24}}\n"
    spec, _ = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert spec is not None
    tree = yaml.safe_load(render(spec))
    keys = section_keys()
    assert tuple(tree) == keys[""]
    assert tuple(tree["model"]) == keys["model"]
    assert tuple(tree["defaults"]) == keys["defaults"]
    assert tuple(tree["client"]) == keys["client"]
    assert tuple(tree["redundancy"]) == keys["redundancy"]
    assert tuple(tree["bootstrap"][0]) == keys["bootstrap[]"]
    assert set(tree["hosts"]["here"]) == set(keys["hosts.*"]) - {"ssh"}
    assert tree["hosts"]["here"]["python"] is None
    assert tree["nodes"] == {"a": {"host": "here", "gpu": None, "blocks": "0:24", "port": None, "announce": None}}
    assert tree["defaults"]["update_period"] == "10s"
    assert tree["defaults"]["session_timeout"] == "24h"
    assert "\n  cuda_graphs: on\n" in render(spec)


def test_the_python_of_a_host_behind_ssh_is_written_out_and_still_the_default() -> None:
    text = (
        "version: 1\nswarm: lab\nmodel: {source: bigscience/bloom-560m}\nhosts: {a: {ssh: ops@192.0.2.1}}\n"
        'bootstrap: [{port: 31337, announce: "203.0.113.5:4000"}]\nnodes: {n: {blocks: 0:24}}\n'
    )
    spec, _ = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert spec is not None
    shown = render(spec)
    assert "python: ~/.local/share/swarmctl/venv/bin/python}" in shown
    assert validate_text(shown, "swarm.yaml", Path("/nowhere"))[0] == spec
    assert spec.hosts[HostName("a")].python is None


def test_settings_that_most_nodes_share_are_defaults_and_the_others_overrides() -> None:
    text = (
        "version: 1\nswarm: lab\nmodel: {source: bigscience/bloom-560m}\ndefaults: {threads: 8}\nnodes:\n"
        "  a: {blocks: 0:24, threads: 1}\n  b: {blocks: 0:24, threads: 1}\n  c: {blocks: 0:24, threads: null}\n"
    )
    spec, _ = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert spec is not None
    tree = yaml.safe_load(render(spec))
    assert tree["defaults"]["threads"] == 1
    assert [node.get("threads", "default") for node in tree["nodes"].values()] == ["default", "default", None]


@given(st.floats(0.001, 3e7, allow_nan=False))
def test_a_duration_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("written", "seconds", "shortest"),
    [
        ("250ms", 0.25, "250ms"),
        ("10s", 10.0, "10s"),
        ("90s", 90.0, "90s"),
        ("5m", 300.0, "5m"),
        ("1.5h", 5400.0, "90m"),
        ("86400s", 86400.0, "24h"),
        (7, 7.0, "7s"),
        (0.0015, 0.0015, 0.0015),
    ],
)
def test_durations_are_read_and_written(written: object, seconds: float, shortest: object) -> None:
    assert parse_duration(written) == seconds
    assert format_duration(seconds) == shortest


@pytest.mark.parametrize(
    "written", ["", "s", "10", "10 parsecs", "-1s", "1e3s", True, None, float("nan"), 0, 1e9, "9000h"]
)
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is out of range"):
        parse_duration(written)
