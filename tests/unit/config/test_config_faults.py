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
TWO_HOSTS = """\
hosts:
  gpu-a: {ssh: ops@192.0.2.11, gpus: [0, 1]}
  gpu-b: {ssh: ops@192.0.2.12, gpus: [0]}
bootstrap: [{host: gpu-a, port: 31337}]
"""

NO_SWARM_NAME = "is no swarm name; it takes up to 64 letters, digits, _ and -, and begins with no dash"
NO_SSH = "is no ssh destination; write user@host, or a name from ~/.ssh/config"


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


FILE_FAULTS = {
    "other version": (
        f"version: 2\nswarm: lab\n{MODEL}\n{NODES}",
        ["1:10: version: 2 is not a version that this swarmctl reads; it reads 1"],
    ),
    "everything missing": (
        "redundancy: {}\n",
        [
            "1:1: version: is missing",
            "1:1: swarm: is missing",
            "1:1: model.source: is missing",
            "1:1: nodes: is missing",
        ],
    ),
    "swarm name": (
        f"version: 1\nswarm: my.swarm\n{MODEL}\n{NODES}",
        [f'2:8: swarm: "my.swarm" {NO_SWARM_NAME}'],
    ),
    "swarm name that is a number": (
        f"version: 1\nswarm: 2024\n{MODEL}\n{NODES}",
        ["2:8: swarm: must be text, not 2024"],
    ),
    "swarm name that is an option": (
        f"version: 1\nswarm: -x\n{MODEL}\n{NODES}",
        [f'2:8: swarm: "-x" {NO_SWARM_NAME}'],
    ),
    "misspelt section": (
        f"version: 1\nswarm: lab\n{MODEL}\nnode:\n" + '  a: {blocks: "0:6"}\n',
        ['4:1: node: unknown key "node"; did you mean "nodes"?'],
    ),
    "setting at the top": (
        f"{HEAD}{NODES}quant: nf4\n",
        ['6:1: quant: unknown key "quant"; it belongs in defaults'],
    ),
    "section twice": (
        f"{HEAD}{NODES}{NODES}",
        ["6:1: nodes: is written twice; the first is in line 4"],
    ),
    "model without a shape": (
        "version: 1\nswarm: lab\nmodel: {source: me/tiny}\n" + NODES,
        [
            "3:1: model.blocks: is missing; me/tiny is no folder here and no hub name whose shape is known",
            "3:1: model.hidden_size: is missing; me/tiny is no folder here and no hub name whose shape is known",
        ],
    ),
    "shape that is not the model's": (
        ('version: 1\nswarm: lab\nmodel: {source: bigscience/bloom-560m, blocks: 6}\nnodes: {a: {blocks: "0:24"}}\n'),
        ["3:48: model.blocks: 6 contradicts the checkpoint, which has 24"],
    ),
    "model that is no folder": (
        "version: 1\nswarm: lab\nmodel: {source: ./tiny}\n" + NODES,
        ["3:17: model.source: there is no folder /nowhere/tiny"],
    ),
    "model that is neither": (
        "version: 1\nswarm: lab\nmodel: {source: tiny}\n" + NODES,
        ["3:17: model.source: there is no folder /nowhere/tiny"],
    ),
    "model as text": (
        "version: 1\nswarm: lab\nmodel: me/tiny\n" + NODES,
        ['3:8: model: must be a mapping of keys, not "me/tiny"'],
    ),
    "prefix with a dot": (
        f"version: 1\nswarm: lab\n{MODEL[:-1]}, dht_prefix: v1.0}}\n{NODES}",
        ['3:66: model.dht_prefix: "v1.0" may not contain dots or spaces'],
    ),
    "prefix with a space": (
        f"version: 1\nswarm: lab\n{MODEL[:-1]}, dht_prefix: a b}}\n{NODES}",
        ['3:66: model.dht_prefix: "a b" may not contain dots or spaces'],
    ),
    "min above target": (
        f"{HEAD}{NODES}redundancy: {{min: 3, target: 2, by: gpu}}\n",
        [
            "6:19: redundancy.min: 3 is more than the target of 2",
            "6:19: redundancy.min: blocks 0:6 can never have 3 replicas by gpu: a is on here/a; 2 more gpus needed",
        ],
    ),
    "gap": (
        f'{HEAD}nodes:\n  a: {{blocks: "0:2"}}\n  b: {{blocks: "4:5"}}\n',
        ["4:1: nodes: no node serves blocks 2:4, 5:6 of the model's 6"],
    ),
    "redundancy out of reach": (
        HEAD + "redundancy: {min: 2, by: host}\n" + TWO_HOSTS + "nodes:\n"
        '  a0: {host: gpu-a, gpu: 0, blocks: "0:4"}\n'
        '  a1: {host: gpu-a, gpu: 1, blocks: "0:6"}\n'
        '  b0: {host: gpu-b, gpu: 0, blocks: "4:6"}\n',
        ["4:19: redundancy.min: blocks 0:4 can never have 2 replicas by host: a0, a1 are on gpu-a; 1 more host needed"],
    ),
    "port twice": (
        f'{HEAD}nodes:\n  a: {{blocks: "0:6", port: 4000}}\n  b: {{blocks: "0:6", port: 4000}}\n',
        ["6:28: nodes.b.port: port 4000 on host here is taken by a"],
    ),
    "port of a bootstrap": (
        f'{HEAD}bootstrap: [{{port: 4000}}]\nnodes:\n  a: {{blocks: "0:6", port: 4000}}\n',
        ["6:28: nodes.a.port: port 4000 on host here is taken by bootstrap-0"],
    ),
    "port twice on one machine with two names": (
        (
            f"{HEAD}hosts: {{x: {{connect: local}}, y: {{connect: local}}}}\n"
            "bootstrap: [{host: x, port: 4000}, {host: y, port: 4000}]\n"
            'nodes: {a: {host: x, blocks: "0:6"}}\n'
        ),
        ["5:52: bootstrap[1].port: port 4000 on host y is taken by bootstrap-0"],
    ),
    "card twice": (
        (
            f"{HEAD}{TWO_HOSTS}nodes:\n"
            '  a: {host: gpu-a, gpu: 1, blocks: "0:6"}\n  b: {host: gpu-a, gpu: 1, blocks: "0:6"}\n'
        ),
        ["10:25: nodes.b.gpu: card 1 of host gpu-a is taken by a"],
    ),
    "only card twice": (
        f'{HEAD}{TWO_HOSTS}nodes:\n  a: {{host: gpu-b, blocks: "0:6"}}\n  b: {{host: gpu-b, blocks: "0:6"}}\n',
        ["10:3: nodes.b.gpu: card 0 of host gpu-b is taken by a"],
    ),
    "card that is not listed": (
        f'{HEAD}{TWO_HOSTS}nodes:\n  a: {{host: gpu-a, gpu: 7, blocks: "0:6"}}\n',
        ["9:25: nodes.a.gpu: 7 is no card of host gpu-a, whose gpus are 0, 1"],
    ),
    "card not chosen": (
        f'{HEAD}{TWO_HOSTS}nodes:\n  a: {{host: gpu-a, blocks: "0:6"}}\n',
        ["9:3: nodes.a.gpu: is missing; host gpu-a has the cards 0, 1"],
    ),
    "card of a node that computes on the CPU": (
        f'{HEAD}{TWO_HOSTS}defaults: {{device: cpu}}\nnodes:\n  a: {{host: gpu-a, gpu: 0, blocks: "0:6"}}\n',
        ["10:25: nodes.a.gpu: pins card 0, but the device is cpu"],
    ),
    "type that no CPU computes, for several nodes": (
        f'{HEAD}defaults: {{torch_dtype: float16}}\nnodes:\n  a: {{blocks: "0:6"}}\n  b: {{blocks: "0:6"}}\n',
        ["4:25: defaults.torch_dtype: petals refuses float16 on a CPU, and these nodes have no GPU: a, b"],
    ),
    "host missing": (
        f'{HEAD}{TWO_HOSTS}nodes:\n  a: {{gpu: 0, blocks: "0:6"}}\n',
        ["9:3: nodes.a.host: is missing; there are 2 hosts: gpu-a, gpu-b"],
    ),
    "node names": (
        f'{HEAD}nodes:\n  Left_A: {{blocks: "0:6"}}\n  bootstrap-7: {{blocks: "0:6"}}\n',
        [
            '5:3: nodes.Left_A: "Left_A" is no node name; it takes up to 63 lower-case letters, digits and -',
            '6:3: nodes.bootstrap-7: "bootstrap-7" is how bootstrap peers are named; take another name',
        ],
    ),
    "host forms": (
        (
            f"{HEAD}hosts:\n  a b: {{connect: local}}\n  c: {{}}\n  d: {{connect: local, ssh: x}}\n"
            "  e: {ssh: -oProxyCommand=x}\n  f: {connect: local, address: a/b, gpus: [1, 1]}\n"
            'bootstrap: [{host: c}]\nnodes: {n: {host: c, blocks: "0:6"}}\n'
        ),
        [
            '5:3: hosts.a b: "a b" is no host name; it takes letters, digits, dot, _ and -',
            "6:3: hosts.c: says neither connect: local nor ssh: user@host",
            "7:23: hosts.d.ssh: contradicts connect: local; keep one of the two",
            f'8:12: hosts.e.ssh: "-oProxyCommand=x" {NO_SSH}',
            '9:32: hosts.f.address: "a/b" is no address; write an IP address or a DNS name',
            "9:43: hosts.f.gpus: lists 1 twice",
        ],
    ),
    "one machine under two names": (
        (
            f"{HEAD}hosts:\n  a: {{ssh: x@192.0.2.1}}\n  b: {{ssh: x@192.0.2.1}}\n"
            'bootstrap: [{host: a}]\nnodes: {n: {host: a, blocks: "0:6"}}\n'
        ),
        ["6:12: hosts.b.ssh: x@192.0.2.1 is host a already"],
    ),
    "bootstrap missing": (
        f'{HEAD}hosts: {{a: {{ssh: x@192.0.2.1}}}}\nnodes: {{n: {{blocks: "0:6"}}}}\n',
        ["1:1: bootstrap: is missing; with hosts behind ssh it must say where the others join"],
    ),
    "bootstrap empty": (
        f"{HEAD}bootstrap: []\n{NODES}",
        ["4:12: bootstrap: needs at least one entry"],
    ),
    "remote bootstrap on loopback": (
        f"{HEAD}hosts: {{a: {{ssh: x@b, address: 127.0.0.1}}}}\nbootstrap: [{{host: a}}]\n{NODES}",
        ["4:23: hosts.a.address: 127.0.0.1 cannot be reached from other machines"],
    ),
    "local bootstrap that others cannot reach": (
        (
            f"{HEAD}hosts: {{here: {{connect: local}}, b: {{ssh: x@192.0.2.1}}}}\n"
            'bootstrap: [{host: here}]\nnodes: {n: {host: b, blocks: "0:6"}}\n'
        ),
        ["4:9: hosts.here.address: 127.0.0.1 cannot be reached from other machines"],
    ),
    "keys of later versions": (
        f"{HEAD}{NODES}client: {{suspect_after: 1s, standby: 0}}\n",
        [
            '6:10: client.suspect_after: unknown key "suspect_after"',
            '6:29: client.standby: unknown key "standby"',
        ],
    ),
    "alias of itself": (
        f"{HEAD}{NODES}defaults: &d {{quant: *d}}\n",
        ["6:11: defaults.quant: contains itself through an alias"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), FILE_FAULTS.values(), ids=FILE_FAULTS.keys())
def test_a_bad_file_is_reported_with_line_and_column(text: str, expected: list[str]) -> None:
    assert faults(text) == [f"swarm.yaml:{line}" for line in expected]


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
