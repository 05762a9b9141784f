"""Crashing a node on purpose."""

from __future__ import annotations

from swarmctl.blocks import NodeName
from swarmctl.errors import Refused
from swarmctl.events import EventSink, NodeLost
from swarmctl.operations.readiness import Timeline
from swarmctl.operations.site import Site
from swarmctl.poll import Pending, wait_until
from swarmctl.transport.base import KILLED, Order

_RECORDED_S = 10.0


def kill(site: Site, node: NodeName, *, sink: EventSink, wait: bool = True) -> None:
    """SIGKILL everything that the node started; its runner survives to write down that it was killed on purpose.

    The DHT goes on saying ONLINE until the node's record there expires: that is the point of a drill. With `wait`
    this returns when the node's record says how it ended, without it as soon as the signal is sent, which takes
    milliseconds.

    Raises:
        Refused: when the node does not run.
    """
    timeline = Timeline(site=site, sink=sink, began=site.clock.monotonic())
    home = site.host_of(node)
    # Straight to where the file puts it; only a node that is elsewhere, or undeclared, is looked for.
    hosts = [home] if home is not None else []
    hosts += [found.host for found in site.survey((node,)).values()] if not hosts else []
    if not any(site.transport(host).signal(node, Order.KILL) for host in hosts):
        raise Refused(f"node {node} does not run, so there is nothing to kill", hints=["swarmctl status"])
    timeline.emit(NodeLost, node=node, reason=KILLED)
    if wait:
        # A drill in the middle of a generation has no time for it.
        site.note("killed", node=node, host=hosts[0], doing="kill", before="running", after=KILLED)
    if not wait:
        return

    def observe() -> bool | Pending:
        found = site.survey((node,)).get(node)
        if found is None or found.node.settled:
            return True
        return Pending(reasons=(f"{node}: {len(found.node.processes)} processes are left",))

    wait_until(observe, what=f"{node} to end", within_s=_RECORDED_S, clock=site.clock, every_s=0.05)
