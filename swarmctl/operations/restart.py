"""Restarting nodes one after the other, so that the others go on serving."""

from __future__ import annotations

from collections.abc import Sequence

from swarmctl.blocks import NodeName
from swarmctl.events import EventSink
from swarmctl.operations.launching import ensure_identities, start
from swarmctl.operations.readiness import Timeline, Watch
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.stopping import stop
from swarmctl.operations.up import UP_S
from swarmctl.snapshot import Snapshot


def restart(site: Site, nodes: Sequence[NodeName], *, sink: EventSink, deadline_s: float = UP_S) -> Snapshot:
    """Stop and start each of these declared nodes, and wait until it is ready before the next one is touched.

    Each comes back as the file says, with its key, and with its port if that is free. A node that does not run is
    started. Returns the picture at the end.

    Raises:
        NodeFailed: a node did not come back; those after it were not touched.
        DeadlineExceeded: the whole took too long.
        Locked: another operator changes this swarm.
    """
    watch = Watch(timeline=Timeline(site=site, sink=sink, began=site.clock.monotonic()), deadline_s=deadline_s)
    with site.hold("restart"):
        peers = ensure_identities(site)
        for node in nodes:
            stop(site, [node], timeline=watch.timeline, within_s=watch.left_s)
            for name, failure in start(site, [node], peers).items():
                watch.fail(name, failure)
            watch.until_ready([node], what=f"{node} to come back")
            watch.conclude()
        return read_snapshot(site)
