"""Faults that take more than one key to see, and the exact sentences that an operator gets for them."""

from __future__ import annotations

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
    "announced without a port of its own": (
        f'{HEAD}nodes:\n  a: {{blocks: "0:6", announce: "192.0.2.1:4000"}}\n',
        ["5:32: nodes.a.announce: needs a port of its own; what forwards to it must know where to"],
    ),
    "announced twice": (
        (
            f'{HEAD}nodes:\n  a: {{blocks: "0:6", port: 1, announce: "192.0.2.1:4000"}}\n'
            '  b: {blocks: "0:6", port: 2, announce: "192.0.2.1:4000"}\n'
        ),
        ["6:41: nodes.b.announce: 192.0.2.1:4000 is where a is reached already"],
    ),
    "announced where only its own host reaches it": (
        f'{HEAD}{TWO_HOSTS}nodes:\n  a: {{host: gpu-b, blocks: "0:6", port: 1, announce: "127.0.0.1:4000"}}\n',
        ["9:54: nodes.a.announce: 127.0.0.1 cannot be reached from other machines"],
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
            '9:32: hosts.f.address: "a/b" is no address; write an IPv4 address or a DNS name',
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
        ["4:23: hosts.a.address: 127.0.0.1 cannot be reached from other machines, and bootstrap-0, a would be there"],
    ),
    "local bootstrap that others cannot reach": (
        (
            f"{HEAD}hosts: {{here: {{connect: local}}, b: {{ssh: x@192.0.2.1}}}}\n"
            'bootstrap: [{host: here}]\nnodes: {n: {host: b, blocks: "0:6"}}\n'
        ),
        ["4:9: hosts.here.address: 127.0.0.1 cannot be reached from other machines, and bootstrap-0 would be there"],
    ),
    "keys of later versions": (
        f"{HEAD}{NODES}client: {{standby: 0}}\n",
        [
            '6:10: client.standby: unknown key "standby"',
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
