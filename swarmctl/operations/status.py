"""Reading a swarm: what runs, what it announces, what it answers. Imports nothing heavy and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from swarmctl.blocks import BlockRange, HostName, NodeName, PeerId
from swarmctl.operations.site import Hosted, Site
from swarmctl.snapshot import (
    Announcement,
    BootstrapFacts,
    NodeFacts,
    PeerState,
    Probe,
    ProcessFact,
    Snapshot,
)
from swarmctl.spec import SwarmSpec
from swarmctl.store import Observation, ObservedServer
from swarmctl.transport.base import HostedNode

STALE_OBSERVATION_S = 10.0
"""A bootstrap peer observes about every second; ten missed observations are worth a word."""

DYING = "its process is gone, and its runner clears up after it"
"""Why a node does not run whose runner has not written down yet how it ended."""

NOBODY = "nobody"
"""The snapshot's source when no bootstrap peer has observed anything."""

# Until it announces itself, what the DHT says of a peer was said by its former life.
_SILENT_PHASES = frozenset({None, "starting", "loading"})


@dataclass(frozen=True, kw_only=True)
class NodeProcess:
    """One process of a node. `role`: runner, child, or below (started by the child)."""

    node: NodeName
    host: HostName
    role: str
    pid: int
    parent: int
    command: str
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """A node that runs. `pid` is the child's; sums are over all its processes; `children` leaves the runner out."""

    node: NodeName
    host: HostName
    kind: str
    pid: int | None
    runner_pid: int | None
    children: int
    rss_bytes: int
    cpu_s: float
    port: int | None
    started_at: str | None
    processes: tuple[NodeProcess, ...] = ()


def read_snapshot(site: Site) -> Snapshot:
    """The swarm as its hosts' files, their processes, and the freshest bootstrap peer's observation show it."""
    survey = site.survey()
    return snapshot_of(site.spec, survey, survey.at, unreachable=survey.unreachable)


def snapshot_of(
    spec: SwarmSpec,
    hosted: Mapping[NodeName, Hosted],
    now: datetime,
    *,
    unreachable: Mapping[HostName, str] = MappingProxyType({}),
) -> Snapshot:
    """The picture that these facts make at the moment `now` (UTC). Pure.

    `unreachable`: hosts that say nothing, and why; of their nodes is known what the DHT and the others say.
    """
    epoch = now.timestamp()
    source, observation = freshest(spec, hosted)
    servers = _newest(observation, epoch)
    peers = peers_known(spec, hosted)
    view = _View(spec=spec, hosted=hosted, unreachable=unreachable, peers=peers, now=now)
    roster = set(peers.values())
    age_s = epoch - observation.written_at if observation else 0.0
    observed = observation is not None and age_s <= STALE_OBSERVATION_S
    return Snapshot(
        swarm=spec.name,
        num_blocks=spec.model.num_blocks,
        taken_at=now.isoformat(),
        age_s=age_s,
        source=source,
        nodes=tuple(
            replace(facts, observed=observed) for name in spec.nodes for facts in (_node(view, name, servers),)
        ),
        bootstraps=tuple(
            BootstrapFacts(
                name=peer.name,
                host=peer.host,
                peer=peers.get(peer.name),
                process=_process(view, peer.name, peer.host),
                addresses=_addresses(view, peer.name),
            )
            for peer in spec.bootstraps
        ),
        strangers=tuple(_announcement(server, epoch) for peer, server in servers.items() if peer not in roster),
        warnings=_warnings(view, observation, age_s),
    )


def freshest(spec: SwarmSpec, hosted: Mapping[NodeName, Hosted]) -> tuple[str, Observation | None]:
    """The newest observation of any declared bootstrap peer, and whose it is."""
    seen = [
        (hosted[peer.name].node.observation, peer.name)
        for peer in spec.bootstraps
        if peer.name in hosted and hosted[peer.name].node.observation is not None
    ]
    if not seen:
        return NOBODY, None
    observation, name = max(seen, key=lambda pair: pair[0].written_at if pair[0] else 0.0)
    return name, observation


