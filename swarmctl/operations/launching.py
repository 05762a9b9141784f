"""From the file to running processes: identities, ports, launch files, runners."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import NodeFailed, Refused, SwarmctlError
from swarmctl.operations.site import Hosted, Site, Survey
from swarmctl.operations.status import freshest, peers_known
from swarmctl.plan import announced_ip, announced_port, listen_ip
from swarmctl.poll import Pending, wait_until
from swarmctl.snapshot import PeerState
from swarmctl.spec import BootstrapSpec, NodeSpec
from swarmctl.store import MAX_RESTARTS, Launch, ObservedServer
from swarmctl.transport.base import Completed, Order

# hivemind takes about three seconds to import, several times that on a busy machine.
_IDENTITIES_S = 120.0
_COMMAND_S = 30.0
_SETTLE_S = 15.0
# Records live for twice the update period and three seconds; an hour's period would be the file's own doing.
_FORGET_S = 120.0

Declared = NodeSpec | BootstrapSpec


def declared(site: Site) -> dict[NodeName, Declared]:
    """Everything that the file wants to run: bootstrap peers first, then nodes."""
    return {**{peer.name: peer for peer in site.spec.bootstraps}, **site.spec.nodes}


def ensure_identities(site: Site) -> dict[NodeName, PeerId]:
    """The peer id of every declared node; keys are made where they are missing, on all hosts at the same time.

    A node whose host does not answer is left out, unless another one knows it.

    Raises:
        NodeFailed: when a host cannot make them.
        Refused: when two nodes have the same key.
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
    made, _ = site.ask(missing, lambda host, _transport: _make_identities(site, host, missing[host]))
    for identities in made.values():
        known.update(identities)
    _refuse_copies(site, known)
    # On a host that does not answer, a node's key is known by what the others were told when they started.
    return {**peers_known(site.spec, hosted), **known}


