"""The lab: its hosts, the lines between them, and what can be done to both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from swarmctl import tether
from swarmctl.lab import slowline
from swarmctl.lab.host import Host, make_key
from swarmctl.lab.needs import faketime, program, why_not
from swarmctl.lab.network import Bridge, ip


class Lab:
    """Hosts of these names, up and reachable from `__enter__` to `__exit__`. `folder` must be the lab's alone.

    `visible`: folders that the hosts see where they are here, beside the running Python and its packages; everything
    else in /root, /tmp and /run is each host's own.

    Everything ends with the thread that enters the lab, or with its process, at the latest.

    Raises:
        RuntimeError: when there can be no lab here; `why_not` says why.
    """

    def __init__(self, folder: Path, hosts: Sequence[str], *, visible: Sequence[Path] = ()) -> None:
        why = why_not()
        if why is not None:
            raise RuntimeError(why)
        self.folder = folder
        self.names = tuple(hosts)
        source = Path(__file__).resolve().parents[2]
        seen = (folder, source, Path(sys.prefix), Path(sys.base_prefix), *visible)
        self._visible = tuple(dict.fromkeys(path.resolve() for path in seen))
        self._slow: dict[str, subprocess.Popen[bytes]] = {}
        self._environment: dict[str, dict[str, str]] = {name: {} for name in self.names}

    def __enter__(self) -> Lab:
        (self.folder / "hosts").mkdir(parents=True)
        make_key(self.folder / "client")
        self.authorized = self.folder / "authorized_keys"
        self.authorized.write_text((self.folder / "client.pub").read_text(encoding="utf-8"), encoding="utf-8")
        (self.folder / "nobody").write_text("", encoding="utf-8")
        self._bridge = Bridge()
        self._hosts = {name: Host(name, self.folder / "hosts" / name, self._visible) for name in self.names}
        try:
            # One after the other: what is tethered dies with the thread that has started it.
            for name in self.names:
                self._hosts[name].power_on()
                self._connect(name)
                self.serve_ssh(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._write_ssh_config()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.names:
            self.power_off(name)
        self._bridge.remove()

    # --- what is where ---------------------------------------------------------------------------------------------

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return self._bridge.address(self.names.index(name))

    @property
    def operator(self) -> str:
        """The IP address of this machine in the lab's network."""
        return self._bridge.operator

    @property
    def ssh_config(self) -> Path:
        """The configuration under which `ssh NAME` logs in to a host."""
        return self.folder / "ssh_config"

    def environment(self) -> dict[str, str]:
        """What tells swarmctl to reach hosts as this lab's."""
        return {"SWARMCTL_SSH": f"ssh -F {self.ssh_config}"}

    def disk(self, name: str, path: str) -> Path:
        """Where the folder /root, /tmp or /run of a host is seen from here."""
        return self._hosts[name].disk(path)

    def run(self, name: str, command: Sequence[str]) -> str:
        """The output of a command on a host, not by way of ssh."""
        return self._hosts[name].run(command)

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of all processes on a host, by their pids there."""
        return self._hosts[name].processes()

    def log(self, name: str) -> str:
        """What a host's sshd has said."""
        return self._hosts[name].log()

    # --- what can be done to a host --------------------------------------------------------------------------------

    def unplug(self, name: str) -> None:
        """Pull the network cable: nothing comes through any more, and nobody is told."""
        ip("link", "set", self._line(name), "down")

    def plug(self, name: str) -> None:
        """Put the cable back."""
        ip("link", "set", self._line(name), "up")

    def slow(self, name: str, *, delay_ms: float = 100.0, loss_percent: float = 1.0) -> None:
        """Make the line of a host slow and lossy: `delay_ms` each way, `loss_percent` of all frames lost."""
        self._end_slow(name)
        line = self._line(name)
        near, far = f"{line}n", f"{line}f"
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        # This machine would answer for the operator there, and get the host's frames past the forwarder.
        for end in (line, near):
            ip("link", "set", end, "arp", "off")
        ip("link", "set", line, "nomaster")
        ip("link", "set", far, "master", self._bridge.name, "up")
        ip("link", "set", near, "up")
        self._finish_frames(name, line, near, far)
        words = [sys.executable, slowline.__file__, line, near, str(delay_ms / 1e3), str(loss_percent / 100)]
        with (self.folder / "slowline.log").open("ab") as log:
            forwarder = subprocess.Popen(
                tether.wrap(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._slow[name] = forwarder
        if forwarder.stdout is None or forwarder.stdout.readline() != slowline.READY:
            raise RuntimeError(f"the line of {name} does not work: {(self.folder / 'slowline.log').read_text()}")

    def normal(self, name: str) -> None:
        """Undo `slow`."""
        self._end_slow(name)
        ip("link", "set", self._line(name), "master", self._bridge.name)

    def power_off(self, name: str) -> None:
        """Cut the power: every process ends, /root stays as it was. The line, if it was slow, is normal then."""
        self._end_slow(name)
        self._hosts[name].power_off()
        self._bridge.disconnect(self.names.index(name))

    def power_on(self, name: str) -> None:
        """Start a host again; what ran on it does not run."""
        self._hosts[name].power_on()
        self._connect(name)
        self.serve_ssh(name)

    def serve_ssh(self, name: str) -> None:
        """Let operators in, as at the beginning."""
        self._hosts[name].serve_ssh(authorized=self.authorized, environment=self._environment[name])

    def refuse_ssh(self, name: str) -> None:
        """Nothing listens for ssh any more."""
        self._hosts[name].close_ssh()

    def hang_ssh(self, name: str) -> None:
        """Something accepts connections in sshd's place and says nothing."""
        self._hosts[name].hang_ssh()

    def change_host_key(self, name: str) -> None:
        """Another key than the one that operators know, as after a new installation, or in a wrong place."""
        self._hosts[name].serve_ssh(authorized=self.authorized, key="another", environment=self._environment[name])

    def forget_operator(self, name: str) -> None:
        """The operator's key is not accepted any more."""
        self._hosts[name].serve_ssh(authorized=self.folder / "nobody", environment=self._environment[name])

    def set_clock_off(self, name: str, seconds: float) -> None:
        """Another time for everything that is started through ssh from now on; 0 is the right one."""
        wrong = {"LD_PRELOAD": str(faketime()), "FAKETIME": f"{seconds:+g}", "FAKETIME_DONT_RESET": "1"}
        self._environment[name] = wrong if seconds else {}
        self.serve_ssh(name)

    # ---------------------------------------------------------------------------------------------------------------

    def _line(self, name: str) -> str:
        return self._bridge.line(self.names.index(name))

    def _connect(self, name: str) -> None:
        place = self.names.index(name)
        self._bridge.connect(place, self._hosts[name].pid)
        inside = program("ip") or "ip"
        self.run(name, [inside, "addr", "add", f"{self.address(name)}/{self._bridge.network.prefixlen}", "dev", "eth0"])
        self.run(name, [inside, "link", "set", "eth0", "up"])

    def _finish_frames(self, name: str, *lines: str) -> None:
        for line in lines:
            slowline.plain_frames(line)
        words = "from swarmctl.lab.slowline import plain_frames; plain_frames('eth0')"
        self.run(name, [sys.executable, "-c", words])

    def _end_slow(self, name: str) -> None:
        process = self._slow.pop(name, None)
        if process is not None:
            process.kill()
            process.communicate()
            ip("link", "del", f"{self._line(name)}n")

    def _write_ssh_config(self) -> None:
        known, config = [], []
        for name in self.names:
            key = (self.folder / "hosts" / name / "host.pub").read_text(encoding="utf-8").split()
            known.append(f"{self.address(name)} {key[0]} {key[1]}\n")
            config.append(f"Host {name}\n  HostName {self.address(name)}\n")
        (self.folder / "known_hosts").write_text("".join(known), encoding="utf-8")
        shared = (
            f"Host *\n  User root\n  IdentityFile {self.folder}/client\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  StrictHostKeyChecking yes\n"
        )
        self.ssh_config.write_text("".join(config) + shared, encoding="utf-8")
