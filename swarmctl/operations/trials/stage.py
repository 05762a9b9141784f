"""Where trials are played: a swarm whose nodes may be struck, and how they come back.

    with local_stage("llama", sink=note) as stage:      # or own_stage(site, sink=note)
        stage.ready(["a", "b", "c"])                    # starts what is missing, returns when all are ONLINE
        undo = inject(stage, Fault.PAUSE, "a")          # swarmctl.operations.trials.faults; a few milliseconds
        ...
        missed = struck(stage, Fault.PAUSE, "a")        # None: it bit
        undo()                                          # or stage.restore(), which undoes all of them

A local stage is an ephemeral swarm of a tiny checkpoint on this machine, run as an operator runs one: its file is
`folder/swarm.yaml`. All its nodes are declared, and only those that `ready` names run. Each announces the port of a
gate in front of it, so that `Fault.PARTITION` needs no privileges. It is gone when the block is left, in whichever
way; see `warden`.

An own stage is the operator's running swarm: no gates, only the nodes that were ONLINE, and `forbids` says which of
them the swarm cannot spare.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmctl import config, ports
from swarmctl.blocks import BlockRange, NodeName, PeerId, parse_range
from swarmctl.coverage import assess, holders_of
from swarmctl.errors import Refused, SwarmctlError
from swarmctl.events import EventSink
from swarmctl.matrix import Fault
from swarmctl.models.profile import read_profile
from swarmctl.models.tiny import TinyShape
from swarmctl.operations.launching import declared, ensure_identities, start
from swarmctl.operations.models import make_tiny
from swarmctl.operations.opening import open_site
from swarmctl.operations.readiness import Timeline, Watch
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.trials.gate import LOOPBACK
from swarmctl.operations.trials.layout import BRIEF, NODES, NUM_BLOCKS, swarm_file
from swarmctl.operations.trials.warden import Order, RemoteGate, warden
from swarmctl.operations.up import UP_S, read_plan, up
from swarmctl.poll import Pending, wait_until
from swarmctl.spec import ServerSettings

if TYPE_CHECKING:
    from swarmctl.operations.trials.faults import Undo

# Below the range from which the kernel takes the ports of outgoing connections: a node may start minutes later.
_PORTS = range(20_000, 30_000)
_DEAD_WITHIN_S = 30.0
# A longer pause would be a trial of the operator's patience.
_EXPIRE_WITHIN_S = 60.0


@dataclass
class Stage:
    """A swarm for trials; make it with `local_stage` or `own_stage`.

    `nodes`: those that may be cast, with their blocks. `dht`: a `hivemind.DHT` that a connected client has lent
    (`opened.router.dht`), which `Fault.FORGET` writes through. `undos`: what has been done to the nodes, oldest first.
    """

    site: Site
    family: str
    nodes: Mapping[NodeName, BlockRange]
    sink: EventSink
    own: bool = False
    brief: Mapping[NodeName, BlockRange] = field(default_factory=dict)
    gates: Mapping[NodeName, RemoteGate] = field(default_factory=dict)
    dht: Any = None
    undos: list[Undo] = field(default_factory=list)
    _closing: bool = False
    # Held while a node is started from another thread than the owner's.
    _starting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_blocks(self) -> int:
        """How many blocks the model has."""
        return self.site.spec.model.num_blocks

    def nodes_for(self, fault: Fault) -> Mapping[NodeName, BlockRange]:
        """The nodes that cells with this fault are played by."""
        return self.brief if fault is Fault.EXPIRE and self.brief else self.nodes

    def settings(self, node: NodeName) -> ServerSettings:
        """What the node was told: the size of its cache, its time limits, how many tokens it takes in one request."""
        return self.site.spec.nodes[node].settings

    def gate(self, node: NodeName) -> RemoteGate:
        """The gate in front of a node.

        Raises:
            Refused: where there is none.
        """
        if node not in self.gates:
            raise Refused(f"nothing stands in front of {node} that could drop its packets")
        return self.gates[node]

    def can(self, fault: Fault) -> str | None:
        """Why this fault cannot be done to any node here; None if it can."""
        if fault is Fault.PARTITION and not self.gates:
            return "not offered: nothing stands in front of these nodes that could drop their packets"
        if fault is Fault.EXPIRE and not self.brief:
            limit_s = min(self.settings(node).step_timeout_s for node in self.nodes)
            if limit_s > _EXPIRE_WITHIN_S:
                return f"not offered: these servers keep an idle session for {limit_s:.0f} s"
        return None

    def forbids(self, victims: Collection[NodeName]) -> tuple[str, ...]:
        """Why the operator's policy does not spare these together, one line a range of blocks; nothing if it does.

        A local stage spares anybody.
        """
        if not self.own:
            return ()
        holders = holders_of(read_snapshot(self.site))
        return assess(self.site.spec, holders, frozenset(victims)).reasons

    def peer(self, node: NodeName) -> PeerId:
        """The peer id of a node that has been started before.

        Raises:
            Refused: when it never was.
        """
        found = next((one.peer for one in read_snapshot(self.site).nodes if one.name == node), None)
        if found is None:
            raise Refused(f"{node} has never been started", hints=["swarmctl up"])
        return found

    def ready(self, names: Collection[str], *, deadline_s: float = UP_S) -> None:
        """Undo what was done, start what is missing of these nodes, and wait until all are observed ONLINE.

        On an own stage nothing is started but what was struck here.

        Raises:
            NodeFailed, DeadlineExceeded: as `up`.
        """
        wanted = tuple(NodeName(name) for name in names)
        self.restore()
        self._await_dead(wanted)
        if not self.own:
            up(self.site, only=wanted, sink=self.sink, deadline_s=deadline_s)
            return
        dead = self._gone(wanted)
        if dead:
            up(self.site, only=dead, sink=self.sink, deadline_s=deadline_s)
        timeline = Timeline(site=self.site, sink=self.sink, began=self.site.clock.monotonic())
        Watch(timeline=timeline, deadline_s=deadline_s).until_ready(wanted, what="nodes")

    def restore(self) -> None:
        """Undo every fault that can be undone, newest first: paused nodes go on, gates open. The dead stay dead."""
        failed: SwarmctlError | None = None
        for undo in reversed(self.undos):
            try:
                undo()
            except SwarmctlError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def start_again(self, node: NodeName) -> None:
        """Start a node that is dying, once it is dead; returns before it serves. On a stage that closes, do nothing.

        Raises:
            NodeFailed, Locked, DeadlineExceeded: as `launching.start`.
        """
        with self._starting:
            if not self._closing:
                with self.site.hold("restart"):
                    start(self.site, [node], ensure_identities(self.site))

    def close(self) -> None:
        """Undo everything, and start nobody any more."""
        self._closing = True
        with self._starting:
            pass  # whoever was being started then is on its way, and is seen
        self.restore()

    def struck_nodes(self) -> tuple[NodeName, ...]:
        """Everybody to whom something was done."""
        return tuple(dict.fromkeys(undo.node for undo in self.undos))

    def _await_dead(self, names: Sequence[NodeName]) -> None:
        # One that was told to die and is seen before it has obeyed would count as well.
        doomed = [name for name in names if any(undo.node == name and undo.fatal for undo in self.undos)]

        def observe() -> bool | Pending:
            left = [
                f"{name}: {len(found.node.processes)} processes are left"
                for name, found in self.site.survey(doomed).items()
                if not found.node.settled and any(undo.node == name and undo.is_dying() for undo in self.undos)
            ]
            return Pending(reasons=tuple(left)) if left else True

        if doomed:
            what = f"{', '.join(doomed)} to end"
            wait_until(observe, what=what, within_s=_DEAD_WITHIN_S, clock=self.site.clock, every_s=0.05)

    def _gone(self, names: Sequence[NodeName]) -> tuple[NodeName, ...]:
        running = {name for name, found in self.site.survey(names).items() if found.node.running}
        return tuple(name for name in names if name not in running)


@contextmanager
def local_stage(
    family: str,
    *,
    sink: EventSink = lambda _event: None,
    folder: Path | None = None,
    python: str = sys.executable,
    child: tuple[str, ...] | None = None,
) -> Iterator[Stage]:
    """An ephemeral swarm of a tiny `family` checkpoint, of which nothing runs until `Stage.ready`.

    Everything is in a new folder within `folder` (None: the system's for temporary files, which is short enough for
    sockets), and goes with it. `child` replaces the program that each runner starts, for tests.

    Raises:
        UsageError: when the folder's path is too long for sockets.
        NodeFailed: on leaving, when something of the swarm resists; says what.
    """
    home = Path(tempfile.mkdtemp(prefix="sw-", dir=folder))
    every = {**NODES, **BRIEF}
    chosen = ports.choose(LOOPBACK, random.sample(_PORTS, len(every)))
    name = f"trial-{family}"
    order = Order(
        folder=str(home),
        state=str(home / "state"),
        run=str(home / "run"),
        swarm=name,
        targets=dict(zip(every, chosen, strict=True)),
    )
    with warden(order, python=python) as gates:
        make_tiny(TinyShape(family=family, blocks=NUM_BLOCKS), home / "model")
        file = home / config.FILE_NAME
        announced = {str(node): gate.port for node, gate in gates.items()}
        file.write_text(swarm_file(name, order.targets, announced), encoding="utf-8")
        site = open_site(config.load(file), home / "state", home / "run", python=python, child=child)
        stage = Stage(
            site=site,
            family=family,
            nodes={NodeName(node): parse_range(blocks) for node, blocks in NODES.items()},
            brief={NodeName(node): parse_range(blocks) for node, blocks in BRIEF.items()},
            gates=gates,
            sink=sink,
        )
        try:
            _make_identities(site)
            yield stage
        finally:
            # Whom it does not reach, the warden kills.
            with suppress(SwarmctlError):
                stage.close()
    site.survey()  # the runners were children of this process


def _make_identities(site: Site) -> None:
    # `up` would do it in another process, which imports hivemind for it; the client here needs that anyway.
    from swarmctl.upstream.identity import ensure_identity

    for name in declared(site):
        key = site.layout.node(name).identity
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        ensure_identity(key)


def family_of(site: Site) -> str:
    """What an operator's model calls itself; a hub's model that is not on this machine is known by its name."""
    profile = read_profile(site.spec.model.source)
    return Path(site.spec.model.source).name if profile is None else profile.family


@contextmanager
def own_stage(site: Site, *, sink: EventSink = lambda _event: None) -> Iterator[Stage]:
    """The operator's running swarm; on leaving, everybody who was struck serves again.

    Raises:
        Refused: nobody serves yet; or what runs is not what the file says, so that victims would come back changed.
    """
    changes = read_plan(site).changes
    if changes:
        raise Refused(
            f"what runs of swarm {site.spec.name} is not what its file says, so victims would come back changed",
            reasons=[f"{action.node}: {action.kind.value}: {'; '.join(action.reasons)}" for action in changes],
            hints=["swarmctl up"],
        )
    snapshot = read_snapshot(site)
    online = snapshot.replicas()
    if not online:
        states = [f"{node.name}: {node.state.value}" for node in snapshot.nodes]
        hints = ["swarmctl status", "swarmctl up"]
        raise Refused(f"no node of swarm {site.spec.name} serves yet", reasons=states, hints=hints)
    nodes = {node.name: node.blocks for node in online}
    stage = Stage(site=site, family=family_of(site), nodes=nodes, sink=sink, own=True)
    try:
        yield stage
    finally:
        stage.ready(stage.struck_nodes())