def peer_of(node: HostedNode) -> PeerId | None:
    """The peer id of a node, from its key or from what was last started with it."""
    if node.peer is not None:
        return node.peer
    return node.launch.peer if node.launch is not None else None


def list_processes(site: Site) -> tuple[NodeRow, ...]:
    """One row for each node of which something is left, declared or not, in the order of the names."""
    found = sorted(site.survey().items())
    return tuple(_row(hosted) for _, hosted in found if not hosted.node.settled)


def _newest(observation: Observation | None, epoch: float) -> dict[PeerId, ObservedServer]:
    newest: dict[PeerId, ObservedServer] = {}
    for server in observation.servers if observation else ():
        known = newest.get(server.peer)
        if server.expires_at > epoch and (known is None or server.expires_at > known.expires_at):
            newest[server.peer] = server
    return newest


def peers_known(spec: SwarmSpec, hosted: Mapping[NodeName, Hosted]) -> dict[NodeName, PeerId]:
    """The peer ids of declared nodes: from their own hosts, or else from what others were told when they started."""
    known: dict[NodeName, PeerId] = {}
    for found in hosted.values():
        launch = found.node.launch
        if launch is not None:
            pairs = zip(launch.roster_names, launch.roster, strict=False)
            known.update((NodeName(name), PeerId(peer)) for name, peer in pairs)
    known.update((name, peer) for name, found in hosted.items() if (peer := peer_of(found.node)) is not None)
    declared = {*spec.nodes, *(peer.name for peer in spec.bootstraps)}
    return {name: peer for name, peer in known.items() if name in declared}


@dataclass(frozen=True, kw_only=True)
class _View:
    """What a snapshot is made of."""

    spec: SwarmSpec
    hosted: Mapping[NodeName, Hosted]
    unreachable: Mapping[HostName, str]
    peers: Mapping[NodeName, PeerId]
    now: datetime


def _node(view: _View, name: NodeName, servers: Mapping[PeerId, ObservedServer]) -> NodeFacts:
    declared, hosted, now = view.spec.nodes[name], view.hosted.get(name), view.now
    peer = view.peers.get(name)
    process = _process(view, name, declared.host)
    server = servers.get(peer) if peer is not None else None
    if server is not None and process.running and process.phase in _SILENT_PHASES:
        server = None
    return NodeFacts(
        name=name,
        host=hosted.host if hosted and hosted.node.running else declared.host,
        blocks=declared.blocks,
        peer=peer,
        process=process,
        announcement=_announcement(server, now.timestamp()) if server else None,
        probe=_probe(server, process, now.timestamp()) if server else None,
    )


def _process(view: _View, name: NodeName, home: HostName) -> ProcessFact:
    hosted, now = view.hosted.get(name), view.now
    if hosted is None:
        return ProcessFact(running=False, unknown=view.unreachable.get(home))
    node, record = hosted.node, hosted.node.record
    if record is None:
        return ProcessFact(running=node.running)
    running = node.running
    uptime_s = (now - datetime.fromisoformat(record.started_at)).total_seconds()
    return ProcessFact(
        running=running,
        pid=record.child_pid if running else None,
        port=record.port,
        uptime_s=uptime_s if running else None,
        phase=node.progress.phase if running and node.progress else None,
        ended=why_down(node, now),
        asked_to_stop=record.asked_to_stop,
        restarts=record.restarts,
        crashes=record.crashes,
        last_ended=record.last_ended,
        next_start_in_s=_next_start_in_s(node, now),
    )


def why_down(node: HostedNode, now: datetime) -> str | None:
    """Why a node does not run, and what its runner is about to do; None if it runs, or never did."""
    if node.dying:
        return DYING
    record, in_s = node.record, _next_start_in_s(node, now)
    if record is None or in_s is None:
        return node.ended
    limit = f" of {node.launch.max_restarts}" if node.launch is not None else ""
    return f"{record.last_ended}; starts again in {in_s:.0f} s, restart {record.crashes}{limit}"


def _next_start_in_s(node: HostedNode, now: datetime) -> float | None:
    if node.record is None or node.record.next_start_at is None or not node.backing_off:
        return None
    return max(0.0, (datetime.fromisoformat(node.record.next_start_at) - now).total_seconds())


