"""The difference between the file and what runs, as actions. Pure: reads nothing, changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from swarmctl.addresses import is_loopback, multiaddr
from swarmctl.blocks import HostName, NodeName
from swarmctl.snapshot import BootstrapFacts, NodeFacts, NodeState, Snapshot
from swarmctl.spec import BootstrapSpec, HostSpec, NodeSpec, SwarmSpec
from swarmctl.store import Launch

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"


class ActionKind(str, Enum):
    """What is to be done with one node.

    AWAIT: it runs as the file says and is not ready yet. REPLACE: it runs, but not as the file says. STOP_UNDECLARED:
    it runs and is not in the file. SKIP: its host does not answer, so nothing can be done there.
    """

    START_BOOTSTRAP = "start bootstrap"
    REPLACE_BOOTSTRAP = "replace bootstrap"
    START_NODE = "start"
    REPLACE_NODE = "replace"
    AWAIT = "await"
    STOP_UNDECLARED = "stop undeclared"
    SKIP = "skip"
    NOTHING = "nothing"

    @property
    def starts(self) -> bool:
        """True if the node is started by this action."""
        return self in _STARTING

    @property
    def stops(self) -> bool:
        """True if something that runs is stopped by this action."""
        return self in (ActionKind.REPLACE_BOOTSTRAP, ActionKind.REPLACE_NODE, ActionKind.STOP_UNDECLARED)


_STARTING = (
    ActionKind.START_BOOTSTRAP,
    ActionKind.REPLACE_BOOTSTRAP,
    ActionKind.START_NODE,
    ActionKind.REPLACE_NODE,
)


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step; `reasons` say why, with values of before and after. `host` is where the node is to be, or runs."""

    kind: ActionKind
    node: NodeName
    host: HostName
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All nodes of the file in its order, bootstrap peers first, then what runs and is not in it."""

    actions: tuple[Action, ...]

    @property
    def changes(self) -> tuple[Action, ...]:
        """The actions that start or stop something."""
        return tuple(action for action in self.actions if action.kind.starts or action.kind.stops)

    @property
    def skipped(self) -> tuple[Action, ...]:
        """The nodes of hosts that do not answer."""
        return tuple(action for action in self.actions if action.kind is ActionKind.SKIP)

    @property
    def awaited(self) -> tuple[Action, ...]:
        """The actions that are done when their node is ready."""
        return tuple(action for action in self.actions if action.kind.starts or action.kind is ActionKind.AWAIT)

    def only(self, names: Collection[NodeName], bootstraps: Collection[NodeName]) -> Plan:
        """What concerns these nodes, and the bootstrap peers that they need; everything if `names` is empty."""
        if not names:
            return self
        return Plan(actions=tuple(a for a in self.actions if a.node in names or a.node in bootstraps))


@dataclass(frozen=True, kw_only=True)
class Running:
    """A node that runs: where, and what its runner was told to start (None if this cannot be read).

    `orphaned`: the runner is gone and what it started is still there.
    """

    host: HostName
    launch: Launch | None
    orphaned: bool = False


def diff(spec: SwarmSpec, snapshot: Snapshot, running: Mapping[NodeName, Running]) -> Plan:
    """What makes of the observed swarm the one in the file.

    `snapshot` tells how the declared nodes are, `running` what each node that runs was told, declared or not.
    """
    actions: list[Action] = []
    for facts, peer in zip(snapshot.bootstraps, spec.bootstraps, strict=True):
        actions.append(_bootstrap(spec, peer, facts, running.get(peer.name)))
    # A bootstrap peer keeps its key, and its port where the file does not move it; so its address is known here. Of
    # one that does not run it is not, and a server may have joined through just that one.
    known = [_address(spec, peer, running.get(peer.name)) for peer in spec.bootstraps]
    addresses = {address for address in known if address} if all(known) else set()
    for node in snapshot.nodes:
        actions.append(_server(spec, spec.nodes[node.name], node, running.get(node.name), addresses))
    declared = {*spec.nodes, *(peer.name for peer in spec.bootstraps)}
    for name, found in running.items():
        if name not in declared:
            kind = ActionKind.STOP_UNDECLARED
            actions.append(Action(kind=kind, node=name, host=found.host, reasons=("it is not in the file",)))
    return Plan(actions=tuple(actions))


def listen_ip(host: HostSpec) -> str:
    """What a node on this host binds: the loopback for a swarm that never leaves the machine, else everything."""
    if not is_loopback(host.address):
        return _EVERYWHERE
    # A name is not bound: it may lead to another kind of address.
    return host.address if host.address.startswith("127.") else _LOOPBACK


def announced_ip(spec: SwarmSpec, node: NodeSpec | BootstrapSpec) -> str:
    """The address or name that others are told."""
    return node.announce.ip if node.announce else spec.hosts[node.host].address


def announced_port(node: NodeSpec | BootstrapSpec) -> int | None:
    """The port that others are told; None: the one that it listens on."""
    return node.announce.port if node.announce else None


def _bootstrap(spec: SwarmSpec, peer: BootstrapSpec, facts: BootstrapFacts, found: Running | None) -> Action:
    if facts.process.unknown is not None:
        return _skipped(peer, facts.process.unknown)
    if not facts.process.running:
        reason = facts.process.ended or "it does not run"
        return Action(kind=ActionKind.START_BOOTSTRAP, node=peer.name, host=peer.host, reasons=(reason,))
    reasons = tuple(_common_differences(spec, peer, found)) if found else ()
    if reasons:
        return Action(kind=ActionKind.REPLACE_BOOTSTRAP, node=peer.name, host=peer.host, reasons=reasons)
    if facts.process.phase != "online":
        reason = f"it is {facts.process.phase or 'starting'}"
        return Action(kind=ActionKind.AWAIT, node=peer.name, host=peer.host, reasons=(reason,))
    return Action(kind=ActionKind.NOTHING, node=peer.name, host=peer.host)


def _server(spec: SwarmSpec, node: NodeSpec, facts: NodeFacts, found: Running | None, addresses: set[str]) -> Action:
    state = facts.state
    if facts.process.unknown is not None:
        return _skipped(node, facts.process.unknown)
    if not facts.process.running:
        reasons = _why_down(facts, state)
        return Action(kind=ActionKind.START_NODE, node=node.name, host=node.host, reasons=reasons)
    reasons = tuple(server_differences(spec, node, found)) if found else ()
    known = found.launch.initial_peers if found and found.launch else ()
    if known and addresses and not addresses & set(known):
        reasons += ("it joined through bootstrap peers that are not those of now",)
    if reasons:
        return Action(kind=ActionKind.REPLACE_NODE, node=node.name, host=node.host, reasons=reasons)
    if state is not NodeState.ONLINE:
        reason = (f"it runs and is {state.value}",)
        return Action(kind=ActionKind.AWAIT, node=node.name, host=node.host, reasons=reason)
    return Action(kind=ActionKind.NOTHING, node=node.name, host=node.host)


def _skipped(declared: NodeSpec | BootstrapSpec, why: str) -> Action:
    reasons = (f"host {declared.host} does not answer: {why}",)
    return Action(kind=ActionKind.SKIP, node=declared.name, host=declared.host, reasons=reasons)


def _why_down(facts: NodeFacts, state: NodeState) -> tuple[str, ...]:
    if facts.process.ended is None or facts.process.asked_to_stop:
        return ("it does not run",)
    return (f"it is {state.value}: {facts.process.ended}",)


def _address(spec: SwarmSpec, peer: BootstrapSpec, found: Running | None) -> str | None:
    if found is None or found.launch is None:
        return None
    port = announced_port(peer) or peer.port or found.launch.port
    return multiaddr(announced_ip(spec, peer), port, found.launch.peer)


def server_differences(spec: SwarmSpec, node: NodeSpec, found: Running) -> Iterator[str]:
    """How a running server differs from the file, one `name: was → is` each."""
    yield from _common_differences(spec, node, found)
    launch = found.launch
    if launch is None:
        return
    yield from _changed("blocks", launch.blocks, str(node.blocks))
    yield from _changed("gpu", launch.gpu, node.gpu)
    told = launch.settings or {}
    for key, value in asdict(node.settings).items():
        yield from _changed(key, told.get(key), value)


def _common_differences(spec: SwarmSpec, node: NodeSpec | BootstrapSpec, found: Running) -> Iterator[str]:
    launch = found.launch
    if found.orphaned:
        yield "its runner is gone, and what that started is still there"
    if launch is None:
        yield "what it was started with cannot be read"
        return
    yield from _changed("host", found.host, node.host)
    yield from _changed("address", launch.announce_ip, announced_ip(spec, node))
    yield from _changed("announced port", launch.announce_port, announced_port(node))
    yield from _changed("listens on", launch.listen_ip, listen_ip(spec.hosts[node.host]))
    if node.port is not None:
        yield from _changed("port", launch.port, node.port)
    yield from _changed("model", launch.model_source, spec.model.source)
    yield from _changed("revision", launch.revision, spec.model.revision)
    yield from _changed("dht_prefix", launch.dht_prefix, spec.model.dht_prefix)


def _changed(name: str, was: object, now: object) -> Sequence[str]:
    return () if was == now else (f"{name}: {was} → {now}",)
