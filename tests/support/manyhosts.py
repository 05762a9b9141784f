"""A site on several hosts in memory."""

from __future__ import annotations

from pathlib import Path

from support.clock import FakeClock

from swarmctl.blocks import HostName
from swarmctl.operations.site import Operator, Site
from swarmctl.spec import SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.fake import FakeTransport


def a_site(spec: SwarmSpec, folder: Path) -> tuple[Site, dict[HostName, FakeTransport], FakeClock]:
    """The site, its hosts, and their clock; what a bootstrap peer observes comes from all hosts, as in a real swarm."""
    clock = FakeClock()
    hosts = {
        name: FakeTransport(Layout(state=folder / name, run=folder, swarm=spec.name), clock) for name in spec.hosts
    }
    for host in hosts.values():
        host.neighbours = tuple(hosts.values())
    site = Site(
        spec=spec,
        layout=Layout(state=folder, run=folder, swarm=spec.name),
        transports=hosts,
        clock=clock,
        python="python",
        operator=Operator(who="ada@desk", why="a test"),
    )
    return site, hosts, clock
