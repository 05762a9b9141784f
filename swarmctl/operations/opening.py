"""From a swarm file to a site: which transport leads to which host."""

from __future__ import annotations

import os
from pathlib import Path

from swarmctl.blocks import HostName
from swarmctl.clock import Clock, SystemClock
from swarmctl.errors import UsageError
from swarmctl.operations.site import Site
from swarmctl.spec import DEFAULT_PYTHON, SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.base import Transport
from swarmctl.transport.hosted import Runtime
from swarmctl.transport.local import LocalTransport
from swarmctl.transport.reach import Reach, ssh_command
from swarmctl.transport.ssh import SshTransport

# sockaddr_un.sun_path, less the name that the daemon's client socket gets: "p2pclient-" and eleven characters.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/01234567/p2pclient-01234567890.sock"


def open_site(
    spec: SwarmSpec,
    state: Path,
    run: Path,
    *,
    python: str,
    clock: Clock | None = None,
    child: tuple[str, ...] | None = None,
    ssh: str | None = None,
) -> Site:
    """The site of a swarm whose files are in `state` and `run` (both absolute) on this machine.

    `child` replaces the program that each runner starts, for tests. `ssh`: the ssh program with its first options, as
    $SWARMCTL_SSH has it.

    Raises:
        UsageError: when `ssh` makes no sense, or `run` is too long for a socket's path.
    """
    excess = len(os.fsencode(run)) + len(_SOCKET_NAME) - _SOCKET_PATH_BYTES
    if excess > 0:
        raise UsageError(
            f"the folder for sockets is {excess} bytes too long: {run}",
            reasons=[f"a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes"],
            hints=["set SWARMCTL_RUN to a shorter folder, for example: export SWARMCTL_RUN=/tmp/swarm"],
        )
    layout = Layout(state=state, run=run, swarm=spec.name)
    try:
        command = ssh_command(ssh)
    except ValueError as error:
        raise UsageError(f"SWARMCTL_SSH makes no sense: {error}", reasons=[ssh or ""]) from error
    local = LocalTransport(layout, Runtime(python=python, child=child))
    transports: dict[HostName, Transport] = {}
    for name, host in spec.hosts.items():
        transports[name] = (
            local
            if host.ssh is None
            else SshTransport(
                Reach(
                    host=name,
                    destination=host.ssh,
                    python=host.python or DEFAULT_PYTHON,
                    command=command,
                    control=run / "ssh",
                ),
                spec.name,
                child=child,
            )
        )
    return Site(spec=spec, layout=layout, transports=transports, clock=clock or SystemClock(), python=python)
