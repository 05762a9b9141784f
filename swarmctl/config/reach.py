"""Who reaches whom, as far as the whole file shows it: ports taken twice, addresses that lead nowhere from elsewhere.

Each check adds findings and changes nothing. A check is skipped for what is not known because of another finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swarmctl.addresses import is_loopback
from swarmctl.config.document import Path
from swarmctl.config.draft import Draft
from swarmctl.config.reading import Reading, listed
from swarmctl.spec import Endpoint, HostSpec


def machine(host: HostSpec) -> str:
    """The same for hosts that are the same machine; all local ones are this one."""
    return _destination(host.ssh) if host.ssh else ""


def _destination(ssh: str) -> str:
    # Another user on it has no other ports and cards.
    return ssh.rpartition("@")[2].lower()


@dataclass(frozen=True, kw_only=True)
class _Listener:
    """A node or bootstrap peer that listens; `path` is where the file has it."""

    name: str
    path: Path
    host: HostSpec
    port: int | None
    announce: Endpoint | None


def _listeners(draft: Draft) -> Iterator[_Listener]:
    for peer in draft.bootstraps:
        host = draft.hosts.by_name.get(peer.host)
        path: Path = ("bootstrap", int(peer.name.rpartition("-")[2]))
        if host is not None:
            yield _Listener(name=peer.name, path=path, host=host, port=peer.port, announce=peer.announce)
    for node in draft.nodes:
        if node.host is not None:
            yield _Listener(
                name=node.name,
                path=("nodes", node.entry),
                host=node.host,
                port=node.port,
                announce=node.announce,
            )


def check_machines(reading: Reading, draft: Draft) -> None:
    """Two hosts that are one machine would count as two for redundancy, and share cards and ports."""
    logins: dict[str, HostSpec] = {}
    addresses: dict[str, HostSpec] = {}
    hint = "one host for one machine; its nodes may have different cards"
    for host in draft.hosts.by_name.values():
        same = logins.setdefault(machine(host), host)
        there = addresses.setdefault(host.address.lower(), host)
        if host.ssh and same is not host:
            reading.report(("hosts", host.name, "ssh"), f"{host.ssh} is host {same.name} already", hint=hint)
        # Several local hosts are for trying things out on one machine, and share its address.
        elif there is not host and not (host.is_local and there.is_local):
            message = f"{host.address} is the address of host {there.name} already"
            reading.report(("hosts", host.name, "address"), message, hint=hint)


def check_addresses(reading: Reading, draft: Draft) -> None:
    """In a swarm of several machines nobody may announce an address that means "myself" everywhere."""
    if not _is_distant(draft):
        return
    there: dict[str, list[str]] = {}
    for listener in _listeners(draft):
        there.setdefault(listener.host.name, []).append(listener.name)
    for host in draft.hosts.by_name.values():
        if host.name in there and is_loopback(host.address):
            message = (
                f"{host.address} cannot be reached from other machines, and {listed(there[host.name])} would be there"
            )
            whose = "this machine's IPv4 address or DNS name" if host.is_local else "the IPv4 address or DNS name"
            hint = f"address: {whose} as the other hosts use it"
            reading.report(("hosts", host.name, "address"), message, hint=hint, at_key=True)


def check_ports(reading: Reading, draft: Draft) -> None:
    """No two of them may listen on one port of one machine; libp2p would share it without a word."""
    taken: dict[tuple[str, int], str] = {}
    for listener in _listeners(draft):
        if listener.port is None:
            continue
        first = taken.setdefault((machine(listener.host), listener.port), listener.name)
        if first != listener.name:
            message = f"port {listener.port} on host {listener.host.name} is taken by {first}"
            reading.report((*listener.path, "port"), message, hint="leave port out")


def check_announced(reading: Reading, draft: Draft) -> None:
    """What is forwarded leads to a port that stays, to one node, and from everywhere that the swarm is."""
    distant = _is_distant(draft)
    reached = {f"{each.host.address}:{each.port}": each.name for each in _listeners(draft) if each.announce is None}
    for listener in _listeners(draft):
        announce, path = listener.announce, (*listener.path, "announce")
        if announce is None:
            continue
        if listener.port is None and reading.usable(*listener.path, "port"):
            message = "needs a port of its own; what forwards to it must know where to"
            reading.report(path, message, hint=f"port: {announce.port}")
        if distant and is_loopback(announce.ip):
            message = f"{announce.ip} cannot be reached from other machines"
            reading.report(path, message, hint="announce: the address and port at which they reach what forwards")
        first = reached.setdefault(str(announce), listener.name)
        if first != listener.name:
            reading.report(path, f"{announce} is where {first} is reached already")


def _is_distant(draft: Draft) -> bool:
    return any(listener.host.ssh for listener in _listeners(draft))
