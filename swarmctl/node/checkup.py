"""`python -m swarmctl.node.checkup`: what this host has for the nodes that are to run on it; facts, no judgement.

Reads a `Question` as JSON from stdin and writes a `Checkup` as JSON to stdout; `swarmctl.operations.hosts.judging` says
what the facts mean. Imports neither torch nor hivemind, changes nothing, and ends within seconds.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from swarmctl import ports

PACKAGES = ("petals", "hivemind", "torch", "transformers")
_ASK_CARDS = ("nvidia-smi", "--query-gpu=index,name,memory.total,memory.free", "--format=csv,noheader,nounits")
_COMMAND_S = 8.0
_BLOCK = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_DAEMON = Path("hivemind_cli") / "p2pd"
_LINGERING = Path("/var/lib/systemd/linger")
# Go's flag package ends so after it has shown how to use the program.
_SHOWS_USAGE = (0, 2)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to look at. `model`: a folder (absolute) or a hub name, empty for none. `keys`: identity files by path."""

    ip: str = "0.0.0.0"
    ports: tuple[int, ...] = ()
    model: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Said:
    """How a program ended, and what it wrote. `code` None: it did not end in time."""

    code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class ModelFound:
    """A model folder as it is here. `block_bytes`: bytes of weights by block, empty where no file tells.

    `missing`: files that its index names and that are not there.
    """

    exists: bool
    missing: tuple[str, ...] = ()
    block_bytes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """The facts. Sizes in bytes.

    `smi`: what nvidia-smi said; None: there is none. `taken`: who has each port that is not free, in words.
    `cached_bytes`: what is there of a hub model already. `modes`: permissions of the keys that exist.
    `killed_at_logout`: systemd-logind ends this user's processes with the last login; None: there is none to ask.
    `daemon`: what is wrong with hivemind's libp2p daemon; None: it starts.
    """

    packages: dict[str, str | None]
    smi: Said | None
    memory_total: int
    memory_free: int
    disk_folder: str
    disk_free: int
    model: ModelFound | None
    cached_bytes: int
    taken: dict[int, str]
    daemon: str | None
    modes: dict[str, int]
    killed_at_logout: bool | None


def look(question: Question) -> Checkup:
    """Gather the facts."""
    total, free = _memory()
    folder = Path(question.model) if question.model.startswith("/") else None
    store = folder or Path(os.environ.get("PETALS_CACHE") or Path.home() / ".cache" / "petals")
    return Checkup(
        packages={name: _version(name) for name in PACKAGES},
        smi=_ask(_ASK_CARDS) if shutil.which(_ASK_CARDS[0]) else None,
        memory_total=total,
        memory_free=free,
        disk_folder=str(store),
        disk_free=shutil.disk_usage(_nearest(store)).free,
        model=find_model(folder) if folder is not None else None,
        cached_bytes=0 if folder is not None else _size_of(store / f"models--{question.model.replace('/', '--')}"),
        taken={port: holder for port in question.ports if (holder := _holder(question.ip, port))},
        daemon=_daemon_fault(),
        modes={key: Path(key).stat().st_mode & 0o777 for key in question.keys if Path(key).is_file()},
        killed_at_logout=_killed_at_logout(),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _ask(argv: Sequence[str]) -> Said:
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        return Said(code=None, stdout="", stderr=f"no answer within {_COMMAND_S:g} s")
    except OSError as error:
        return Said(code=127, stdout="", stderr=error.strerror or str(error))
    return Said(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def _memory() -> tuple[int, int]:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


def _nearest(folder: Path) -> Path:
    """The folder itself, or the one above it in which it would be made."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def _size_of(folder: Path) -> int:
    files = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    # The snapshots of the hub's cache are links to files beside them.
    return sum(file.lstat().st_size for file in files if not file.is_symlink())


def find_model(folder: Path) -> ModelFound:
    """What is in a checkpoint's folder, from indexes and headers alone."""
    if not (folder / "config.json").is_file():
        return ModelFound(exists=False)
    named = sorted({name for index in folder.glob("*.index.json") for name in _files_of(index)})
    missing = tuple(name for name in named if not (folder / name).is_file())
    sizes: dict[int, int] = {}
    for file in folder.glob("*.safetensors"):
        for block, size in _blocks_in(file):
            sizes[block] = sizes.get(block, 0) + size
    if not named and not sizes and not any(folder.glob("*.bin")):
        missing = ("model.safetensors",)
    return ModelFound(exists=True, missing=missing, block_bytes=sizes)


def _files_of(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return set()


def _blocks_in(file: Path) -> Iterator[tuple[int, int]]:
    """Block and bytes of each tensor of a safetensors file; nothing for one that is cut off."""
    try:
        with file.open("rb") as source:
            (length,) = struct.unpack("<Q", source.read(8))
            header = json.loads(source.read(min(length, 1 << 26)))
            tensors = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, struct.error):
        return
    for name, (start, end) in tensors.items():
        if found := _BLOCK.search(name):
            yield int(found[1]), end - start


def _holder(ip: str, port: int) -> str | None:
    """Who has a port, in words; None if it is free."""
    try:
        if ports.is_free(ip, port):
            return None
    except OSError as error:
        return f"nobody, but it cannot be used: {error.strerror}"
    import psutil

    for one in psutil.net_connections(kind="tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr[1] == port and one.pid:
            try:
                words = psutil.Process(one.pid).cmdline()
            except psutil.Error:
                return f"process {one.pid}"
            return f"process {one.pid} ({' '.join(words)[:80]})"
    return "another user's process"


def _daemon_fault() -> str | None:
    # Only where it is: hivemind takes seconds to import.
    found = find_spec("hivemind")
    if found is None or not found.submodule_search_locations:
        return "hivemind is not installed"
    daemon = Path(next(iter(found.submodule_search_locations))) / _DAEMON
    if not daemon.is_file():
        return f"there is no {daemon}"
    said = _ask((str(daemon), "-h"))
    if said.code in _SHOWS_USAGE:
        return None
    return f"{daemon} does not start: {(said.stderr.strip().splitlines() or [f'exit status {said.code}'])[-1]}"


def _killed_at_logout() -> bool | None:
    if shutil.which("loginctl") is None:
        return None
    said = _ask(("loginctl", "show-session", "--property=KillUserProcesses", "--property=KillExcludeUsers"))
    if said.code != 0:
        return None
    found = dict(line.split("=", 1) for line in said.stdout.splitlines() if "=" in line)
    user = getpass.getuser()
    spared = user in found.get("KillExcludeUsers", "").split() or (_LINGERING / user).exists()
    return found.get("KillUserProcesses") == "yes" and not spared


def main() -> int:
    """Entry point."""
    asked = json.loads(sys.stdin.read() or "{}")
    sys.stdout.write(json.dumps(asdict(look(Question(**asked)))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