def _addresses(view: _View, name: NodeName) -> tuple[str, ...]:
    hosted, peer = view.hosted.get(name), view.peers.get(name)
    if hosted is not None:
        return hosted.node.record.addresses if hosted.node.record is not None and hosted.node.running else ()
    # Its host does not answer; where it was is known to those that have joined through it.
    launches = [found.node.launch for found in view.hosted.values() if found.node.launch is not None]
    told = (address for launch in launches for address in launch.initial_peers)
    return tuple(dict.fromkeys(address for address in told if address.endswith(f"/p2p/{peer}")))


def _announcement(server: ObservedServer, epoch: float) -> Announcement:
    return Announcement(
        peer=server.peer,
        state=PeerState(server.state),
        blocks=BlockRange(server.start_block, server.end_block),
        throughput=server.throughput,
        expires_in_s=server.expires_at - epoch,
        age_s=max(0.0, epoch - server.seen_at),
        inference_rps=server.inference_rps,
        cache_tokens_left=server.cache_tokens_left,
        torch_dtype=server.torch_dtype,
        quant=server.quant_type,
        version=server.version,
        using_relay=server.using_relay,
    )


def _probe(server: ObservedServer, process: ProcessFact, epoch: float) -> Probe | None:
    if server.probed_at is None or server.probe_ok is None:
        return None
    age_s = max(0.0, epoch - server.probed_at)
    # An answer from before this start was given by the former process under the same identity.
    if process.uptime_s is not None and age_s > process.uptime_s:
        return None
    return Probe(
        peer=server.peer,
        ok=server.probe_ok,
        age_s=age_s,
        latency_ms=server.probe_ms if server.probe_ok else None,
        reason=server.probe_reason,
        ours=server.ours,
        graphs=server.graphs,
        busy_s=server.busy_s,
    )


def _warnings(view: _View, observation: Observation | None, age_s: float) -> tuple[str, ...]:
    spec, hosted = view.spec, view.hosted
    found = [f"host {host} does not answer: {why}" for host, why in view.unreachable.items()]
    observers = [peer.name for peer in spec.bootstraps if peer.name in hosted and hosted[peer.name].node.running]
    if observation is None and not observers:
        found.append("no bootstrap peer runs: only processes are shown, nothing of the DHT")
    elif observation is None:
        found.append(f"bootstrap peer {observers[0]} has not observed the DHT yet")
    elif age_s > STALE_OBSERVATION_S:
        why = "has stopped observing" if observers else "does not run"
        found.append(f"what is shown of the DHT is {age_s:.0f} s old: bootstrap peer {observation.observer} {why}")
    declared = {*spec.nodes, *(peer.name for peer in spec.bootstraps)}
    for name, node in hosted.items():
        if name not in declared and node.node.running:
            found.append(f"node {name} runs on {node.host} and is not in the file; `swarmctl down {name}` stops it")
    return tuple(found)


def _row(hosted: Hosted) -> NodeRow:
    node, record = hosted.node, hosted.node.record
    processes = tuple(
        NodeProcess(
            node=node.name,
            host=hosted.host,
            role=_role(hosted.node, process.pid),
            pid=process.pid,
            parent=process.parent,
            command=process.command,
            cpu_s=process.cpu_s,
            rss_bytes=process.rss_bytes,
        )
        for process in node.processes
    )
    return NodeRow(
        node=node.name,
        host=hosted.host,
        kind=node.launch.kind if node.launch else "unknown",
        pid=record.child_pid if record else None,
        runner_pid=record.runner_pid if record and node.runner_alive else None,
        children=sum(process.role != "runner" for process in processes),
        rss_bytes=sum(process.rss_bytes for process in processes),
        cpu_s=sum(process.cpu_s for process in processes),
        port=record.port if record else None,
        started_at=record.started_at if record else None,
        processes=processes,
    )


def _role(node: HostedNode, pid: int) -> str:
    if node.record is not None and pid == node.record.runner_pid:
        return "runner"
    return "child" if node.record is not None and pid == node.record.child_pid else "below"
