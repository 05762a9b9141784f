"""One host of the lab: its namespaces, its files, its sshd."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swarmctl import processes, tether
from swarmctl.lab import init
from swarmctl.lab.needs import program
from swarmctl.processes import ProcessSeen

_START_S = 20.0
_POLL_S = 0.01
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A disk keeps its files when the power is off; these are made anew.
_VOLATILE = ("/run", "/tmp")
_DISKS = ("/root", *_VOLATILE)

HANG = "import socket\ns = socket.create_server(('0.0.0.0', 22))\nheld = []\nwhile True: held.append(s.accept())\n"
"""A program that accepts connections on the port of ssh and says nothing."""


class Host:
    """A host that can be powered on and off. `folder` holds its files, its keys, and its sshd's log."""

    def __init__(self, name: str, folder: Path, visible: Sequence[Path]) -> None:
        self.name = name
        self.folder = folder
        self._visible = tuple(visible)
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init: ProcessSeen | None = None
        self._listener = folder / "listener"
        for disk in _DISKS:
            self.disk(disk).mkdir(parents=True, exist_ok=True)
        self.new_host_key("host")

    def disk(self, path: str) -> Path:
        """Where the host's own folder for `path` is seen from outside."""
        return self.folder / path.strip("/")

    @property
    def pid(self) -> int:
        """The host's first process, by the operator's count."""
        if self._init is None:
            raise RuntimeError(f"host {self.name} is off")
        return self._init.pid

    def power_on(self) -> None:
        """Start it, without a line and without sshd."""
        for disk in _VOLATILE:
            shutil.rmtree(self.disk(disk), ignore_errors=True)
            self.disk(disk).mkdir()
        (self.folder / init.READY).unlink(missing_ok=True)
        self._listener.unlink(missing_ok=True)
        config = {
            "name": self.name,
            "folder": str(self.folder),
            "disks": {disk: str(self.disk(disk)) for disk in _DISKS},
            "visible": [str(path) for path in self._visible],
        }
        file = self.folder / "init.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        unshare = [program("unshare") or "unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork"]
        argv = [*unshare, "--kill-child", "--mount-proc", sys.executable, init.__file__, str(file)]
        self._unshare = self._spawn(tether.wrap(argv), "init.log")
        self._init = _await(self._first_process, f"host {self.name}", self.log)
        _await(lambda: (self.folder / init.READY).exists(), f"the files of host {self.name}", self.log)

    def power_off(self) -> None:
        """End everything on it at once, as a cut of the power does."""
        # The first process before its parent: whoever outlives his parent waits for the machine's init to bury him.
        if self._init is not None:
            processes.send(self._init.pid, self._init.started, signal.SIGKILL)
        elif self._unshare is not None:
            self._unshare.kill()
        if self._unshare is not None:
            self._unshare.wait(_START_S)
        self._init = self._unshare = None

    def argv(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the host."""
        enter = [program("nsenter") or "nsenter", "--target", str(self.pid), "--all", "--wd=/root"]
        return [*enter, "env", "-i", "HOME=/root", f"PATH={_PATH}", *command]

    def run(self, command: Sequence[str]) -> str:
        """The output of a command on the host, which must succeed."""
        done = subprocess.run(self.argv(command), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def processes(self) -> dict[int, str]:
        """The command lines of all processes on the host, by their pids there; without the first and the asker's."""
        program_text = (
            "import os, pathlib\n"
            "for d in pathlib.Path('/proc').iterdir():\n"
            "    if d.name.isdigit() and int(d.name) not in (1, os.getpid()):\n"
            "        line = (d / 'cmdline').read_bytes().replace(b'\\0', b' ').decode()\n"
            "        if line: print(d.name, line)\n"
        )
        lines = self.run([sys.executable, "-I", "-S", "-c", program_text]).splitlines()
        return {int(pid): line.strip() for pid, _, line in (each.partition(" ") for each in lines)}

    # --- ssh -----------------------------------------------------------------------------------------------------

    def new_host_key(self, name: str) -> Path:
        """A key for its sshd, made where there is none of that name."""
        return make_key(self.folder / name)

    def serve_ssh(self, *, authorized: Path, key: str = "host", environment: Mapping[str, str] | None = None) -> None:
        """Start sshd, instead of whatever listened before; its sessions get `environment` on top of a bare one."""
        self.close_ssh()
        values = " ".join(f'"{name}={value}"' for name, value in (environment or {}).items())
        config = self.folder / "sshd_config"
        config.write_text(
            f"HostKey {self.new_host_key(key)}\nAuthorizedKeysFile {authorized}\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPidFile none\n"
            f"MaxStartups 100\n{f'SetEnv {values}' if values else ''}\n",
            encoding="utf-8",
        )
        self._listen([program("sshd") or "sshd", "-D", "-e", "-f", str(config)])

    def hang_ssh(self) -> None:
        """Something accepts connections where sshd was, and says nothing."""
        self.close_ssh()
        self._listen([sys.executable, "-I", "-S", "-c", HANG])

    def close_ssh(self) -> None:
        """Nothing listens any more; sessions that are open stay."""
        # Gone, not only killed: the next listener wants the port.
        end = 'kill -9 "$1" 2>/dev/null; while kill -0 "$1" 2>/dev/null; do sleep 0.01; done'
        if self._listener.exists():
            self.run(["sh", "-c", end, "sh", self._listener.read_text(encoding="ascii").strip()])
            self._listener.unlink()

    def _listen(self, command: Sequence[str]) -> None:
        # Forked once more over there, so that it is the host's own first process that buries it.
        note = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(self._listener), *command]
        with (self.folder / "sshd.log").open("ab") as log:
            argv = self.argv(["setsid", "--fork", *note])
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        _await(self._listens, f"something to listen on port 22 of {self.name}", self.log)

    def _listens(self) -> bool:
        lines = Path(f"/proc/{self.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        return any(local.endswith(":0016") and state == "0A" for _, local, _, state, *_ in map(str.split, lines))

    # ---------------------------------------------------------------------------------------------------------------

    def log(self) -> str:
        """What its first process and its sshd have said."""
        files = (self.folder / name for name in ("init.log", "sshd.log"))
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.exists())

    def _spawn(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _first_process(self) -> ProcessSeen | None:
        if self._unshare is None or self._unshare.poll() is not None:
            raise RuntimeError(f"host {self.name} does not start: {self.log()}")
        below = processes.below(processes.read_processes(), self._unshare.pid)
        return below[0] if below else None


def make_key(path: Path) -> Path:
    """An ed25519 key pair at `path`, made if it is not there."""
    if not path.exists():
        keygen = program("ssh-keygen") or "ssh-keygen"
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True)
    return path


def _await(condition: Callable[[], ProcessSeen | bool | None], what: str, log: Callable[[], str]) -> ProcessSeen | None:
    deadline = time.monotonic() + _START_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"gave up after {_START_S:g} s waiting for {what}: {log()}")
        time.sleep(_POLL_S)
    return found if isinstance(found, ProcessSeen) else None
