"""Bringing a swarm up: whatever differs from the file is started, replaced or stopped; what is right stays alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarmctl.blocks import NodeName, PeerId
from swarmctl.events import EventSink
from swarmctl.operations.launching import ensure_identities, start
from swarmctl.operations.readiness import Timeline, Watch
from swarmctl.operations.site import Site
from swarmctl.operations.status import snapshot_of
from swarmctl.operations.stopping import stop
from swarmctl.plan import Action, Plan, Running, diff
from swarmctl.snapshot import Snapshot

UP_S = 600.0
"""Loading many blocks from a slow disk takes minutes; a start that fails ends long before."""


@dataclass(frozen=True, kw_only=True)
class UpResult:
    """What `up` did. `snapshot` is the picture in which everything was ready; of before, on a dry run."""

    plan: Plan
    snapshot: Snapshot
    took_s: float
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """False if there was nothing to start or to stop."""
        return bool(self.plan.changes)


def read_plan(site: Site, *, only: Collection[NodeName] = ()) -> Plan:
    """What `up` would do now."""
    return _plan(site, only)[0]


def up(
    site: Site,
    *,
    only: Collection[NodeName] = (),
    sink: EventSink,
    deadline_s: float = UP_S,
    dry_run: bool = False,
) -> UpResult:
    """Make what runs equal to the file, and wait until it serves.

    Bootstrap peers come first, then all servers at once. `only` names nodes; the bootstrap peers they need come
    along. Interrupted at any point it leaves what runs running; the next `up` or `down` goes on from there.

    Raises:
        NodeFailed: a node ended before it was ready; the others go on.
        DeadlineExceeded: some nodes are not ready yet; they go on.
        Locked: another operator changes this swarm.
    """
    timeline = Timeline(site=site, sink=sink, began=site.clock.monotonic())
    if dry_run:
        plan, snapshot = _plan(site, only)
        return UpResult(plan=plan, snapshot=snapshot, took_s=timeline.since_s(), dry_run=True)
    with site.hold("up"):
        return _apply(site, only, timeline, deadline_s)


def _apply(site: Site, only: Collection[NodeName], timeline: Timeline, deadline_s: float) -> UpResult:
    watch = Watch(timeline=timeline, deadline_s=deadline_s)
    before, snapshot = _plan(site, only)
    if not before.awaited and not before.changes:
        return UpResult(plan=before, snapshot=snapshot, took_s=timeline.since_s())
    bootstraps = {peer.name for peer in site.spec.bootstraps}
    peers: dict[NodeName, PeerId] = {}
    for wave in _waves([action for action in before.actions if action.node in bootstraps]):
        _execute(site, wave, watch, peers)
        watch.until_ready([action.node for action in wave if action in before.awaited], what="bootstrap peers")
    # Again, because servers are judged by the bootstrap peers' addresses, which are certain only now.
    plan = _merge(before, _plan(site, only)[0], bootstraps)
    _execute(site, [action for action in plan.actions if action.node not in bootstraps], watch, peers)
    snapshot = watch.until_ready([action.node for action in plan.awaited], what="nodes")
    return UpResult(plan=plan, snapshot=snapshot, took_s=timeline.since_s())


def _waves(bootstraps: Sequence[Action]) -> tuple[Sequence[Action], ...]:
    # The first of several must listen before the second one joins through it, or there would be two DHTs.
    if all(action.kind.starts for action in bootstraps):
        return (bootstraps[:1], bootstraps[1:])
    return (bootstraps,)


def _plan(site: Site, only: Collection[NodeName]) -> tuple[Plan, Snapshot]:
    hosted = site.survey()
    snapshot = snapshot_of(site.spec, hosted, site.clock.now())
    running = {
        name: Running(host=found.host, launch=found.node.launch, orphaned=found.node.orphaned)
        for name, found in hosted.items()
        if found.node.running
    }
    bootstraps = {peer.name for peer in site.spec.bootstraps}
    return diff(site.spec, snapshot, running).only(only, bootstraps), snapshot


def _merge(before: Plan, after: Plan, bootstraps: Collection[NodeName]) -> Plan:
    first = tuple(action for action in before.actions if action.node in bootstraps)
    return Plan(actions=first + tuple(action for action in after.actions if action.node not in bootstraps))


def _execute(site: Site, actions: Sequence[Action], watch: Watch, peers: dict[NodeName, PeerId]) -> None:
    stop(site, [action.node for action in actions if action.kind.stops], timeline=watch.timeline, within_s=watch.left_s)
    starting = [action.node for action in actions if action.kind.starts]
    if starting and not peers:
        peers.update(ensure_identities(site))
    start(site, starting, peers)
