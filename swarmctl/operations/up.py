"""Bringing a swarm up: whatever differs from the file is started, replaced or stopped; what is right stays alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import HostUnreachable
from swarmctl.events import EventSink
from swarmctl.operations.launching import ensure_identities, start
from swarmctl.operations.readiness import Timeline, Watch
from swarmctl.operations.site import Site
from swarmctl.operations.status import snapshot_of
from swarmctl.operations.stopping import stop
from swarmctl.plan import Action, ActionKind, Plan, Running, diff
from swarmctl.snapshot import Snapshot

UP_S = 600.0
"""Loading many blocks from a slow disk takes minutes; a start that fails ends long before."""


class OnUnreachable(str, Enum):
    """What becomes of `up` when hosts do not answer. FAIL: nothing is changed. SKIP: the others are done."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class _Options:
    deadline_s: float
    on_unreachable: OnUnreachable
    canary: bool


@dataclass(frozen=True, kw_only=True)
class UpResult:
    """What `up` did. `snapshot` is the picture in which everything was ready; of before, on a dry run.

    `unreachable`: hosts whose nodes were left out, with the reason of each.
    """

    plan: Plan
    snapshot: Snapshot
    took_s: float
    dry_run: bool = False
    unreachable: Mapping[HostName, HostUnreachable] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """False if there was nothing to start or to stop."""
        return bool(self.plan.changes)


def read_plan(site: Site, *, only: Collection[NodeName] = ()) -> Plan:
    """What `up` would do now."""
    return _look(site, only).plan