def _refuse_copies(site: Site, known: Mapping[NodeName, PeerId]) -> None:
    owners: dict[PeerId, NodeName] = {}
    for name, peer in known.items():
        first = owners.setdefault(peer, name)
        if first != name:
            here, there = declared(site)[name].host, declared(site)[first].host
            raise Refused(
                f"nodes {first} on {there} and {name} on {here} have one identity: a key file was copied",
                reasons=[f"both are peer {peer}; the swarm would take them for one, and lose both at random"],
                hints=[f"give one of them a key of its own: swarmctl down {name} --purge, then: swarmctl up"],
                context={"nodes": [first, name], "peer": peer},
            )


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
        HostUnreachable: when a host does not answer.
    """
    nodes = declared(site)
    chosen = {name: port for name in names if (port := nodes[name].port) is not None}
    open_by_host = _by_host(site, [name for name in names if name not in chosen])
    for host, group in open_by_host.items():
        wished = [_last_port(hosted.get(name)) for name in group]
        ip = listen_ip(site.spec.hosts[host])
        argv = (site.python_on(host), "-m", "swarmctl.ports", ip, *(str(port) for port in wished))
        done = site.transport(host).run(argv, timeout_s=_COMMAND_S)
        _require(done, f"choosing ports for {', '.join(group)} on {host} failed")
        chosen.update(zip(group, (int(line) for line in done.stdout.split()), strict=True))
    return chosen


def _by_host(site: Site, names: Sequence[NodeName]) -> dict[HostName, list[NodeName]]:
    nodes = declared(site)
    grouped: dict[HostName, list[NodeName]] = {}
    for name in names:
        grouped.setdefault(nodes[name].host, []).append(name)
    return grouped


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
    return Launch(
        kind="server" if server else "bootstrap",
        swarm=site.spec.name,
        node=name,
        peer=peers[name],
        port=port,
        listen_ip=listen_ip(host),
        announce_ip=announced_ip(site.spec, node),
        announce_port=announced_port(node),
        initial_peers=tuple(initial_peers),
        identity=os.fspath(files.identity),
        sockets=os.fspath(files.sockets),
        progress=os.fspath(files.progress),
        observed=os.fspath(files.observed),
        model_source=model.source,
        dht_prefix=model.dht_prefix,
        num_blocks=model.num_blocks,
        hidden_size=model.hidden_size,
        blocks=_blocks_of(node),
        revision=model.revision,
        gpu=node.gpu if isinstance(node, NodeSpec) else None,
        settings=asdict(node.settings) if isinstance(node, NodeSpec) else None,
        roster=tuple(peers[known] for known in declared(site) if known in peers),
        roster_names=tuple(known for known in declared(site) if known in peers),
        max_restarts=node.settings.restarts if isinstance(node, NodeSpec) else MAX_RESTARTS,
    )


def start(site: Site, names: Sequence[NodeName], peers: Mapping[NodeName, PeerId]) -> dict[NodeName, SwarmctlError]:
    """Start these declared nodes without waiting for them; none of them may be running. Returns who was not started.

    Hosts start at the same time, and one that fails does not keep the others. `peers` comes from `ensure_identities`.

    A bootstrap peer joins the others that run; the only one joins through the servers that run, so that a restarted
    one knows at once what it knew before.

    Raises:
        Locked: when one of them has a runner after all, or the operator lock is ours no more.
        DeadlineExceeded: when the last run of one of them does not end.
    """
    if not names:
        return {}
    site.check_hold()
    hosted = _when_settled(site, names)
    _until_forgotten(site, names, hosted)
    bootstraps = {peer.name for peer in site.spec.bootstraps}
    running = {name: address for name, found in hosted.items() if (address := _address_of(found)) is not None}
    starting = _Start(
        site=site,
        hosted=hosted,
        peers=peers,
        joinable={name: address for name, address in running.items() if name in bootstraps},
        servers=tuple(running[name] for name in site.spec.nodes if name in running),
    )
    groups = _by_host(site, names)
    failed, away = site.ask(groups, lambda host, _transport: starting.on(host, groups[host]))
    failures = {name: error for found in failed.values() for name, error in found.items()}
    return failures | {name: error for host, error in away.items() for name in groups[host]}


@dataclass(frozen=True, kw_only=True)
class _Start:
    """One `start`: what ran when it began. `joinable`: addresses of bootstrap peers; `servers`: of servers."""

    site: Site
    hosted: Mapping[NodeName, Hosted]
    peers: Mapping[NodeName, PeerId]
    joinable: Mapping[NodeName, str]
    servers: tuple[str, ...]

    def on(self, host: HostName, names: Sequence[NodeName]) -> dict[NodeName, SwarmctlError]:
        """Start nodes of one host, in this order; returns who was not started."""
        site, joinable = self.site, dict(self.joinable)
        bootstraps = {peer.name for peer in site.spec.bootstraps}
        try:
            ports = choose_ports(site, names, self.hosted)
        except NodeFailed as error:
            return dict.fromkeys(names, error)
        failures: dict[NodeName, SwarmctlError] = {}
        for name in names:
            through = sorted(joinable.values()) or (self.servers if name in bootstraps else ())
            if name not in self.peers:
                failures[name] = NodeFailed(f"node {name} on {host} has no identity", hints=["swarmctl up"])
                continue
            launch = launch_for(site, name, peers=self.peers, port=ports[name], initial_peers=through)
            try:
                site.transport(host).start_runner(launch)
            except NodeFailed as error:
                failures[name] = error
                continue
            site.note("started", node=name, host=host, after=f"port {launch.port}, blocks {launch.blocks or 'none'}")
            if name in bootstraps:
                joinable[name] = launch.address
        return failures


def _when_settled(site: Site, names: Sequence[NodeName]) -> Survey:
    # A runner that has just lost its child still tidies up, and holds the node's lock until that is done.
    def observe() -> Survey | Pending:
        hosted = site.survey()
        for name in names:
            # One that waits to start its child again makes room for the start that is wanted now.
            if name in hosted and hosted[name].node.backing_off:
                site.transport(hosted[name].host).signal(name, Order.STOP)
        busy = [name for name in names if name in hosted and not hosted[name].node.settled]
        return Pending(reasons=tuple(f"{name}: its last run is still ending" for name in busy)) if busy else hosted

    return wait_until(observe, what=f"the last run of {', '.join(names)} to end", within_s=_SETTLE_S, clock=site.clock)


def _until_forgotten(site: Site, names: Sequence[NodeName], hosted: Survey) -> None:
    """Wait until nobody says any more that a node which moves to other blocks serves its old ones.

    Clients of petals join all records of a peer into one span, and would send it blocks that it has no more. One that
    was stopped has taken its records back; those of one that was killed live on for a while.
    """
    moving = {
        found.node.launch.peer: name
        for name in names
        if (found := hosted.get(name)) is not None and found.node.launch is not None
        if found.node.launch.blocks != _blocks_of(declared(site)[name])
    }

    def observe() -> bool | Pending:
        _, seen = freshest(site.spec, site.survey())
        now = site.clock.now().timestamp()
        old = [one for one in (seen.servers if seen else ()) if one.peer in moving and one.expires_at > now]
        still = tuple(f"{moving[one.peer]}: still announced for its old blocks" for one in old if _serves(one))
        return Pending(reasons=still) if still else True

    if moving:
        wait_until(observe, what="old records to expire", within_s=_FORGET_S, clock=site.clock, every_s=0.5)


def _serves(server: ObservedServer) -> bool:
    return server.state != PeerState.OFFLINE.value


def _blocks_of(node: Declared) -> str | None:
    return str(node.blocks) if isinstance(node, NodeSpec) else None


def _address_of(found: Hosted) -> str | None:
    node = found.node
    return node.launch.address if node.running and node.launch is not None else None
