"""Who reaches whom: addresses, ports, announcements and machines that a file gets wrong, and the sentences for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmctl.config import validate_text

HEAD = "version: 1\nswarm: lab\nmodel: {source: me/tiny, blocks: 6, hidden_size: 64}\n"
NO_IPV4 = "is no IPv4 address; write four numbers from 0 to 255, for example 192.0.2.11"
NO_SWARM_NAME = "is no swarm name; it takes up to 64 letters, digits, _ and -, and begins with no dash"
NO_SSH = "is no ssh destination; write user@host, or a name from ~/.ssh/config"
A_PORT_BELONGS = "a port belongs to a node or bootstrap peer"
QUOTED = '"lab\\n"'

FAULTS = {
    "ports of bootstrap peers and nodes": (
        (
            f"{HEAD}hosts: {{x: {{ssh: ops@192.0.2.1}}, y: {{ssh: ops@192.0.2.2}}}}\nbootstrap:\n"
            "  - {host: x, port: 31337}\n  - {host: y, port: 31337}\n  - {host: x, port: 31337}\nnodes:\n"
            '  a: {host: x, port: 31338, blocks: "0:6"}\n  b: {host: y, port: 31337, blocks: "0:6"}\n'
        ),
        [
            "8:21: bootstrap[2].port: port 31337 on host x is taken by bootstrap-0",
            "11:22: nodes.b.port: port 31337 on host y is taken by bootstrap-1",
        ],
    ),
    "bootstrap peers that are announced wrongly": (
        (
            f"{HEAD}hosts: {{x: {{ssh: ops@192.0.2.1}}}}\nbootstrap:\n"
            '  - {announce: "192.0.2.9:1"}\n  - {port: 2, announce: "127.0.0.1:2"}\n  - {port: 3, announce: "a:3"}\n'
            '  - {port: 4, announce: "[::1]:4"}\nnodes: {a: {blocks: "0:6"}}\n'
        ),
        [
            "6:16: bootstrap[0].announce: needs a port of its own; what forwards to it must know where to",
            "7:25: bootstrap[1].announce: 127.0.0.1 cannot be reached from other machines",
            '8:25: bootstrap[2].announce: "a:3" begins with a, which is no IPv4 address',
            '9:25: bootstrap[3].announce: "[::1]:4" is not IP:PORT with an IPv4 address; IPv6 is not supported',
        ],
    ),
    "announced where another one listens": (
        (
            f"{HEAD}hosts: {{x: {{ssh: ops@192.0.2.1}}, y: {{ssh: ops@192.0.2.2}}}}\n"
            "bootstrap: [{host: x, port: 31337}]\nnodes:\n"
            '  a: {host: y, port: 1, announce: "192.0.2.1:31337", blocks: "0:6"}\n'
        ),
        ["7:35: nodes.a.announce: 192.0.2.1:31337 is where bootstrap-0 is reached already"],
    ),
    "one machine under two logins": (
        (
            f"{HEAD}hosts:\n  a: {{ssh: gpu-a}}\n  b: {{ssh: ops@GPU-A, address: 192.0.2.9}}\n"
            'bootstrap: [{host: a}]\nnodes: {n: {host: a, blocks: "0:6"}}\n'
        ),
        ["6:12: hosts.b.ssh: ops@GPU-A is host a already"],
    ),
    "one machine with two addresses in ssh's configuration": (
        (
            f"{HEAD}hosts:\n  a: {{ssh: ops@192.0.2.1}}\n  b: {{ssh: box, address: 192.0.2.1}}\n"
            '  c: {connect: local, address: 192.0.2.1}\nbootstrap: [{host: a}]\nnodes: {n: {host: a, blocks: "0:6"}}\n'
        ),
        [
            "6:26: hosts.b.address: 192.0.2.1 is the address of host a already",
            "7:32: hosts.c.address: 192.0.2.1 is the address of host a already",
        ],
    ),
    "addresses that nobody reaches": (
        (
            f"{HEAD}hosts:\n  a: {{ssh: x@192.0.2.300}}\n  b: {{ssh: x@b, address: '2001:db8::1'}}\n"
            "  c: {ssh: c, address: 0.0.0.0}\n  d: {ssh: d, address: 'd:31337'}\n  e: {ssh: e, address: ''}\n"
            "  f: {ssh: e+1}\n  g: {ssh: g, address: 5}\n"
            'bootstrap: [{host: a}]\nnodes: {n: {host: a, blocks: "0:6"}}\n'
        ),
        [
            f'5:3: hosts.a.address: is missing; "192.0.2.300" {NO_IPV4}',
            '6:26: hosts.b.address: "2001:db8::1" is an IPv6 address, and IPv6 is not supported; give an IPv4 address',
            '7:24: hosts.c.address: "0.0.0.0" is nothing to connect to; write the address that the other hosts use',
            f'8:24: hosts.d.address: "d:31337" ends with a port; write d alone, {A_PORT_BELONGS}',
            '9:24: hosts.e.address: "" is no address; write an IPv4 address or a DNS name',
            '10:3: hosts.f.address: is missing; "e+1" is no address; write an IPv4 address or a DNS name',
            "11:24: hosts.g.address: must be text, not 5",
        ],
    ),
    "names that end in a new line": (
        (
            f'{HEAD.replace("lab", QUOTED)}hosts:\n  "a\\n": {{ssh: a}}\n  b: {{ssh: "b\\n"}}\n'
            'bootstrap: [{host: b}]\nnodes:\n  "n\\n": {host: b, blocks: "0:6"}\n'
        ),
        [
            f'2:8: swarm: "lab\n" {NO_SWARM_NAME}',
            '5:3: hosts.a\n: "a\n" is no host name; it takes letters, digits, dot, _ and -',
            f'6:12: hosts.b.ssh: "b\n" {NO_SSH}',
            '9:3: nodes.n\n: "n\n" is no node name; it takes up to 63 lower-case letters, digits and -',
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_reached_is_reported_with_line_and_column(text: str, expected: list[str]) -> None:
    spec, findings = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert spec is None
    assert [str(finding) for finding in findings] == [f"swarm.yaml:{line}" for line in expected]


@pytest.mark.parametrize(
    ("hosts", "hint"),
    [
        (
            "x: {connect: local}, y: {ssh: ops@192.0.2.1}",
            "address: this machine's IPv4 address or DNS name as the other hosts use it",
        ),
        (
            "x: {ssh: ops@localhost}, y: {ssh: ops@192.0.2.1}",
            "address: the IPv4 address or DNS name as the other hosts use it",
        ),
    ],
)
def test_a_loopback_among_several_machines_is_refused_with_what_to_write(hosts: str, hint: str) -> None:
    text = f'{HEAD}hosts: {{{hosts}}}\nbootstrap: [{{host: y}}]\nnodes: {{a: {{host: x, blocks: "0:6"}}}}\n'
    _, (finding,) = validate_text(text, "swarm.yaml", Path("/nowhere"))
    assert finding.path == "hosts.x.address"
    assert "cannot be reached from other machines, and a would be there" in finding.message
    assert finding.hint == hint


def test_a_loopback_that_nothing_is_on_is_no_fault() -> None:
    text = (
        f"{HEAD}hosts: {{x: {{connect: local}}, y: {{ssh: ops@192.0.2.1}}}}\nbootstrap: [{{host: y}}]\n"
        'nodes: {a: {host: y, blocks: "0:6"}}\n'
    )
    assert validate_text(text, "swarm.yaml", Path("/nowhere"))[1] == ()


def test_several_hosts_on_this_machine_share_its_address_and_not_its_ports() -> None:
    text = (
        f"{HEAD}hosts: {{x: {{connect: local}}, y: {{connect: local}}}}\nbootstrap: [{{host: x}}]\nnodes:\n"
        '  a: {host: x, port: 4000, blocks: "0:6"}\n  b: {host: y, port: 4001, blocks: "0:6"}\n'
    )
    assert validate_text(text, "swarm.yaml", Path("/nowhere"))[1] == ()
    _, (finding,) = validate_text(text.replace("4001", "4000"), "swarm.yaml", Path("/nowhere"))
    assert finding.message == "port 4000 on host y is taken by a"
