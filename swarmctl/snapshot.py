"""What was observed, when, and what it means for each node: the one picture that every judgement is made from.

Three facts about a node are kept apart, because they fail apart: its *process* (does it run?), its DHT *record*
(does it say that it serves?), and a *probe* (did it compute?). `judge_node` turns them into one state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarmctl.blocks import BlockRange, HostName, NodeName, PeerId

_SEVERAL = 2


class PeerState(str, Enum):
    """What a server says of itself in the DHT; petals' own three states."""

    OFFLINE = "OFFLINE"
    JOINING = "JOINING"
    ONLINE = "ONLINE"


class NodeState(str, Enum):
    """One word for an operator. Only `ONLINE` counts as a replica.

    STOPPED: nothing runs and nothing is announced. STARTING: the process runs and announces nothing yet.
    JOINING: it announces that it loads blocks. ONLINE: process, record and probe agree, on the declared blocks.
    CRASHED: the process ended without being asked to. STALE: the record says ONLINE but the process is gone.
    FLAPPING: it has crashed several times lately, and is started, or about to be started, once more.
    UNRESPONSIVE: process and record look well, the probe does not answer.
    MISPLACED: it serves other blocks than the file says. UNPROBED: process and record look well, no probe has been
    made yet. UNOBSERVED: the process runs, and no bootstrap peer has looked at the DHT lately, so nobody knows what
    it serves.
    UNREACHABLE: its host does not answer, and the DHT does not show that it serves all the same.
    UNMANAGED: a peer that announces blocks and is not in the file.
    """

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    JOINING = "JOINING"
    ONLINE = "ONLINE"
    UNPROBED = "UNPROBED"
    UNOBSERVED = "UNOBSERVED"
    CRASHED = "CRASHED"
    FLAPPING = "FLAPPING"
    STALE = "STALE"
    UNRESPONSIVE = "UNRESPONSIVE"
    MISPLACED = "MISPLACED"
    UNREACHABLE = "UNREACHABLE"
    UNMANAGED = "UNMANAGED"


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """One server's newest DHT record. `blocks` is what the record itself claims; ages and expiry in seconds.

    `inference_rps`: tokens per second through one block. `cache_tokens_left`: free attention cache, in tokens
    times blocks. None always means: not announced.
    """

    peer: PeerId
    state: PeerState
    blocks: BlockRange
    throughput: float
    expires_in_s: float
    age_s: float
    inference_rps: float | None = None
    cache_tokens_left: int | None = None
    torch_dtype: str | None = None
    quant: str | None = None
    version: str | None = None
    using_relay: bool = False


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a bootstrap peer's own looks at a server amount to: it computes, or does not.

    `latency_ms`: of a one-token forward through its first block, None if none was answered. `ours`: it answers
    swarmctl's heartbeat and so runs with swarmctl's patches; None: it has answered nothing yet. `graphs`: what its
    steps of one token do on CUDA, "by-shape" or "eager". `busy_s`: for how long it has been computing one task, 0 if
    it is idle. The last two are None for a stock server.
    """

    peer: PeerId
    ok: bool
    age_s: float
    latency_ms: float | None = None
    reason: str | None = None
    ours: bool | None = None
    graphs: str | None = None
    busy_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessFact:
    """What the node's host says about its process. `ended` is None while it runs, else why it ended.

    `unknown`: why its host says nothing; then nothing else here means anything. `restarts`: how often its runner has
    started it anew; `crashes`: how often it has ended by itself lately, and `last_ended` why, the last time.
    `next_start_in_s`: when it is started again; None unless its runner waits for that.
    """

    running: bool
    pid: int | None = None
    port: int | None = None
    uptime_s: float | None = None
    phase: str | None = None
    ended: str | None = None
    asked_to_stop: bool = False
    unknown: str | None = None
    restarts: int = 0
    crashes: int = 0
    last_ended: str | None = None
    next_start_in_s: float | None = None

    @property
    def flaps(self) -> bool:
        """True if it comes up again after several crashes, or is to; one may have been bad luck."""
        comes_up = self.running and self.phase != "online"
        return self.crashes >= _SEVERAL and (comes_up or self.next_start_in_s is not None)


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Everything known about one declared node; `peer` is known before it starts (identities are made first).

    `observed`: somebody has looked at the DHT lately; if not, that there is no record means nothing.
    """

    name: NodeName
    host: HostName
    blocks: BlockRange
    peer: PeerId | None
    process: ProcessFact
    announcement: Announcement | None
    probe: Probe | None
    observed: bool = True

    @property
    def state(self) -> NodeState:
        """The facts in one word; see `judge_node`."""
        return judge_node(self)


