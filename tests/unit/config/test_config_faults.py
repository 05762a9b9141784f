"""Bad files and the exact sentences that an operator gets for them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from swarmctl.config import validate_text

# Six blocks whose shape the file gives, so that no checkpoint is needed.
MODEL = "model: {source: me/tiny, blocks: 6, hidden_size: 64}"
HEAD = f"version: 1\nswarm: lab\n{MODEL}\n"
NODES = 'nodes:\n  a: {blocks: "0:6"}\n'


def faults(text: str, base: Path = Path("/nowhere")) -> list[str]:
    spec, findings = validate_text(text, "swarm.yaml", base)
    assert (spec is None) == bool(findings)
    return [str(finding) for finding in findings]


def node_fault(node: str, before: str = "") -> list[str]:
    """The faults of a file whose one node is the flow mapping `node`, in line 5 (or later, after `before`)."""
    return faults(f"{HEAD}{before}nodes:\n  a: {node}\n")


SYNTAX = {
    "unclosed": ("nodes: {a: 1\n", ["2:1: not valid YAML while parsing a flow mapping: expected ',' or '}', but got"]),
    "tab": ("swarm:\n\tname: x\n", ["2:1: not valid YAML while scanning for the next token: found character '\\t'"]),
    "colon": ("swarm: a: b\n", ["1:9: not valid YAML: mapping values are not allowed here"]),
    "control character": ("swarm: a\n  \x07b\n", ["2:3: character 7 may not stand in a YAML file"]),
    "two documents": ("a: 1\n---\nb: 1\n", ["2:1: not valid YAML expected a single document in the stream"]),
    "unknown anchor": ("a: *b\n", ["1:4: not valid YAML: found undefined alias 'b'"]),
    "empty": ("", ["1:1: the file is empty"]),
    "only comments": ("# nothing\n", ["1:1: the file is empty"]),
    "a list": ("- a\n", ["1:1: must be a mapping of keys, not a list"]),
    "text": ("hello\n", ['1:1: must be a mapping of keys, not "hello"']),
    "nested too deeply": ("[" * 1000, ["1:1: the file is nested too deeply"]),
}


@pytest.mark.parametrize(("text", "expected"), SYNTAX.values(), ids=SYNTAX.keys())
def test_text_that_is_no_mapping_is_reported_where_it_breaks(text: str, expected: list[str]) -> None:
    found = faults(text)
    assert len(found) == len(expected)
    for sentence, beginning in zip(found, expected, strict=True):
        assert sentence.startswith(f"swarm.yaml:{beginning}")


NODE_FAULTS = {
    '{blocks: "8:4"}': '15: nodes.a.blocks: "8:4" is empty; the end must be greater than the start',
    '{blocks: "4:4"}': '15: nodes.a.blocks: "4:4" is empty; the end must be greater than the start',
    "{blocks: 0:6, announce: gpu.example:4000}": (
        '30: nodes.a.announce: "gpu.example:4000" begins with gpu.example, which is no IPv4 address'
    ),
    "{blocks: 0:6, announce: 192.0.2.300:4000}": (
        '30: nodes.a.announce: "192.0.2.300:4000" begins with 192.0.2.300, which is no IPv4 address'
    ),
    "{blocks: 0:6, announce: 0.0.0.0:4000}": (
        '30: nodes.a.announce: "0.0.0.0:4000" begins with 0.0.0.0, which nobody can connect to'
    ),
    "{blocks: 0:6, announce: 192.0.2.1:0}": (
        '30: nodes.a.announce: "192.0.2.1:0" ends with port 0; ports are 1 to 65535'
    ),
    "{blocks: 0:6, announce: 192.0.2.1:70000}": (
        '30: nodes.a.announce: "192.0.2.1:70000" ends with port 70000; ports are 1 to 65535'
    ),
    "{blocks: 0:6, announce: 192.0.2.1}": (
        '30: nodes.a.announce: "192.0.2.1" is not IP:PORT; write both, for example "203.0.113.5:31340"'
    ),
    '{blocks: 0:6, announce: ":4000"}': (
        '30: nodes.a.announce: ":4000" is not IP:PORT; write both, for example "203.0.113.5:31340"'
    ),
    "{blocks: 0:6, announce: 4000}": (
        '30: nodes.a.announce: 4000 is not IP:PORT; write both, for example "203.0.113.5:31340"'
    ),
    "{blocks: 4:2}": '15: nodes.a.blocks: "4:2" is empty; the end must be greater than the start',
    '{blocks: "0-6"}': '15: nodes.a.blocks: "0-6" is not a block range; write START:END, for example 0:8',
    '{blocks: "-1:6"}': '15: nodes.a.blocks: "-1:6" is not a block range; write START:END, for example 0:8',
    "{blocks: 6}": '15: nodes.a.blocks: 6 is not a block range; write START:END, for example "0:8"',
    "{blocks: [0, 6]}": '15: nodes.a.blocks: a list is not a block range; write START:END, for example "0:8"',
    '{blocks: "0:90"}': '15: nodes.a.blocks: "0:90" ends beyond the model\'s 6 blocks',
    '{blocks: "6:9"}': '15: nodes.a.blocks: "6:9" ends beyond the model\'s 6 blocks',
    "{}": "3: nodes.a.blocks: is missing",
    "": "3: nodes.a.blocks: is missing",
    "{blocks: }": "7: nodes.a.blocks: is missing",
    '{block: "0:6"}': '7: nodes.a.block: unknown key "block"; did you mean "blocks"?',
    '{blocks: "0:6", zzz: 1}': '22: nodes.a.zzz: unknown key "zzz"',
    '{blocks: "0:6", min: 1}': '22: nodes.a.min: unknown key "min"; it belongs in redundancy',
    '{blocks: "0:6", swarm: x}': '22: nodes.a.swarm: unknown key "swarm"; it belongs in the top level',
    '"0:6"': '6: nodes.a: must be a mapping of keys, not "0:6"',
    '{blocks: "0:6", port: 0}': "28: nodes.a.port: must be at least 1, not 0",
    '{blocks: "0:6", port: 70000}': "28: nodes.a.port: must be at most 65535, not 70000",
    '{blocks: "0:6", port: "1"}': '28: nodes.a.port: must be a whole number, not "1"',
    '{blocks: "0:6", port: 1.5}': "28: nodes.a.port: must be a whole number, not 1.5",
    '{blocks: "0:6", port: true}': "28: nodes.a.port: must be a whole number, not true",
    '{blocks: "0:6", host: 5}': "28: nodes.a.host: must be text, not 5",
    '{blocks: "0:6", host: her}': '28: nodes.a.host: there is no host "her"; did you mean "here"?',
    '{blocks: "0:6", host: x}': '28: nodes.a.host: there is no host "x"; there are: here',
    '{blocks: "0:6", gpu: 0}': "27: nodes.a.gpu: 0 is no card of host here, which lists no gpus",
    '{blocks: "0:6", gpu: -1}': "27: nodes.a.gpu: must be at least 0, not -1",
    '{blocks: "0:6", quant: nf5}': '29: nodes.a.quant: must be none, int8 or nf4, not "nf5"; did you mean "nf4"?',
    '{blocks: "0:6", quant: int8}': "29: nodes.a.quant: int8 needs a GPU, and these nodes have none: a",
    '{blocks: "0:6", torch_dtype: fp16}': (
        '35: nodes.a.torch_dtype: must be auto, float32, float16 or bfloat16, not "fp16"; did you mean "float16"?'
    ),
    '{blocks: "0:6", torch_dtype: float16}': (
        "35: nodes.a.torch_dtype: petals refuses float16 on a CPU, and these nodes have no GPU: a"
    ),
    '{blocks: "0:6", device: cuda}': "30: nodes.a.device: cuda on host here, which lists no gpus: a",
    '{blocks: "0:6", threads: 0}': "31: nodes.a.threads: must be at least 1, not 0",
    '{blocks: "0:6", cuda_graphs: yes}': '35: nodes.a.cuda_graphs: "yes" is neither on nor off',
    '{blocks: "0:6", cuda_graphs: 1}': "35: nodes.a.cuda_graphs: 1 is neither on nor off",
    '{blocks: "0:6", restarts: -1}': "32: nodes.a.restarts: must be at least 0, not -1",
    '{blocks: "0:6", throughput: 0}': "34: nodes.a.throughput: must be greater than 0, not 0",
    '{blocks: "0:6", throughput: fast}': '34: nodes.a.throughput: must be a number, not "fast"',
    '{blocks: "0:6", num_handlers: }': "35: nodes.a.num_handlers: must be a whole number, not empty",
    '{blocks: "0:6", update_period: soon}': (
        '37: nodes.a.update_period: "soon" is not a duration; write 250ms, 10s, 5m, 1h or a number of seconds'
    ),
    '{blocks: "0:6", update_period: 0}': (
        "37: nodes.a.update_period: 0 is out of range; a duration is at least 1ms and at most 8760h"
    ),
    '{blocks: "0:6", update_period: -1s}': (
        '37: nodes.a.update_period: "-1s" is not a duration; write 250ms, 10s, 5m, 1h or a number of seconds'
    ),
    '{blocks: "0:6", blocks: "0:3"}': "22: nodes.a.blocks: is written twice; the first is in line 5",
    '{blocks: "0:6", port: !port 1}': "28: nodes.a.port: the tag !port has no meaning here",
    '{blocks: "0:6", port: !!int x}': '28: nodes.a.port: "x" is not a number',
    '{blocks: "0:6", [a]: 1}': "22: nodes.a: a key must be text",
}


@pytest.mark.parametrize(("node", "expected"), NODE_FAULTS.items(), ids=NODE_FAULTS.keys())
def test_a_bad_node_is_reported_with_line_and_column(node: str, expected: str) -> None:
    assert node_fault(node) == [f"swarm.yaml:5:{expected}"]


def test_all_faults_come_at_once_and_in_the_order_of_the_file() -> None:
    text = textwrap.dedent("""\
        version: 1
        swarm: my swarm
        modle: {source: x}
        model: {source: petals-team/StableBeluga2, dht_prefix: a.b}
        redundancy: {min: 3, target: 2, by: hosts}
        defaults: {quant: nf5, atn_cache_tokens: 16}
        hosts:
          here: {connect: local, gpus: [0, one]}
        nodes:
          a0: {blocks: "0:90", port: 80000}
          a1: {blocks: "8:4", host: her}
          a2: 0:40
        client: {connect_timeout: now}
        """)
    assert [fault.removeprefix("swarm.yaml:").split(" ")[0] for fault in faults(text)] == [
        "2:8:", "3:1:", "4:56:", "5:19:", "5:37:", "6:19:", "6:24:", "8:36:",
        "10:16:", "10:30:", "11:16:", "11:29:", "12:7:", "13:27:",
    ]  # fmt: skip


def test_a_finding_carries_the_line_the_path_and_what_would_help() -> None:
    _, (finding,) = validate_text(f'{HEAD}nodes:\n  a: {{blocks: "2:90"}}\n', "x/swarm.yaml", Path("/nowhere"))
    assert (finding.file, finding.line, finding.column) == ("x/swarm.yaml", 5, 15)
    assert finding.path == "nodes.a.blocks"
    assert finding.source_line == '  a: {blocks: "2:90"}'
    assert finding.hint == 'blocks: "2:6"'


@pytest.mark.parametrize(
    ("nodes", "message", "hint"),
    [
        ("a: {blocks: auto}\n", "; on no node: 0:6", 'blocks: "0:6"'),
        ('a: {blocks: "0:4"}\n  b: {blocks: auto}\n', "; on no node: 4:6", 'blocks: "4:6"'),
        (
            'a: {blocks: "0:6"}\n  b: {blocks: auto}\n',
            "; below the target of 2: 0:6",
            'blocks: "0:6"',
        ),
        ('a: {blocks: "0:9"}\n  b: {blocks: auto}\n', "", 'blocks: "0:8"'),
    ],
)
def test_automatic_blocks_are_refused_with_a_range_that_would_help(nodes: str, message: str, hint: str) -> None:
    _, findings = validate_text(f"{HEAD}nodes:\n  {nodes}", "swarm.yaml", Path("/nowhere"))
    finding = findings[-1]
    assert finding.message == f"auto is not supported yet; write an explicit range{message}"
    assert finding.hint == hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("~/m", "a small one to play with: swarmctl model tiny --family llama -o ~/m"),
        ("./tiny-bloom", "a small one to play with: swarmctl model tiny --family bloom -o /base/tiny-bloom"),
        ('"./my llama"', "a small one to play with: swarmctl model tiny --family llama -o '/base/my llama'"),
        ("~/smollm2-135m-instruct", "swarmctl model import demo:smollm2 -o ~/smollm2-135m-instruct"),
    ],
)
def test_a_missing_checkpoint_comes_with_the_command_that_makes_it(source: str, hint: str) -> None:
    text = f"version: 1\nswarm: lab\nmodel: {{source: {source}}}\n{NODES}"
    _, (finding,) = validate_text(text, "swarm.yaml", Path("/base"))
    assert finding.hint == hint


def test_a_checkpoint_with_a_broken_configuration_is_reported_at_its_source(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{")
    found = faults(f"version: 1\nswarm: lab\nmodel: {{source: m}}\n{NODES}", tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"swarm.yaml:3:17: model.source: {tmp_path}/m/config.json is not JSON: ")


def test_a_model_that_petals_cannot_serve_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    shape = '"n_layer": 6, "n_embd": 64, "n_head": 4, "vocab_size": 99'
    (tmp_path / "m/config.json").write_text(f'{{"model_type": "gpt2", {shape}}}')
    assert faults(f"version: 1\nswarm: lab\nmodel: {{source: m}}\n{NODES}", tmp_path) == [
        "swarm.yaml:3:17: model.source: petals cannot serve a gpt2 model; it serves bloom, falcon, llama, mixtral"
    ]


def test_a_checkpoint_stored_in_float16_needs_another_type_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    shape = '"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99'
    (tmp_path / "m/config.json").write_text(f'{{"model_type": "llama", "torch_dtype": "float16", {shape}}}')
    head = "version: 1\nswarm: lab\nmodel: {source: m}\n"
    assert faults(head + NODES, tmp_path) == [
        (
            "swarm.yaml:3:17: model.source: the checkpoint is stored in float16, which petals refuses on a CPU, "
            "and these nodes have no GPU: a"
        )
    ]
    assert faults(f"{head}{NODES}defaults: {{torch_dtype: float32}}\n", tmp_path) == []


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert any("has more than 50000 entries" in fault for fault in faults("\n".join(lines)))
