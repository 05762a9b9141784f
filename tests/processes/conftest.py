"""A swarm of pretended servers: real runners, signals, locks and ports, and nothing heavy behind them."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from swarmctl import processes
from swarmctl.blocks import BlockRange, HostName, NodeName, PeerId
from swarmctl.clock import SystemClock
from swarmctl.events import Event
from swarmctl.operations.opening import open_site
from swarmctl.operations.site import Site
from swarmctl.poll import Pending, wait_until
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, NodeSpec, ServerSettings, SwarmSpec
from swarmctl.store import NodeFiles, Record, read_record, write_peer

HERE = HostName("here")
PRETEND = (sys.executable, str(Path(__file__).with_name("pretend.py")))
BOOT, A, B = NodeName("boot"), NodeName("a"), NodeName("b")


@dataclass
class Lab:
    """A site in a temporary folder, and what happened on it."""

    site: Site
    events: list[Event] = field(default_factory=list)

    def files(self, name: NodeName) -> NodeFiles:
        return self.site.layout.node(name)

    def record(self, name: NodeName) -> Record:
        record = read_record(self.files(name))
        assert record is not None, f"{name} has no record"
        return record

    def behave(self, name: NodeName, *words: str) -> None:
        (self.files(name).folder / "pretend.txt").write_text(" ".join(words))

    def with_spec(self, spec: SwarmSpec) -> Lab:
        return Lab(site=replace(self.site, spec=spec), events=self.events)

    def left(self) -> list[processes.ProcessSeen]:
        """Everything that lives and was started for a node of this lab."""
        marks = [str(self.files(name).folder) for name in self.site.layout.names()]
        return [process for mark in marks for process in processes.marked(mark)]

    def runners(self) -> list[processes.ProcessSeen]:
        root = str(self.site.layout.root)
        return [
            p
            for p in processes.read_processes().values()
            if "swarmctl.node" in (line := command(p.pid)) and root in line
        ]

    def log(self, name: NodeName) -> str:
        return self.files(name).log.read_text()


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def eventually(check, *, within_s: float = 20.0, what: str = "the condition"):
    """The first true value of `check`; fails with the last value it had."""

    def observe():
        value = check()
        return value or Pending(reasons=(f"last value: {value!r}",))

    return wait_until(observe, what=what, within_s=within_s, clock=SystemClock(), every_s=0.02)


def small_spec(*, restarts: int = 0, **changes) -> SwarmSpec:
    """Two servers, which are never started again by themselves unless the test says so."""
    settings = ServerSettings(restarts=restarts)
    nodes = {
        A: NodeSpec(name=A, host=HERE, blocks=BlockRange(0, 2), settings=settings),
        B: NodeSpec(name=B, host=HERE, blocks=BlockRange(2, 4), settings=settings),
    }
    spec = SwarmSpec(
        name="lab",
        model=ModelSpec(source="lab/a-model-of-no-hub", dht_prefix="lab-hf", num_blocks=4, hidden_size=8),
        hosts={HERE: HostSpec(name=HERE)},
        bootstraps=(BootstrapSpec(name=BOOT, host=HERE),),
        nodes=nodes,
    )
    return replace(spec, **changes)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    # Not pytest's tmp_path: its names are longer than a unix socket's path may be.
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    site = open_site(small_spec(), folder / "state", folder / "run", python=sys.executable, child=PRETEND)
    lab = Lab(site=site)
    for name in (BOOT, A, B):
        files = lab.files(name)
        files.folder.mkdir(parents=True)
        files.identity.write_bytes(name.encode())
        write_peer(files, PeerId(f"QmPeerOf{name}"))
    try:
        yield lab
    finally:
        reap(lab)
        if request.session.testsfailed:
            for name in lab.site.layout.names():
                if lab.files(name).log.exists():
                    sys.stderr.write(f"--- {name}\n{lab.log(name)}\n")
        shutil.rmtree(folder, ignore_errors=True)


def reap(lab: Lab) -> None:
    """End whatever a test left, by pid and start time; runners first, so that they start nothing more."""
    for _ in range(500):
        left = [*lab.runners(), *lab.left()]
        if not left:
            break
        for process in left:
            processes.send(process.pid, process.started, signal.SIGKILL)
        lab.site.survey()
        time.sleep(0.01)
