"""The dial table: does each host reach the libp2p ports of the others, under the addresses that peers are told?

A node that runs is called as it is. For one that does not, a listener is opened on its host and port for the moment,
which says that it is that host: an address may lead to another one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from swarmctl.addresses import parse_multiaddr
from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import SwarmctlError
from swarmctl.node.dial import Call, Listening, call_all
from swarmctl.operations.hosts.clocks import HERE
from swarmctl.operations.hosts.findings import Finding, Level, Topic
from swarmctl.operations.hosts.seen import Seen
from swarmctl.operations.launching import declared
from swarmctl.operations.site import Site
from swarmctl.plan import announced_ip, announced_port, listen_ip
from swarmctl.transport.base import Transport

_COMMAND_S = 20.0
_LISTENINGS: TypeAdapter[Listening] = TypeAdapter(Listening)


@dataclass(frozen=True, kw_only=True)
class Target:
    """An address of one node, or what stands for it. `node`: its name; several nodes without a port are one."""

    host: HostName
    node: str
    call: Call


@dataclass(frozen=True, kw_only=True)
class Dialled:
    """One call: from `source` (a host, or this machine) to a target. `words`: why it failed, as the system says."""

    source: str
    target: Target
    words: str | None


@dataclass(frozen=True, kw_only=True)
class DialTable:
    """All calls that were made."""

    calls: tuple[Dialled, ...] = ()

    def between(self, source: str, target: str) -> bool | None:
        """True if all calls of this pair came through; None if there was none."""
        found = [one.words is None for one in self.calls if (one.source, one.target.host) == (source, target)]
        return all(found) if found else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One finding a failed call, and one for each source whose calls all came through."""
        fine = dict.fromkeys(one.source for one in self.calls)
        failed = [one for one in self.calls if one.words is not None]
        for one in failed:
            fine.pop(one.source, None)
        good = (Finding(host=source, topic=Topic.DIAL, level=Level.OK, found="reaches all") for source in fine)
        return (*(_judge(one) for one in failed), *good)


def _judge(one: Dialled) -> Finding:
    host, call = one.target.host, one.target.call
    sentence = (
        f"{_named(one.source)} does not reach {one.target.node} on host {host} at {call.ip}:{call.port}: {one.words}"
    )
    hint = (
        f"let TCP port {call.port} of {host} be reached from {one.source}, or correct hosts.{host}.address in the file"
    )
    return Finding(
        host=one.source, topic=Topic.DIAL, level=Level.FAULT, found=f"not {host}", sentence=sentence, hint=hint
    )


def _named(source: str) -> str:
    return source if source == HERE else f"host {source}"


def dial(site: Site, seen: Sequence[Seen]) -> DialTable:
    """Let every host that answers call all others, and this machine too, all at the same time."""
    able = {one.host: one for one in seen if one.checkup is not None}
    targets, listeners = _targets(site, able)
    try:
        return DialTable(calls=_calls(site, tuple(able), targets))
    finally:
        site.ask(listeners, lambda host, transport: _speak(site, host, transport, "end", _who(listeners[host])))


def _who(listener: Listening) -> dict[str, int]:
    return {"pid": listener.pid, "started": listener.started}


def _targets(site: Site, able: Mapping[HostName, Seen]) -> tuple[list[Target], dict[HostName, Listening]]:
    """Where to call, and the listeners that were opened for it."""
    nonce = secrets.token_hex(8)
    running = [target for one in able.values() for target in _running(one)]
    names = {target.node for target in running}
    wishes: dict[HostName, dict[int, NodeName]] = {}
    for name, node in declared(site).items():
        # A port that is forwarded to one that nobody knows yet cannot be tried.
        if name not in names and node.host in able and (node.port is not None or announced_port(node) is None):
            wishes.setdefault(node.host, {}).setdefault(node.port or 0, name)

    def listen(host: HostName, transport: Transport) -> Listening:
        said = {"ip": listen_ip(site.spec.hosts[host]), "ports": list(wishes[host]), "nonce": nonce}
        return _LISTENINGS.validate_python(_speak(site, host, transport, "listen", said))

    listeners, _ = site.ask(wishes, listen)
    targets = list(running)
    for host, listener in listeners.items():
        for opened, name in zip(listener.opened, wishes[host].values(), strict=True):
            if opened is not None:
                node = declared(site)[name]
                call = Call(ip=announced_ip(site.spec, node), port=announced_port(node) or opened, nonce=nonce)
                targets.append(Target(host=host, node=name, call=call))
    return targets, listeners


def _running(seen: Seen) -> list[Target]:
    found = []
    for node in seen.nodes:
        if node.running and node.launch is not None:
            address = parse_multiaddr(node.launch.announced)
            found.append(Target(host=seen.host, node=node.name, call=Call(ip=address.host, port=address.port)))
    return found


def _calls(site: Site, able: Sequence[HostName], targets: Sequence[Target]) -> tuple[Dialled, ...]:
    """The operator's machine calls too: `generate` does. It does so as a host if it is one."""
    here = not any(host.is_local for host in site.spec.hosts.values())
    if not targets:
        return ()

    def call(host: HostName, transport: Transport) -> list[Dialled]:
        others = [target for target in targets if target.host != host]
        words = _speak(site, host, transport, "call", [asdict(target.call) for target in others]) if others else []
        return [Dialled(source=host, target=one, words=said) for one, said in zip(others, words, strict=True)]

    with ThreadPoolExecutor(1, thread_name_prefix="here") as beside:
        mine = beside.submit(call_all, [target.call for target in targets] if here else [])
        made, _ = site.ask(able, call)
        words = mine.result()
    calls = [one for host in able for one in made.get(host, [])]
    calls += [Dialled(source=HERE, target=one, words=said) for one, said in zip(targets, words, strict=False)]
    return tuple(calls)


def _speak(site: Site, host: HostName, transport: Transport, verb: str, said: Any) -> Any:
    """One run of `swarmctl.node.dial` there."""
    argv = (site.python_on(host), "-m", "swarmctl.node.dial", verb)
    done = transport.run(argv, timeout_s=_COMMAND_S, stdin=json.dumps(said))
    if done.code != 0:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.code}"])[-1]
        raise SwarmctlError(f"host {host} cannot be let call or be called: {why}")
    return json.loads(done.stdout)
