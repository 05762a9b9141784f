"""How a host is reached: the operator's own OpenSSH client, its command line, and what its failures mean. Pure.

Everything that is the operator's business stays in their ssh configuration: keys, agent, jump hosts, known hosts,
ports. What is set here is what an unattended tool needs: no questions, bounded waits, and one connection a host that
later commands find open.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmctl.blocks import HostName
from swarmctl.errors import HostNotSetUp, HostUnreachable
from swarmctl.transport.quoting import shell_line

CONNECT_S = 4
"""For the connection and for sshd's first words; a round trip across the world takes a third of a second."""

_ALIVE_S, _ALIVE_COUNT = 5, 3
_PERSIST_S = 30
# sockaddr_un.sun_path, less what ssh adds while it makes the socket.
_SOCKET_PATH_BYTES = 107 - 17
_SOCKET_NAME = "/ssh-" + 40 * "0"
SSH_FAILED = 255
"""ssh's own exit status; every other one is the command's."""

_NOT_FOUND = (126, 127)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The way to one host. `destination` is `user@host` or a name of the ssh configuration; `python` runs swarmctl.

    `command`: the ssh program with its first options. `control`: the folder for sockets of shared connections, None
    for none.
    """

    host: HostName
    destination: str
    python: str
    command: tuple[str, ...] = ("ssh",)
    control: Path | None = None

    @property
    def shares(self) -> bool:
        """True if later commands use a connection that an earlier one has opened."""
        return self.control is not None and len(f"{self.control}{_SOCKET_NAME}".encode()) <= _SOCKET_PATH_BYTES

    def argv(self, words: Sequence[str], *, fresh: bool = False) -> list[str]:
        """The command line that runs `words` there; `fresh`: on a connection of its own."""
        return [*self.command, *self._options(fresh=fresh), "--", self.destination, shell_line(words)]

    def forget_argv(self) -> list[str]:
        """The command line after which nobody finds the shared connection; who uses it goes on."""
        return [*self.command, *self._options(fresh=False), "-O", "stop", "--", self.destination]

    def _options(self, *, fresh: bool) -> list[str]:
        wanted = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_S),
            "ServerAliveInterval": str(_ALIVE_S),
            "ServerAliveCountMax": str(_ALIVE_COUNT),
        }
        if self.shares and not fresh:
            wanted |= {"ControlMaster": "auto", "ControlPersist": str(_PERSIST_S)}
            wanted["ControlPath"] = f"{self.control}/ssh-%C"
        elif fresh:
            wanted["ControlPath"] = "none"
        return ["-T", *(word for name, value in wanted.items() for word in ("-o", f"{name}={value}"))]


def ssh_command(value: str | None) -> tuple[str, ...]:
    """The ssh program and its first options, from $SWARMCTL_SSH as a shell would split it; `ssh` without one.

    Raises:
        ValueError: when a quote in it is never closed.
    """
    return tuple(shlex.split(value)) if value and value.strip() else ("ssh",)


_FAULTS = (
    ("Host key verification failed", "its host key is not the one that is known here", "key"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed", "key"),
    ("Permission denied", "it does not accept your key", "login"),
    ("Too many authentication failures", "it has refused too many keys", "login"),
    ("Connection refused", "nothing listens for ssh there", "sshd"),
    ("timed out during banner exchange", "something accepts connections there and says nothing", "hung"),
    ("Connection timed out", "it does not answer: off, unplugged, or behind a firewall", "net"),
    ("Operation timed out", "it does not answer: off, unplugged, or behind a firewall", "net"),
    ("No route to host", "there is no way to it: off, or unplugged", "net"),
    ("Network is unreachable", "there is no way to it from here", "net"),
    ("Could not resolve hostname", "its name is not known here", "name"),
    ("kex_exchange_identification", "it closes the connection before the first word", "sshd"),
)


def failure_of(reach: Reach, code: int, words: str) -> HostUnreachable:
    """What it means that ssh, or the command that starts the agent, has ended with `code` and these last words."""
    lines = [line for line in words.splitlines() if line.strip()]
    by_hand = f"{shlex.join(reach.command)} {reach.destination} true"
    context = {"host": reach.host, "exit_status": code}
    if code == SSH_FAILED:
        fault = next(((why, kind) for text, why, kind in _FAULTS if text in words), None)
        why, kind = fault or ("ssh cannot log in there", "ssh")
        hints = [f"by hand: {by_hand}"]
        if kind == "name":
            hints.insert(0, f"hosts: {reach.host}: {{ssh: USER@ADDRESS}}")
        return HostUnreachable(
            f"host {reach.host} ({reach.destination}): {why}",
            reasons=lines[-3:],
            hints=hints,
            context={**context, "why": why},
        )
    if code in _NOT_FOUND:
        why = f"there is no {reach.python} there"
    elif "No module named" in words:
        why = f"{reach.python} there has no swarmctl, or not all of it"
    else:
        why = f"swarmctl does not start there (exit status {code})"
    return HostNotSetUp(
        f"host {reach.host} ({reach.destination}): {why}",
        reasons=lines[-5:],
        hints=[f"swarmctl host setup {reach.host}"],
        context={**context, "why": why},
    )