@dataclass(frozen=True, kw_only=True)
class BootstrapFacts:
    """A bootstrap peer: its process, and where others reach it."""

    name: NodeName
    host: HostName
    peer: PeerId | None
    process: ProcessFact
    addresses: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """RUNNING, STARTING (it does not listen yet), FLAPPING (as of a node), CRASHED, STOPPED or UNREACHABLE."""
        if self.process.unknown is not None:
            return "UNREACHABLE"
        if self.process.flaps:
            return "FLAPPING"
        if self.process.running:
            return "RUNNING" if self.process.phase == "online" else "STARTING"
        crashed = self.process.ended is not None and not self.process.asked_to_stop
        return "CRASHED" if crashed else "STOPPED"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The swarm at one moment. `age_s`: how old the observation was when read; `source`: who observed."""

    swarm: str
    num_blocks: int
    taken_at: str
    age_s: float
    source: str
    nodes: tuple[NodeFacts, ...]
    bootstraps: tuple[BootstrapFacts, ...]
    strangers: tuple[Announcement, ...] = ()
    warnings: tuple[str, ...] = ()

    def replicas(self) -> tuple[NodeFacts, ...]:
        """The nodes that count: declared, ONLINE, probed."""
        return tuple(node for node in self.nodes if node.state is NodeState.ONLINE)

    def stock(self) -> tuple[NodeFacts, ...]:
        """The nodes that count and run without swarmctl's patches."""
        return tuple(node for node in self.replicas() if node.probe is not None and node.probe.ours is False)


def _judge_from_afar(facts: NodeFacts) -> NodeState:
    """The state of a node whose host says nothing: what others see of it may still be all one needs to know."""
    record, probe = facts.announcement, facts.probe
    if not facts.observed or record is None or record.state is not PeerState.ONLINE or (probe and not probe.ok):
        return NodeState.UNREACHABLE
    if record.blocks != facts.blocks:
        return NodeState.MISPLACED
    return NodeState.ONLINE if probe is not None else NodeState.UNPROBED


def judge_node(facts: NodeFacts) -> NodeState:
    """One word for the three facts; where they disagree, the word says which one to distrust."""
    process, record = facts.process, facts.announcement
    if process.unknown is not None:
        return _judge_from_afar(facts)
    announced_online = record is not None and record.state is PeerState.ONLINE
    if process.flaps:
        return NodeState.FLAPPING
    if not process.running:
        if announced_online:
            return NodeState.STALE
        if process.ended is not None and not process.asked_to_stop:
            return NodeState.CRASHED
        return NodeState.STOPPED
    return _judge_running(facts)


def _judge_running(facts: NodeFacts) -> NodeState:
    record, probe = facts.announcement, facts.probe
    if not facts.observed:
        return NodeState.UNOBSERVED
    if record is None or record.state is PeerState.OFFLINE:
        return NodeState.STARTING
    if record.state is PeerState.JOINING:
        return NodeState.JOINING
    if record.blocks != facts.blocks:
        return NodeState.MISPLACED
    if probe is None:
        return NodeState.UNPROBED
    return NodeState.ONLINE if probe.ok else NodeState.UNRESPONSIVE