def up(
    site: Site,
    *,
    only: Collection[NodeName] = (),
    sink: EventSink,
    deadline_s: float = UP_S,
    dry_run: bool = False,
    on_unreachable: OnUnreachable = OnUnreachable.FAIL,
    canary: bool = True,
) -> UpResult:
    """Make what runs equal to the file, and wait until it serves.

    Bootstrap peers come first, then the servers: with `canary` and several hosts to start on one of them alone, and
    when that serves all the others at once. `only` names nodes; the bootstrap peers they need come along. A node that
    fails does not keep the others. Interrupted at any point it leaves what runs running; the next `up` or `down` goes
    on from there.

    Raises:
        HostUnreachable: hosts do not answer, and nothing was changed; not with `OnUnreachable.SKIP`.
        NodeFailed: a node ended before it was ready; the others are up, unless it was a canary or the only way in.
        PartialFailure: several did.
        DeadlineExceeded: some nodes are not ready yet; they go on.
        Locked: another operator changes this swarm.
    """
    timeline = Timeline(site=site, sink=sink, began=site.clock.monotonic())
    if dry_run:
        look = _look(site, only)
        return UpResult(
            plan=look.plan,
            snapshot=look.snapshot,
            took_s=timeline.since_s(),
            dry_run=True,
            unreachable=look.unreachable,
        )
    with site.hold("up"):
        options = _Options(deadline_s=deadline_s, on_unreachable=on_unreachable, canary=canary)
        return _Up(site, only, timeline, options).apply()


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What differs from the file at one moment."""

    plan: Plan
    snapshot: Snapshot
    unreachable: Mapping[HostName, HostUnreachable]


def _look(site: Site, only: Collection[NodeName]) -> _Look:
    hosted = site.survey()
    snapshot = snapshot_of(site.spec, hosted, hosted.at, unreachable=hosted.unreachable)
    running = {
        name: Running(host=found.host, launch=found.node.launch, orphaned=found.node.orphaned)
        for name, found in hosted.items()
        if found.node.running
    }
    bootstraps = {peer.name for peer in site.spec.bootstraps}
    plan = diff(site.spec, snapshot, running).only(only, bootstraps)
    return _Look(plan=plan, snapshot=snapshot, unreachable=hosted.errors)


class _Up:
    """One `up` under the lock."""

    def __init__(self, site: Site, only: Collection[NodeName], timeline: Timeline, options: _Options) -> None:
        self._site = site
        self._only = only
        self._timeline = timeline
        self._options = options
        self._watch = Watch(timeline=timeline, deadline_s=options.deadline_s)
        self._bootstraps = {peer.name for peer in site.spec.bootstraps}
        self._peers: dict[NodeName, PeerId] = {}

    def apply(self) -> UpResult:
        """Go from what is to what the file says."""
        before = _look(self._site, self._only)
        self._accept(before)
        if not before.plan.awaited and not before.plan.changes:
            return self._result(before, before.snapshot, before.plan)
        self._start_bootstraps(before.plan)
        # Again, because servers are judged by the bootstrap peers' addresses, which are certain only now.
        plan = _merge(before.plan, _look(self._site, self._only).plan, self._bootstraps)
        servers = [action for action in plan.actions if action.node not in self._bootstraps]
        canary = self._canary(servers)
        if canary is not None:
            self._execute([canary])
            self._watch.until_ready([canary.node], what=f"{canary.node}, the first server")
            if canary.node in self._watch.failures:
                self._watch.conclude()
        self._execute([action for action in servers if action is not canary])
        snapshot = self._watch.until_ready([action.node for action in plan.awaited], what="nodes")
        self._watch.conclude()
        return self._result(before, snapshot, plan)

    def _accept(self, look: _Look) -> None:
        away = dict(look.unreachable)
        if away and self._options.on_unreachable is OnUnreachable.FAIL:
            raise HostUnreachable(
                f"nothing was started, because {_count(len(away), 'host')} do not answer: {', '.join(away)}"
                if len(away) > 1
                else f"nothing was started: {next(iter(away.values())).message}",
                reasons=[line for error in away.values() for line in (error.message, *error.reasons)],
                hints=[*next(iter(away.values())).hints, "go on with the others: swarmctl up --on-unreachable skip"],
                context={"hosts": list(away)},
            )
        if self._bootstraps and self._bootstraps <= {action.node for action in look.plan.skipped}:
            raise HostUnreachable(
                "nothing was started: no bootstrap peer's host answers, and without one nobody can join",
                reasons=[error.message for error in away.values()],
                hints=list(next(iter(away.values())).hints),
                context={"hosts": list(away)},
            )

    def _start_bootstraps(self, plan: Plan) -> None:
        actions = [action for action in plan.actions if action.node in self._bootstraps]
        for wave in _waves(actions):
            self._execute(wave)
            self._watch.until_ready([action.node for action in wave if action in plan.awaited], what="bootstrap peers")
        # With one of them the servers can join; the others are named at the end.
        if actions and {action.node for action in actions} <= set(self._watch.failures):
            self._watch.conclude()

    def _canary(self, actions: Sequence[Action]) -> Action | None:
        starting = [action for action in actions if action.kind.starts]
        if not self._options.canary or len({action.host for action in starting}) < 2:
            return None
        return starting[0]

    def _execute(self, actions: Sequence[Action]) -> None:
        site, watch = self._site, self._watch
        stopping = [action.node for action in actions if action.kind.stops]
        stop(site, stopping, timeline=watch.timeline, within_s=watch.left_s)
        starting = [action.node for action in actions if action.kind.starts]
        if starting and not self._peers:
            self._peers.update(ensure_identities(site))
        for name, failure in start(site, starting, self._peers).items():
            watch.fail(name, failure)

    def _result(self, before: _Look, snapshot: Snapshot, plan: Plan) -> UpResult:
        took_s = self._timeline.since_s()
        return UpResult(plan=plan, snapshot=snapshot, took_s=took_s, unreachable=before.unreachable)


def _waves(bootstraps: Sequence[Action]) -> Iterable[Sequence[Action]]:
    # The first of several must listen before the second one joins through it, or there would be two DHTs.
    starting = [action for action in bootstraps if action.kind.starts]
    if len(starting) == len([action for action in bootstraps if not _is_skipped(action)]):
        first = starting[:1]
        return (first, [action for action in bootstraps if action not in first])
    return (bootstraps,)


def _is_skipped(action: Action) -> bool:
    return action.kind is ActionKind.SKIP


def _merge(before: Plan, after: Plan, bootstraps: Collection[NodeName]) -> Plan:
    first = tuple(action for action in before.actions if action.node in bootstraps)
    return Plan(actions=first + tuple(action for action in after.actions if action.node not in bootstraps))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
