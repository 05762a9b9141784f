"""The lab's bridge and lines: what belongs to which lab is written into the names and the alias of each."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from swarmctl import processes
from swarmctl.lab.needs import program

_MARK = "swarmctl-lab"
_BRIDGE, _LINE = "swb", "swl"
_FIRST_HOST = 11
# Of ours alone (the second bit says so), and the same after a power cycle: else others keep the old one for seconds.
_CARDS = "02:73:77:00:00"


def ip(*words: str) -> str:
    """Run `ip`.

    Raises:
        RuntimeError: with what it says, if it fails.
    """
    return command([program("ip") or "ip", *words])


def command(argv: Sequence[str]) -> str:
    """Run a program that must succeed; returns its output."""
    done = subprocess.run(list(argv), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def sweep() -> None:
    """Remove the bridges and lines of labs whose owner is gone."""
    links = _links()
    for link in links:
        mark, _, owner = str(link.get("ifalias", "")).partition(" ")
        pid, _, started = owner.partition(" ")
        if mark == _MARK and pid.isdigit() and not processes.is_alive(int(pid), int(started)):
            lines = f"{_LINE}{link['ifname'].removeprefix(_BRIDGE)}-"
            for left in (link["ifname"], *(one["ifname"] for one in links if one["ifname"].startswith(lines))):
                _remove(left)


def _remove(name: str) -> None:
    # Of a pair, the kernel removes the other end too; and a line goes with its host, some time after it.
    subprocess.run([program("ip") or "ip", "link", "del", name], capture_output=True, check=False)


def _links() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ip("-j", "link", "show") or "[]")
    return found


class Bridge:
    """A bridge with an address for the operator, in a network that nobody here uses."""

    def __init__(self) -> None:
        sweep()
        taken = {link["ifname"] for link in _links()}
        self._tag = next(tag for number in range(10_000) if f"{_BRIDGE}{(tag := _tag(number))}" not in taken)
        self.name = f"{_BRIDGE}{self._tag}"
        self.network = _free_network()
        self.operator = str(self.network[1])
        owner = os.getpid()
        ip("link", "add", self.name, "address", f"{_CARDS}:01", "type", "bridge")
        ip("link", "set", self.name, "alias", f"{_MARK} {owner} {processes.start_of(owner)}")
        # Without the minute of learning that a real switch takes.
        ip("link", "set", self.name, "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("addr", "add", f"{self.operator}/{self.network.prefixlen}", "dev", self.name)
        ip("link", "set", self.name, "up")

    def address(self, place: int) -> str:
        """The address of the host at this place, from 0."""
        return str(self.network[_FIRST_HOST + place])

    def line(self, place: int) -> str:
        """The name of the bridge's end of a host's line."""
        return f"{_LINE}{self._tag}-{place}"

    def connect(self, place: int, pid: int) -> None:
        """A line from the bridge into the namespace of process `pid`, where it is `eth0`."""
        line = self.line(place)
        card = f"{_CARDS}:{_FIRST_HOST + place:02x}"
        ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "address", card, "netns", str(pid))
        ip("link", "set", line, "master", self.name, "up")

    def disconnect(self, place: int) -> None:
        """Take a host's line away, if it is there."""
        _remove(self.line(place))

    def remove(self) -> None:
        """Take the bridge down."""
        ip("link", "del", self.name)


def _tag(number: int) -> str:
    return f"{(os.getpid() + number) % 10_000:04d}"


def _free_network() -> ipaddress.IPv4Network:
    used = [
        ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network
        for link in json.loads(ip("-j", "-4", "addr", "show") or "[]")
        for address in link.get("addr_info", ())
    ]
    used += [
        ipaddress.ip_network(route["dst"])
        for route in json.loads(ip("-j", "-4", "route", "show") or "[]")
        if route["dst"] != "default"
    ]
    for number in range(256):
        network = ipaddress.IPv4Network(f"10.213.{(os.getpid() + number) % 256}.0/24")
        if not any(network.overlaps(other) for other in used):
            return network
    raise RuntimeError("no network of 10.213.0.0/16 is free")
