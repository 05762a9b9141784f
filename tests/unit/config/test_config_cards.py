"""Several cards in one entry, and hosts whose cards are looked up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.blocks import HostName
from swarmctl.config import load, load_hosts, render, validate_text
from swarmctl.errors import ConfigError, Finding
from swarmctl.spec import SwarmSpec

GPU_A = HostName("gpu-a")
MODEL = "model: {source: me/tiny, blocks: 10, hidden_size: 64}"
LISTED = "gpus: [0, 1, 2, 3]"
HEAD = f"version: 1\nswarm: lab\n{MODEL}\nhosts:\n"


def file(nodes: str, gpus: str = LISTED) -> str:
    bootstrap = "bootstrap: [{host: gpu-a, port: 31337}]"
    return f"{HEAD}  gpu-a: {{ssh: ops@192.0.2.11, {gpus}}}\n{bootstrap}\nnodes:\n{nodes}"


def judged(
    nodes: str, gpus: str = LISTED, cards: tuple[int, ...] | None = None
) -> tuple[SwarmSpec | None, tuple[Finding, ...]]:
    known = None if cards is None else {GPU_A: cards}
    return validate_text(file(nodes, gpus), "swarm.yaml", Path("/nowhere"), known)


def spec_of(nodes: str, gpus: str = LISTED, cards: tuple[int, ...] | None = None) -> SwarmSpec:
    spec, findings = judged(nodes, gpus, cards)
    assert spec is not None, [str(finding) for finding in findings]
    return spec


def placed(spec: SwarmSpec) -> list[tuple[str, int | None, str, int | None]]:
    return [(node.name, node.gpu, str(node.blocks), node.port) for node in spec.nodes.values()]


def test_an_entry_with_all_cards_is_a_node_for_each_with_its_part_of_the_blocks_and_a_port_of_its_own() -> None:
    spec = spec_of('  a: {gpus: all, blocks: "0:10", port: 31340, quant: nf4}\n')
    assert placed(spec) == [
        ("a-0", 0, "0:3", 31340),
        ("a-1", 1, "3:6", 31341),
        ("a-2", 2, "6:8", 31342),
        ("a-3", 3, "8:10", 31343),
    ]
    assert {(node.settings.quant, node.settings.device) for node in spec.nodes.values()} == {("nf4", "cuda")}


def test_an_entry_with_some_cards_leaves_the_others_to_other_entries() -> None:
    spec = spec_of('  a: {gpus: [3, 1], blocks: "0:10"}\n  b: {gpu: 0, blocks: "0:4"}\n')
    assert placed(spec) == [("a-3", 3, "0:5", None), ("a-1", 1, "5:10", None), ("b", 0, "0:4", None)]


@given(st.integers(0, 9), st.data())
def test_shares_are_in_order_without_gap_and_differ_by_one_block_at_most(start: int, data: st.DataObject) -> None:
    end = data.draw(st.integers(start + 1, 10))
    cards = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=end - start, unique=True))
    rest = '  r: {gpu: 99, blocks: "0:10"}\n'
    spec = spec_of(f'  a: {{gpus: {cards}, blocks: "{start}:{end}"}}\n{rest}', "gpus: all")
    shares = [node.blocks for node in spec.nodes.values() if node.name != "r"]
    assert [block for share in shares for block in share] == list(range(start, end))
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_all_cards_of_a_host_are_those_that_it_is_known_to_have() -> None:
    spec = spec_of('  a: {gpus: all, blocks: "0:10"}\n', "gpus: all", (0, 5))
    assert placed(spec) == [("a-0", 0, "0:5", None), ("a-5", 5, "5:10", None)]
    assert (spec.hosts[GPU_A].gpus, spec.hosts[GPU_A].all_gpus) == ((0, 5), True)


def test_a_node_without_a_card_gets_the_only_one_that_the_host_is_known_to_have() -> None:
    assert placed(spec_of('  a: {blocks: "0:10"}\n', "gpus: all", (2,))) == [("a", 2, "0:10", None)]


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ('a: {gpus: all, blocks: "0:10"}', "8:13: nodes.a.gpus: the cards of gpu-a are not known yet"),
        ('a: {blocks: "0:10"}', "8:3: nodes.a.gpu: is missing; the cards of gpu-a are not known yet"),
    ],
)
def test_where_the_number_of_cards_matters_somebody_must_have_looked(node: str, place: str) -> None:
    spec, (finding,) = judged(f"  {node}\n", "gpus: all")
    assert spec is None
    assert str(finding) == f"swarm.yaml:{place}"
    assert finding.hint == "swarmctl host check gpu-a"


@pytest.mark.parametrize("node", ["gpu: 2", "gpus: [2, 7]", "device: cpu"])
def test_where_the_number_of_cards_does_not_matter_nobody_need_have_looked(node: str) -> None:
    spec = spec_of(f'  a: {{{node}, blocks: "0:10"}}\n', "gpus: all")
    assert (spec.hosts[GPU_A].gpus, spec.hosts[GPU_A].all_gpus) == ((), True)


def test_a_card_that_the_host_is_known_not_to_have_is_refused_with_one_that_is_free() -> None:
    _, (finding,) = judged('  a: {gpu: 2, blocks: "0:10"}\n  b: {gpu: 0, blocks: "0:10"}\n', "gpus: all", (0, 1))
    assert str(finding) == "swarm.yaml:8:12: nodes.a.gpu: 2 is no card of host gpu-a, whose gpus are 0, 1"
    assert finding.hint == "gpu: 1"


def test_a_host_that_turns_out_to_have_no_card_is_refused_and_its_nodes_do_not_go_to_the_cpu() -> None:
    _, (finding,) = judged('  a: {blocks: "0:10"}\n', "gpus: all", ())
    assert str(finding) == "swarm.yaml:5:38: hosts.gpu-a.gpus: all of none: this host has no cards"
    assert finding.hint == "gpus: []"


LONG = "x" * 62
ENTRY_FAULTS = {
    '{gpus: all, gpu: 0, blocks: "0:10"}': ["8:7: nodes.a.gpus: contradicts gpu; keep one of the two"],
    '{gpus: all, port: 1, announce: "192.0.2.9:1", blocks: "0:10"}': [
        "8:37: nodes.a.announce: is one address, and gpus makes several nodes; write an entry for each, with gpu"
    ],
    '{gpus: all, port: 65534, blocks: "0:10"}': [
        "8:24: nodes.a.port: 65534 and one more for each further card end at 65537; ports are 1 to 65535"
    ],
    '{gpus: all, blocks: "0:2"}': ['8:13: nodes.a.gpus: the 2 blocks of "0:2" are too few for 4 cards'],
    '{gpus: all, blocks: "8:14"}': ['8:26: nodes.a.blocks: "8:14" ends beyond the model\'s 10 blocks'],
    "{gpus: all, blocks: auto}": [
        "8:26: nodes.a.blocks: auto is not supported yet; write an explicit range; on no node: 0:10"
    ],
    "{gpus: all}": ["8:3: nodes.a.blocks: is missing"],
    '{gpus: [], blocks: "0:10"}': ["8:13: nodes.a.gpus: needs at least one card"],
    '{gpus: [1, 1], blocks: "0:10"}': ["8:13: nodes.a.gpus: lists 1 twice"],
    '{gpus: [0, x], blocks: "0:10"}': ['8:17: nodes.a.gpus[1]: must be a whole number, not "x"'],
    '{gpus: al, blocks: "0:10"}': [
        '8:13: nodes.a.gpus: "al" is neither all nor a list of cards; write all, or for example [0, 1]'
    ],
    '{gpus: 2, blocks: "0:10"}': [
        "8:13: nodes.a.gpus: 2 is neither all nor a list of cards; write all, or for example [0, 1]"
    ],
    '{gpus: [0, 8], blocks: "0:10"}': ["8:13: nodes.a.gpus: 8 is no card of host gpu-a, whose gpus are 0, 1, 2, 3"],
    '{gpus: [2], device: cpu, blocks: "0:10"}': ["8:13: nodes.a.gpus: pins card 2, but the device is cpu"],
    '{gpus: all, blocks: "0:10"}\n  b: {gpu: 3, blocks: "0:10"}': [
        "9:12: nodes.b.gpu: card 3 of host gpu-a is taken by a-3"
    ],
    '{gpus: all, port: 31335, blocks: "0:10"}': [
        "8:24: nodes.a.port: port 31337 on host gpu-a is taken by bootstrap-0"
    ],
    '{gpus: [0, 1], blocks: "0:10"}\n  a-1: {gpu: 3, blocks: "0:10"}': [
        '8:3: nodes.a: its node "a-1" is there already; take another name'
    ],
    f'{{gpu: 0, blocks: "0:10"}}\n  {LONG}: {{gpus: [1], blocks: "0:10"}}': [
        f'9:3: nodes.{LONG}: the name of its node "{LONG}-1" has more than 63 letters'
    ],
    '{gpu: 0, blocks: "0:10"}\n  bootstrap: {gpus: [1], blocks: "0:10"}': [
        '9:3: nodes.bootstrap: its node "bootstrap-1" would be named as bootstrap peers are'
    ],
}


@pytest.mark.parametrize(("entry", "expected"), ENTRY_FAULTS.items(), ids=ENTRY_FAULTS.keys())
def test_an_entry_for_several_cards_that_cannot_be_is_reported_once(entry: str, expected: list[str]) -> None:
    spec, findings = judged(f"  a: {entry}\n")
    assert spec is None
    assert [str(finding).removeprefix("swarm.yaml:") for finding in findings] == expected


def test_all_cards_of_a_host_that_lists_none_are_none() -> None:
    _, (finding,) = judged('  a: {gpus: all, blocks: "0:10"}\n', "rack: r1")
    assert str(finding) == "swarm.yaml:8:13: nodes.a.gpus: all cards of host gpu-a, which lists no gpus"
    assert finding.hint == "gpu-a: {gpus: all}"


def test_what_is_shown_has_a_node_for_each_card_and_loads_to_the_same_swarm_with_the_same_cards() -> None:
    spec = spec_of('  a: {gpus: all, blocks: "0:10", port: 31340}\n', "gpus: all", (0, 1, 2))
    shown = render(spec)
    assert "gpus: all" in shown
    assert "a-2: {host: gpu-a, gpu: 2, " in shown
    assert validate_text(shown, "swarm.yaml", Path("/elsewhere"), {GPU_A: (0, 1, 2)})[0] == spec


def test_load_takes_what_is_known_of_the_cards(tmp_path: Path) -> None:
    path = tmp_path / "swarm.yaml"
    path.write_text(file('  a: {gpus: all, blocks: "0:10"}\n', "gpus: all"))
    assert list(load(path, {GPU_A: (0, 1)}).nodes) == ["a-0", "a-1"]
    with pytest.raises(ConfigError, match="one fault"):
        load(path)


def test_the_hosts_alone_are_loaded_while_the_rest_cannot_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "swarm.yaml"
    path.write_text(file('  a: {gpus: all, blocks: "9:2", prot: 1}\n', "gpus: all").replace("me/tiny", "./absent"))
    spec = load_hosts(path)
    assert (spec.name, list(spec.hosts), spec.nodes, spec.path) == ("lab", ["gpu-a"], {}, str(path))
    assert spec.hosts[GPU_A].ssh == "ops@192.0.2.11"
    path.write_text(path.read_text().replace("ops@192.0.2.11", "ops@192.0.2.999"))
    with pytest.raises(ConfigError) as caught:
        load_hosts(path)
    assert [finding.path for finding in caught.value.findings] == ["hosts.gpu-a.address"]


@pytest.mark.parametrize("text", ["", "a: [", "- a\n", "swarm: a.b\n", "hosts: 5\n"])
def test_hosts_that_cannot_be_read_are_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "swarm.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is invalid"):
        load_hosts(path)
