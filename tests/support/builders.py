"""Values for tests, valid by default; a test names only what it is about.

A node's host is its name without the digits at the end: `a0` and `a1` are on host `a`, unless the test says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from swarmctl.blocks import BlockRange, HostName, NodeName, PeerId, parse_range
from swarmctl.snapshot import (
    Announcement,
    BootstrapFacts,
    NodeFacts,
    NodeState,
    PeerState,
    Probe,
    ProcessFact,
    Snapshot,
)
from swarmctl.spec import BootstrapSpec, Domain, HostSpec, ModelSpec, NodeSpec, RedundancyPolicy, SwarmSpec

RUNNING = ProcessFact(running=True, pid=4711, port=31400, uptime_s=60.0, phase="online")
NEVER_STARTED = ProcessFact(running=False)
STOPPED = ProcessFact(running=False, ended="SIGTERM", asked_to_stop=True)
CRASHED = ProcessFact(running=False, ended="SIGKILL")
UNREACHABLE = ProcessFact(running=False, unknown="no answer within 10 s")
FLAPPING = ProcessFact(running=False, ended="SIGKILL; starts again in 4 s", crashes=3, restarts=2, next_start_in_s=4.0)


def peer_of(name: str) -> PeerId:
    """The peer id that every builder gives to the node of this name."""
    return PeerId(f"12D3KooW{name}")


def host_of(name: str) -> HostName:
    """The host that every builder puts the node of this name on."""
    return HostName(name.rstrip("0123456789") or name)


def names(*texts: str) -> frozenset[NodeName]:
    """Node names, as `assess` takes them."""
    return frozenset(NodeName(text) for text in texts)


def a_server(name: str = "a0", blocks: str = "0:4", *, host: str | None = None, gpu: int | None = None) -> NodeSpec:
    """A declared block server."""
    on = host_of(name) if host is None else HostName(host)
    return NodeSpec(name=NodeName(name), host=on, blocks=parse_range(blocks), gpu=gpu)


def a_host(name: str, *, rack: str | None = None, zone: str | None = None, gpus: tuple[int, ...] = ()) -> HostSpec:
    """A machine that is reached by ssh."""
    return HostSpec(name=HostName(name), ssh=f"ops@{name}", address=f"{name}.test", rack=rack, zone=zone, gpus=gpus)


def a_spec(
    nodes: Iterable[NodeSpec] | None = None,
    *,
    num_blocks: int = 8,
    minimum: int = 1,
    target: int = 2,
    by: Domain = Domain.HOST,
    hosts: Iterable[HostSpec] = (),
) -> SwarmSpec:
    """A swarm of eight blocks; without `nodes`, every block is on host `a` and on host `b`.

    `hosts` come first and may be more than the nodes need; hosts that only nodes name are added after them.
    """
    if nodes is None:
        nodes = (a_server("a0", "0:4"), a_server("a1", "4:8"), a_server("b0", "0:4"), a_server("b1", "4:8"))
    declared = {node.name: node for node in nodes}
    machines = {host.name: host for host in hosts}
    for node in declared.values():
        machines.setdefault(node.host, a_host(node.host))
    if not machines:
        machines[HostName("a")] = a_host("a")
    return SwarmSpec(
        name="lab",
        model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=num_blocks, hidden_size=64),
        hosts=machines,
        bootstraps=(BootstrapSpec(name=NodeName("boot"), host=next(iter(machines)), port=31337),),
        nodes=declared,
        redundancy=RedundancyPolicy(minimum=minimum, target=target, by=by),
    )


def an_announcement(
    name: str = "a0", blocks: str | BlockRange = "0:4", state: PeerState = PeerState.ONLINE
) -> Announcement:
    """A fresh DHT record of the node of this name."""
    return Announcement(
        peer=peer_of(name),
        state=state,
        blocks=blocks if isinstance(blocks, BlockRange) else parse_range(blocks),
        throughput=100.0,
        expires_in_s=20.0,
        age_s=2.0,
        inference_rps=300.0,
        cache_tokens_left=65536,
    )


def a_probe(name: str = "a0", *, ok: bool = True) -> Probe:
    """A probe of the node of this name, a second ago; it is one of ours."""
    if ok:
        return Probe(peer=peer_of(name), ok=True, age_s=1.0, latency_ms=12.0, ours=True, graphs="by-shape", busy_s=0.0)
    return Probe(peer=peer_of(name), ok=False, age_s=1.0, reason="no answer in 5 s", ours=True, graphs="by-shape")


def probed(node: NodeFacts, **changes: object) -> NodeFacts:
    """The node with other findings of its probe."""
    assert node.probe is not None
    return replace(node, probe=replace(node.probe, **changes))  # type: ignore[arg-type]


def a_node(
    name: str = "a0",
    blocks: str | BlockRange = "0:4",
    state: NodeState = NodeState.ONLINE,
    *,
    host: str | None = None,
) -> NodeFacts:
    """A declared node in the given state, by the facts that make `judge_node` say so. MISPLACED serves the next block.

    Raises:
        ValueError: for UNMANAGED, which no declared node can be; use `an_announcement` as a stranger.
    """
    wanted = blocks if isinstance(blocks, BlockRange) else parse_range(blocks)
    online = an_announcement(name, wanted)
    elsewhere = an_announcement(name, BlockRange(wanted.start + 1, wanted.end + 1))
    well, silent = a_probe(name), a_probe(name, ok=False)
    facts: dict[NodeState, tuple[ProcessFact, Announcement | None, Probe | None]] = {
        NodeState.STOPPED: (STOPPED, None, None),
        NodeState.STARTING: (RUNNING, None, None),
        NodeState.JOINING: (RUNNING, an_announcement(name, wanted, PeerState.JOINING), None),
        NodeState.ONLINE: (RUNNING, online, well),
        NodeState.UNPROBED: (RUNNING, online, None),
        NodeState.UNOBSERVED: (RUNNING, None, None),
        NodeState.CRASHED: (CRASHED, None, None),
        NodeState.FLAPPING: (FLAPPING, None, None),
        NodeState.UNREACHABLE: (UNREACHABLE, None, None),
        NodeState.STALE: (CRASHED, online, silent),
        NodeState.UNRESPONSIVE: (RUNNING, online, silent),
        NodeState.MISPLACED: (RUNNING, elsewhere, well),
    }
    if state not in facts:
        raise ValueError(f"a declared node is never {state.value}")
    process, announcement, probe = facts[state]
    return NodeFacts(
        name=NodeName(name),
        host=host_of(name) if host is None else HostName(host),
        blocks=wanted,
        peer=peer_of(name),
        process=process,
        announcement=announcement,
        probe=probe,
        observed=state is not NodeState.UNOBSERVED,
    )


def a_snapshot(
    spec: SwarmSpec | None = None,
    *,
    states: Mapping[str, NodeState] | None = None,
    nodes: Iterable[NodeFacts] | None = None,
    strangers: Iterable[Announcement] = (),
) -> Snapshot:
    """What is seen of `spec` when all its nodes are ONLINE, but for those in `states`; `nodes` replaces them all."""
    spec = a_spec() if spec is None else spec
    unlike = states or {}
    if nodes is None:
        nodes = (
            a_node(node.name, node.blocks, unlike.get(node.name, NodeState.ONLINE), host=node.host)
            for node in spec.nodes.values()
        )
    return Snapshot(
        swarm=spec.name,
        num_blocks=spec.model.num_blocks,
        taken_at="2024-05-01T12:00:00+00:00",
        age_s=1.0,
        source="boot",
        nodes=tuple(nodes),
        bootstraps=tuple(
            BootstrapFacts(
                name=boot.name,
                host=boot.host,
                peer=peer_of(boot.name),
                process=RUNNING,
                addresses=(f"/ip4/192.0.2.1/tcp/{boot.port}/p2p/{peer_of(boot.name)}",),
            )
            for boot in spec.bootstraps
        ),
        strangers=tuple(strangers),
    )
