"""An OpenSSH server of our own on the loopback, with keys made for the test: a distant host without the distance."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.eventually import eventually

from swarmctl import ports, processes

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def why_not() -> str | None:
    """Why no ssh server can be started here, or None."""
    return None if SSHD and shutil.which("ssh") else "needs Debian's openssh-server and openssh-client"


@dataclass(frozen=True)
class Sshd:
    """A server that runs. `command`: the ssh that reaches it under the name `destination`."""

    command: tuple[str, ...]
    destination: str
    port: int
    folder: Path


@contextmanager
def serving(folder: Path, environment: Mapping[str, str]) -> Iterator[Sshd]:
    """Run sshd until the end of the block; its sessions get `environment` on top of the bare one that sshd gives."""
    assert SSHD is not None
    if os.geteuid() == 0:
        # Where sshd locks its unprivileged half in; a system that has never started sshd has none.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_text((folder / "client.pub").read_text())
    (port,) = ports.choose("127.0.0.1", [0])
    values = " ".join(f'"{name}={value}"' for name, value in environment.items())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
        f"PidFile none\nMaxStartups 100\n{f'SetEnv {values}' if values else ''}\n"
    )
    key = (folder / "host.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    (folder / "ssh_config").write_text(
        f"Host far\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/client\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log, start_new_session=True
        )
    try:
        eventually(lambda: _listens(port), within_s=10.0, every_s=0.02)
        yield Sshd(command=("ssh", "-F", str(folder / "ssh_config")), destination="far", port=port, folder=folder)
    finally:
        table = processes.read_processes()
        for one in (*processes.below(table, server.pid), table.get(server.pid)):
            if one is not None:
                processes.send(one.pid, one.started, signal.SIGTERM)
        server.wait(10)


def _listens(port: int) -> None:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError as error:
        raise AssertionError(f"sshd does not listen: {error}") from error
