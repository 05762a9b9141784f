"""Whatever a file contains, it becomes a swarm or findings, never an exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmctl.config import validate_text
from swarmctl.config.schema import section_keys

_keys = st.sampled_from(sorted({key for keys in section_keys().values() for key in keys} | {"a", "b-1", "no such key"}))
_texts = st.sampled_from(
    ["auto", "all", "::1", "0:6", "9:4", "10s", "nf4", "local", "x@y", "127.0.0.1", "cuda", "float16", "a", "", "."]
)
_scalars = st.one_of(st.none(), st.booleans(), st.integers(-1, 10**20), st.floats(allow_nan=False), _texts)
_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4))

_nodes = st.dictionaries(
    st.sampled_from(["a", "b", "Bad Name", "bootstrap-0"]),
    st.dictionaries(_keys, _scalars, max_size=5) | _scalars,
    max_size=4,
)
_hosts = st.dictionaries(_keys | _texts, st.dictionaries(_keys, _scalars, max_size=4) | _values, max_size=3)
_files = st.fixed_dictionaries(
    {"version": st.just(1) | _values, "model": st.just({"source": "me/tiny", "blocks": 6, "hidden_size": 8}) | _values},
    optional={
        "nodes": _nodes | _values,
        "hosts": _hosts,
        "bootstrap": st.lists(st.dictionaries(_keys, _scalars, max_size=3) | _scalars, max_size=3) | _values,
        "redundancy": _values,
        "defaults": st.dictionaries(_keys, _values, max_size=5),
        "client": _values,
        "swarm": _values,
    },
)


def judged(text: str) -> None:
    spec, findings = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert (spec is None) == bool(findings)
    assert list(findings) == sorted(findings, key=lambda finding: (finding.line, finding.column))
    lines = text.splitlines()
    for finding in findings:
        assert finding.line >= 1
        assert finding.column >= 1
        assert finding.source_line == (lines[finding.line - 1] if finding.line <= len(lines) else "")
        assert finding.message


@settings(max_examples=30, deadline=None)
@given(_files)
def test_any_values_in_the_known_places_are_judged(file: dict[str, Any]) -> None:
    judged(json.dumps(file, indent=1))


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("ab:-[]{}&*!?|>'\"\n #%@`\t0", max_size=40))
def test_any_text_is_judged(text: str) -> None:
    judged(text)
