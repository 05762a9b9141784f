"""From the file to running processes: identities, ports, launch files, runners."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import NodeFailed
from swarmctl.operations.site import Hosted, Site
from swarmctl.plan import listen_ip
from swarmctl.poll import Pending, wait_until
from swarmctl.spec import BootstrapSpec, NodeSpec
from swarmctl.store import Launch
from swarmctl.transport.base import Completed

# hivemind takes about three seconds to import, several times that on a busy machine.
_IDENTITIES_S = 120.0
_COMMAND_S = 30.0
_SETTLE_S = 15.0

Declared = NodeSpec | BootstrapSpec


def declared(site: Site) -> dict[NodeName, Declared]:
    """Everything that the file wants to run: bootstrap peers first, then nodes."""
    return {**{peer.name: peer for peer in site.spec.bootstraps}, **site.spec.nodes}


def ensure_identities(site: Site) -> dict[NodeName, PeerId]:
    """The peer id of every declared node; keys are made where they are missing.

    Raises:
        NodeFailed: when a host cannot make them.
    """
    hosted = site.survey()
    known: dict[NodeName, PeerId] = {}
    missing: dict[HostName, list[NodeName]] = {}
    for name, node in declared(site).items():
        peer = hosted[name].node.peer if name in hosted and hosted[name].host == node.host else None
        if peer is not None:
            known[name] = peer
        else:
            missing.setdefault(node.host, []).append(name)
    for host, names in missing.items():
        known.update(_make_identities(site, host, names))
    return known


def _make_identities(site: Site, host: HostName, names: Sequence[NodeName]) -> dict[NodeName, PeerId]:
    transport = site.transport(host)
    paths = {str(transport.layout.node(name).identity): name for name in names}
    folders = [os.fspath(transport.layout.node(name).folder) for name in names]
    made = transport.run(("mkdir", "-p", "-m", "700", *folders), timeout_s=_COMMAND_S)
    _require(made, f"making folders for {', '.join(names)} on {host} failed")
    argv = (site.python_on(host), "-m", "swarmctl.upstream.identity", *paths)
    done = transport.run(argv, timeout_s=_IDENTITIES_S)
    _require(done, f"making identities for {', '.join(names)} on {host} failed")
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    found = {paths[path]: PeerId(peer) for path, _, peer in lines if path in paths}
    absent = [name for name in names if name not in found]
    if absent:
        raise NodeFailed(
            f"no identity was made for {', '.join(absent)} on {host}", reasons=done.stderr.splitlines()[-5:]
        )
    return found


def choose_ports(site: Site, names: Sequence[NodeName], hosted: Mapping[NodeName, Hosted]) -> dict[NodeName, int]:
    """A port for each: the file's (also if it is taken: the runner refuses it), else the last one if free, else any.

    Raises:
        NodeFailed: when a host has no free ports.
    """
    nodes = declared(site)
    chosen = {name: port for name in names if (port := nodes[name].port) is not None}
    open_by_host: dict[HostName, list[NodeName]] = {}
    for name in names:
        if name not in chosen:
            open_by_host.setdefault(nodes[name].host, []).append(name)
    for host, group in open_by_host.items():
        wished = [_last_port(hosted.get(name)) for name in group]
        ip = listen_ip(site.spec.hosts[host])
        argv = (site.python_on(host), "-m", "swarmctl.ports", ip, *(str(port) for port in wished))
        done = site.transport(host).run(argv, timeout_s=_COMMAND_S)
        _require(done, f"choosing ports for {', '.join(group)} on {host} failed")
        chosen.update(zip(group, (int(line) for line in done.stdout.split()), strict=True))
    return chosen


def _last_port(found: Hosted | None) -> int:
    return found.node.launch.port if found is not None and found.node.launch is not None else 0


def _require(done: Completed, message: str) -> None:
    if done.code != 0:
        tail = done.stderr.splitlines()[-5:]
        raise NodeFailed(message, reasons=[f"exit status {done.code}", *tail], hints=["swarmctl doctor"])


def launch_for(
    site: Site, name: NodeName, *, peers: Mapping[NodeName, PeerId], port: int, initial_peers: Sequence[str]
) -> Launch:
    """The launch file of a declared node, with paths as they are on its host."""
    node = declared(site)[name]
    host = site.spec.hosts[node.host]
    files = site.transport(node.host).layout.node(name)
    model = site.spec.model
    server = isinstance(node, NodeSpec)
    announce = node.announce if isinstance(node, NodeSpec) else None
    return Launch(
        kind="server" if server else "bootstrap",
        swarm=site.spec.name,
        node=name,
        peer=peers[name],
        port=port,
        listen_ip=listen_ip(host),
        announce_ip=announce.ip if announce else host.address,
        announce_port=announce.port if announce else None,
        initial_peers=tuple(initial_peers),
        identity=os.fspath(files.identity),
        sockets=os.fspath(files.sockets),
        progress=os.fspath(files.progress),
        observed=os.fspath(files.observed),
        model_source=model.source,
        dht_prefix=model.dht_prefix,
        num_blocks=model.num_blocks,
        hidden_size=model.hidden_size,
        blocks=str(node.blocks) if isinstance(node, NodeSpec) else None,
        revision=model.revision,
        gpu=node.gpu if isinstance(node, NodeSpec) else None,
        settings=asdict(node.settings) if isinstance(node, NodeSpec) else None,
        roster=tuple(peers[known] for known in declared(site) if known in peers),
    )


def start(site: Site, names: Sequence[NodeName], peers: Mapping[NodeName, PeerId]) -> None:
    """Start these declared nodes, in this order, without waiting for them; none of them may be running.

    `peers` comes from `ensure_identities`.

    A bootstrap peer joins the others that run; the only one joins through the servers that run, so that a restarted
    one knows at once what it knew before.

    Raises:
        NodeFailed: when a port cannot be had, or a runner not be started.
        Locked: when one of them has a runner after all.
    """
    if not names:
        return
    hosted = _when_settled(site, names)
    ports = choose_ports(site, names, hosted)
    bootstraps = {peer.name for peer in site.spec.bootstraps}
    running = {name: address for name, found in hosted.items() if (address := _address_of(found)) is not None}
    joinable = {name: address for name, address in running.items() if name in bootstraps}
    servers = [running[name] for name in site.spec.nodes if name in running]
    for name in names:
        through = sorted(joinable.values()) or (servers if name in bootstraps else [])
        launch = launch_for(site, name, peers=peers, port=ports[name], initial_peers=through)
        site.transport(declared(site)[name].host).start_runner(launch)
        if name in bootstraps:
            joinable[name] = launch.address


def _when_settled(site: Site, names: Sequence[NodeName]) -> dict[NodeName, Hosted]:
    # A runner that has just lost its child still tidies up, and holds the node's lock until that is done.
    def observe() -> dict[NodeName, Hosted] | Pending:
        hosted = site.survey()
        busy = [name for name in names if name in hosted and not hosted[name].node.settled]
        return Pending(reasons=tuple(f"{name}: its last run is still ending" for name in busy)) if busy else hosted

    return wait_until(observe, what=f"the last run of {', '.join(names)} to end", within_s=_SETTLE_S, clock=site.clock)


def _address_of(found: Hosted) -> str | None:
    node = found.node
    return node.launch.address if node.running and node.launch is not None else None
