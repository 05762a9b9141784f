"""Stopping nodes and making sure: the part that `down`, `restart` and `up` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import DeadlineExceeded, HostUnreachable
from swarmctl.events import NodeStopped
from swarmctl.operations.readiness import Timeline
from swarmctl.operations.site import Hosted, Site, Survey
from swarmctl.poll import Pending, wait_until
from swarmctl.transport.base import Order

# A runner gives its child eight seconds, and five more to what the child leaves behind.
_FORCE_AFTER_S = 15.0
_POLL_S = 0.1


@dataclass
class _Stopping:
    name: NodeName
    host: HostName
    was_running: bool
    began_s: float
    asked_s: float | None = None


def stop(
    site: Site, names: Sequence[NodeName], *, timeline: Timeline, within_s: float, purge: bool = False
) -> tuple[NodeStopped, ...]:
    """Stop these nodes at the same time, verify that nothing of them is left, and remove their records.

    A node that does not follow is killed. One that ran no more is tidied up and told as "already". Nodes on hosts that
    do not answer are left out when the others are done.

    Raises:
        HostUnreachable: some of these nodes may still run, on hosts that did not answer; the others are stopped.
        DeadlineExceeded: names what is left of which node.
    """
    if not names:
        return ()
    site.check_hold()
    stopped: list[NodeStopped] = []
    survey = site.survey(names)
    away = {name: error for name in names if name not in survey and (error := _away(site, survey, name)) is not None}
    pending = {
        name: _Stopping(name=name, host=found.host, was_running=found.node.running, began_s=timeline.since_s())
        for name, found in survey.items()
    }

    def observe() -> bool | Pending:
        reasons: list[str] = []
        hosted = site.survey(tuple(pending))
        for name, stopping in tuple(pending.items()):
            try:
                left = _advance(site, stopping, hosted, timeline.since_s(), purge=purge)
            except HostUnreachable as error:
                away[name] = error
                del pending[name]
                continue
            if left:
                reasons.append(f"{name}: {left}")
                continue
            del pending[name]
            event = NodeStopped(
                at_s=timeline.since_s(),
                node=name,
                how=_how(stopping, hosted.get(name)),
                took_s=timeline.since_s() - stopping.began_s,
            )
            stopped.append(event)
            timeline.sink(event)
            if event.how != "already":
                site.note("stopped", node=name, host=stopping.host, before="running", after=event.how)
        return Pending(reasons=tuple(reasons)) if reasons else True

    try:
        wait_until(observe, what="nodes to stop", within_s=within_s, clock=site.clock, every_s=_POLL_S)
    except DeadlineExceeded as error:
        raise DeadlineExceeded(
            f"gave up after {within_s:.0f} s stopping {', '.join(pending)}",
            reasons=error.reasons,
            hints=[f"swarmctl ps {next(iter(pending))}", "swarmctl down"],
            context={"nodes": list(pending), "within_s": within_s},
        ) from None
    if away:
        raise HostUnreachable(
            f"not stopped, because their hosts do not answer: {', '.join(away)}",
            reasons=list(dict.fromkeys(error.message for error in away.values())),
            hints=["the others are stopped; when the hosts answer again: swarmctl down"],
            context={"nodes": list(away), "stopped": [event.node for event in stopped]},
        )
    return tuple(stopped)


def _away(site: Site, survey: Survey, name: NodeName) -> HostUnreachable | None:
    host = site.host_of(name)
    return survey.errors.get(host) if host is not None else None


def _advance(site: Site, stopping: _Stopping, survey: Survey, now_s: float, *, purge: bool) -> str | None:
    """One step; returns what is left, or None if nothing is.

    Raises:
        HostUnreachable: when its host does not answer.
    """
    if stopping.host in survey.errors:
        raise survey.errors[stopping.host]
    transport, found = site.transport(stopping.host), survey.get(stopping.name)
    if found is None or found.node.settled:
        left = transport.clear(stopping.name, purge=purge)
        if not left:
            return None
        transport.signal(stopping.name, Order.END)
        return "; ".join(left)
    # Until its runner has written a record there is nobody to ask; it will be seen at one of the next steps.
    if stopping.asked_s is None:
        if transport.signal(stopping.name, Order.STOP):
            stopping.asked_s = now_s
        return "its runner is on its way" if stopping.asked_s is None else "asked to stop"
    waited_s = now_s - stopping.asked_s
    if waited_s > _FORCE_AFTER_S:
        transport.signal(stopping.name, Order.END)
    return f"asked to stop {waited_s:.0f} s ago, {len(found.node.processes)} processes are left"


def _how(stopping: _Stopping, found: Hosted | None) -> str:
    if not stopping.was_running:
        return "already"
    ended = found.node.ended if found is not None else None
    return "stopped" if ended == "stopped" else "killed"
