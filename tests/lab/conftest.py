"""Three real hosts on this machine, a swarm on them, and the command as its operator types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.eventually import eventually
from support.needed import unless

from swarmctl.lab import Lab, why_not
from swarmctl.models.tiny import TinyShape
from swarmctl.operations.models import make_tiny

HOSTS = ("gpu-a", "gpu-b", "gpu-c")
NODES = ("a", "b", "c", "d", "e")
BOOTSTRAPS = ("bootstrap-0", "bootstrap-1")

SWARM = """\
version: 1
swarm: lab
model: {{source: {model}}}
redundancy: {{min: 2, target: 2, by: host}}
defaults: {{torch_dtype: float32, num_handlers: 2, threads: 1, throughput: 10, update_period: 5s}}
hosts:
{hosts}
bootstrap: [{{host: gpu-a, port: 31337}}, {{host: gpu-b, port: 31337}}]
nodes:
  a: {{host: gpu-a, blocks: "0:4", port: 31340}}
  b: {{host: gpu-b, blocks: "2:6", port: 31340}}
  c: {{host: gpu-c, blocks: "0:6", port: 31340}}
  d: {{host: gpu-a, blocks: "4:6", port: 31341}}
  e: {{host: gpu-b, blocks: "0:2", port: 31341}}
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def data(self) -> Any:
        return self.document["data"]


@dataclass
class Place:
    """A lab, and an operator in front of it. `file`: the swarm file."""

    lab: Lab
    folder: Path
    file: Path

    def environment(self) -> dict[str, str]:
        own = {
            "SWARMCTL_STATE": str(self.folder / "state"),
            "SWARMCTL_RUN": str(self.folder / "r"),
            "SWARMCTL_CONFIG": str(self.file),
            "COLUMNS": "160",
        }
        return {**os.environ, **self.lab.environment(), **own}

    def __call__(self, *words: str, within_s: float = 110.0) -> Done:
        """Type `swarmctl WORDS` and wait for its end."""
        with self.typed(*words) as process:
            try:
                out, err = process.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise AssertionError(f"swarmctl {' '.join(words)} did not end: {out}{err}") from None
        return Done(process.returncode, out, err)

    def typed(self, *words: str) -> subprocess.Popen[str]:
        """Type `swarmctl WORDS`."""
        return subprocess.Popen(
            [sys.executable, "-m", "swarmctl_cli", *words],
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> Any:
        return self("status", "-o", "json").data

    def healthy(self, within_s: float = 60.0) -> Any:
        """The status when it is HEALTHY again, without anybody doing anything."""

        def check() -> Any:
            seen = self.status()
            assert seen["verdict"] == "HEALTHY", seen["reason"]
            return seen

        return eventually(check, within_s=within_s, every_s=0.5)

    def states(self) -> dict[str, str]:
        return {node["node"]: node["state"] for node in self.status()["nodes"]}

    def pids(self) -> dict[str, int]:
        """The process of each node, by its host's count."""
        return {row["node"]: row["pid"] for row in self("ps", "-o", "json").data}

    def of_nodes(self, host: str) -> list[str]:
        """The command lines of what belongs to nodes on a host: everything but sshd, its sessions and agents."""
        lines = self.lab.processes(host).values()
        return [line for line in lines if not line.startswith("sshd:") and "swarmctl.node.agent" not in line]

    def nothing_left(self) -> None:
        def check() -> None:
            for host in self.lab.names:
                assert self.of_nodes(host) == []

        eventually(check, within_s=20.0, every_s=0.2)


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    unless(why_not())


@pytest.fixture(scope="session")
def place(_possible: None) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    try:
        with Lab(folder / "lab", HOSTS) as lab:
            model = folder / "lab" / "model"
            make_tiny(TinyShape(), model)
            place = Place(lab=lab, folder=folder, file=written(folder / "swarm.yaml", lab, model))
            yield place
            place("down", "--purge", "--yes")
            place.nothing_left()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(file: Path, lab: Lab, model: Path) -> Path:
    hosts = "".join(
        f"  {name}: {{ssh: {name}, address: {lab.address(name)}, python: {sys.executable}}}\n" for name in lab.names
    )
    file.write_text(SWARM.format(model=model, hosts=hosts.rstrip("\n")))
    return file


@pytest.fixture
def swarm(place: Place) -> Iterator[Place]:
    """The swarm, up and healthy, whatever the test before has done to it; it stays up for the next one."""
    done = place("up")
    assert done.code == 0, done.err
    place.healthy()
    yield place
    for host in place.lab.names:
        place.lab.plug(host)
