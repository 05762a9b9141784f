"""A swarm, the hosts it is on, and the ways to reach them: what every operation is given."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarmctl import locks
from swarmctl.blocks import HostName, NodeName
from swarmctl.clock import Clock, SystemClock
from swarmctl.errors import Locked, UsageError
from swarmctl.spec import SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.base import HostedNode, Transport
from swarmctl.transport.hosted import Runtime
from swarmctl.transport.local import LocalTransport

# sockaddr_un.sun_path, less the name that the daemon's client socket gets: "p2pclient-" and eleven characters.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/01234567/p2pclient-01234567890.sock"

LOCK_NAME = ".lock"
"""The file in the swarm's folder that an operation holds (flock) while it changes the swarm."""


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A node's facts together with the host that they come from."""

    host: HostName
    node: HostedNode


@dataclass(frozen=True, kw_only=True)
class Site:
    """One swarm as this machine sees it. `python` runs swarmctl's own programs on local hosts."""

    spec: SwarmSpec
    layout: Layout
    transports: Mapping[HostName, Transport]
    clock: Clock
    python: str

    def host_of(self, node: NodeName) -> HostName | None:
        """The host that the file puts a node on; None for one that is not in the file."""
        if node in self.spec.nodes:
            return self.spec.nodes[node].host
        return next((peer.host for peer in self.spec.bootstraps if peer.name == node), None)

    def transport(self, host: HostName) -> Transport:
        """The way to a host."""
        return self.transports[host]

    def python_on(self, host: HostName) -> str:
        """The interpreter that runs swarmctl's programs on a host."""
        return self.spec.hosts[host].python or self.python

    def survey(self, names: Sequence[NodeName] | None = None) -> dict[NodeName, Hosted]:
        """What runs, and what left files, on all hosts; with nodes that are not in the file.

        A node that was moved to another host in the file appears as the one that runs, until it does not.
        """
        found: dict[NodeName, Hosted] = {}
        for host, transport in self._distinct():
            for node in transport.survey(names):
                home = self.host_of(node.name)
                same = home is not None and self.transports[home] is transport
                seen = Hosted(host=home if home is not None and same else host, node=node)
                before = found.get(node.name)
                if before is None or self._rank(seen) > self._rank(before):
                    found[node.name] = seen
        return found

    def _rank(self, seen: Hosted) -> tuple[bool, bool]:
        return (seen.node.running, self.host_of(seen.node.name) == seen.host)

    def _distinct(self) -> Iterator[tuple[HostName, Transport]]:
        # Several names in the file may lead to one machine, whose files would be read twice.
        seen: set[int] = set()
        for host, transport in self.transports.items():
            if id(transport) not in seen:
                seen.add(id(transport))
                yield host, transport

    @contextmanager
    def hold(self, why: str) -> Iterator[None]:
        """Keep other operators on this machine from changing the swarm meanwhile; ends with the process at the latest.

        Raises:
            Locked: when another one holds it; says who, since when, and what for.
        """
        self.layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.layout.root / LOCK_NAME
        handle = locks.take(path)
        if handle is None:
            raise Locked(
                f"another operator is changing swarm {self.spec.name}",
                reasons=[_holder(path)],
                hints=["wait until it has ended, then type this again; what runs meanwhile: swarmctl ps"],
            )
        try:
            note = {"why": why, "pid": os.getpid(), "since": self.clock.now().isoformat(timespec="seconds")}
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(note).encode(), 0)
            yield
        finally:
            os.close(handle)


def _holder(path: Path) -> str:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return f"`{note['why']}`, process {note['pid']}, since {note['since']}"
    except (OSError, ValueError, KeyError):
        return "it has not said who it is yet"


def open_site(
    spec: SwarmSpec,
    state: Path,
    run: Path,
    *,
    python: str,
    clock: Clock | None = None,
    child: tuple[str, ...] | None = None,
) -> Site:
    """The site of a swarm whose files are in `state` and `run` (both absolute) on this machine.

    `child` replaces the program that each runner starts, for tests.

    Raises:
        UsageError: when a host needs another way than this machine's own, or `run` is too long for a socket's path.
    """
    distant = [name for name, host in spec.hosts.items() if not host.is_local]
    if distant:
        raise UsageError(
            f"the file has hosts with `ssh:` ({', '.join(distant)}), and this version runs nodes on this machine only",
            reasons=["other machines come with a later version; until then such a file is checked and shown"],
            hints=["swarmctl config show", "a swarm for this machine: swarmctl init tiny-llama -o tiny.yaml"],
        )
    excess = len(os.fsencode(run)) + len(_SOCKET_NAME) - _SOCKET_PATH_BYTES
    if excess > 0:
        raise UsageError(
            f"the folder for sockets is {excess} bytes too long: {run}",
            reasons=[f"a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes"],
            hints=["set SWARMCTL_RUN to a shorter folder, for example: export SWARMCTL_RUN=/tmp/swarm"],
        )
    layout = Layout(state=state, run=run, swarm=spec.name)
    local = LocalTransport(layout, Runtime(python=python, child=child))
    return Site(
        spec=spec,
        layout=layout,
        transports=dict.fromkeys(spec.hosts, local),
        clock=clock or SystemClock(),
        python=python,
    )
