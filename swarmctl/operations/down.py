"""Taking a swarm down: servers first, then the bootstrap peers that they announce their leave to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import HostUnreachable
from swarmctl.events import EventSink, NodeStopped
from swarmctl.operations.readiness import Timeline
from swarmctl.operations.site import Hosted, Site
from swarmctl.operations.stopping import stop

DOWN_S = 60.0


def down(
    site: Site,
    *,
    nodes: Collection[NodeName] = (),
    sink: EventSink,
    deadline_s: float = DOWN_S,
    purge: bool = False,
) -> tuple[NodeStopped, ...]:
    """Stop these nodes, or everything that runs under the swarm's name, also what is not in the file.

    Afterwards there is no process, open port, socket or record of them. Keys and logs stay, unless `purge`: that
    removes all files. An empty result means that there was nothing to do.

    Raises:
        HostUnreachable: some hosts did not answer; what runs on the others is stopped.
        DeadlineExceeded: names what is left of which node.
        Locked: another operator changes this swarm.
    """
    timeline = Timeline(site=site, sink=sink, began=site.clock.monotonic())
    with site.hold("down"):
        hosted = site.survey()
        chosen = {
            name: found
            for name, found in hosted.items()
            if (not nodes or name in nodes) and (purge or _has_something(found))
        }
        servers = [name for name, found in chosen.items() if not _is_bootstrap(site, found)]
        bootstraps = [name for name in chosen if name not in servers]
        stopped: tuple[NodeStopped, ...] = ()
        away = {host: error for host, error in hosted.errors.items() if not nodes or _wanted_on(site, nodes, host)}
        for group in (servers, bootstraps):
            left_s = max(0.0, deadline_s - timeline.since_s())
            stopped += stop(site, group, timeline=timeline, within_s=left_s, purge=purge)
        if away:
            raise _not_all(site, away, stopped)
        if purge:
            site.ask(site.machines(), lambda _host, transport: transport.drop_swarm())
        return stopped


def _wanted_on(site: Site, nodes: Collection[NodeName], host: HostName) -> bool:
    return any(site.host_of(node) == host for node in nodes)


def _not_all(site: Site, away: Mapping[HostName, HostUnreachable], stopped: Sequence[NodeStopped]) -> HostUnreachable:
    names = ", ".join(away)
    return HostUnreachable(
        f"{len(stopped)} nodes are stopped; what runs on {names} could not be, because nothing answers there",
        reasons=[error.message for error in away.values()],
        hints=["when the hosts answer again: swarmctl down", *next(iter(away.values())).hints],
        context={"hosts": list(away), "stopped": [event.node for event in stopped]},
    )


def _has_something(found: Hosted) -> bool:
    return found.node.record is not None or not found.node.settled


def _is_bootstrap(site: Site, found: Hosted) -> bool:
    if found.node.launch is not None:
        return found.node.launch.kind == "bootstrap"
    return any(peer.name == found.node.name for peer in site.spec.bootstraps)
