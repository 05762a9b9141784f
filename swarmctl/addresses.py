"""Where peers are reached: hosts as an operator writes them, multiaddrs as libp2p does. Pure: resolves no names.

A name stays a name (`/dns4/…`): each peer resolves it when it dials, so a host may get another address meanwhile.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

HIGHEST_PORT = 65535
_LONGEST_NAME = 253
# The underscore is no part of a host name by the book; names in /etc/hosts have it all the same.
_LABEL = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\Z")
_MULTIADDR = re.compile(r"^/(?P<kind>[a-z0-9]+)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})(/p2p/(?P<peer>[^/]+))?\Z")
_PEER = re.compile(r"^[^/\s]+\Z")


@dataclass(frozen=True, kw_only=True)
class Multiaddr:
    """Where a TCP port is reached. `host` is an IPv4 address or a DNS name; `peer` None: whoever listens there.

    Raises:
        ValueError: for a host, port or peer that cannot be.
    """

    host: str
    port: int
    peer: str | None = None

    def __post_init__(self) -> None:
        _require_host(self.host)
        if not 1 <= self.port <= HIGHEST_PORT:
            raise ValueError(f"port {self.port} is none; ports are 1 to {HIGHEST_PORT}")
        if self.peer is not None and not _PEER.match(self.peer):
            raise ValueError(f'"{self.peer}" is no peer id')

    def __str__(self) -> str:
        kind = "ip4" if _is_ipv4(self.host) else "dns4"
        return f"/{kind}/{self.host}/tcp/{self.port}" + (f"/p2p/{self.peer}" if self.peer else "")


def multiaddr(host: str, port: int, peer: str | None = None) -> str:
    """`/ip4/192.0.2.1/tcp/31337`, or `/dns4/gpu-a/tcp/31337` for a name; with `/p2p/PEER` if a peer is given.

    Raises:
        ValueError: for a host, port or peer that cannot be.
    """
    return str(Multiaddr(host=host, port=port, peer=peer))


def parse_multiaddr(text: str) -> Multiaddr:
    """The parts of `/ip4/…/tcp/…[/p2p/…]` or `/dns4/…/tcp/…[/p2p/…]`.

    Raises:
        ValueError: with a sentence an operator can act on.
    """
    found = _MULTIADDR.match(text)
    if found is None:
        raise ValueError(f'"{text}" is no address of a peer; write /ip4/ADDRESS/tcp/PORT or /dns4/NAME/tcp/PORT')
    kind, host = found["kind"], found["host"]
    if kind not in ("ip4", "dns4"):
        raise ValueError(f'"{text}" begins with /{kind}/; only /ip4/ and /dns4/ are supported')
    if (kind == "ip4") != _is_ipv4(host):
        raise ValueError(f'"{text}" has {host} after /{kind}/, which takes {_TAKES[kind]}')
    return Multiaddr(host=host, port=int(found["port"]), peer=found["peer"])


_TAKES = {"ip4": "an IPv4 address", "dns4": "a DNS name"}


def host_fault(text: str) -> str | None:
    """Why nobody can connect to what an operator wrote as a host, as the predicate of a sentence; None: somebody may.

    Whether a name can be resolved is not asked.
    """
    if _is_ipv6(text):
        return "is an IPv6 address, and IPv6 is not supported; give an IPv4 address"
    if text.startswith("/"):
        return "is a multiaddr; write its IPv4 address or DNS name alone"
    before, colon, after = text.rpartition(":")
    if colon and after.isdecimal() and ":" not in before:
        return f"ends with a port; write {before} alone, a port belongs to a node or bootstrap peer"
    if _looks_numeric(text):
        return _ipv4_fault(text)
    if len(text) > _LONGEST_NAME or not all(_LABEL.match(label) for label in text.split(".")):
        return "is no address; write an IPv4 address or a DNS name"
    return None


def is_loopback(host: str) -> bool:
    """True for what means "this machine" on every machine."""
    if _is_ipv4(host):
        return ipaddress.IPv4Address(host).is_loopback
    return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _require_host(host: str) -> None:
    # What a record says may be 0.0.0.0; whether it makes sense to announce that was asked when the file was read.
    if not _is_ipv4(host) and (fault := host_fault(host)):
        raise ValueError(f'"{host}" {fault}')


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text.removeprefix("[").partition("]")[0])
    except ValueError:
        return False
    return True


def _looks_numeric(text: str) -> bool:
    # No top-level domain is a number, so whoever wrote one meant an address.
    return text.rpartition(".")[2].isdecimal()


def _ipv4_fault(text: str) -> str | None:
    if not _is_ipv4(text):
        return "is no IPv4 address; write four numbers from 0 to 255, for example 192.0.2.11"
    parsed = ipaddress.IPv4Address(text)
    if parsed.is_unspecified or parsed.is_multicast or text == "255.255.255.255":
        return "is nothing to connect to; write the address that the other hosts use"
    return None
