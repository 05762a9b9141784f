"""A real swarm of tiny models on this machine, run as an operator runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.eventually import eventually
from support.reaping import left_of_swarm, ports_of, reap
from support.shell import Finished, Stream

from swarmctl import config
from swarmctl.blocks import NodeName
from swarmctl.events import Event
from swarmctl.models.tiny import TinyShape
from swarmctl.operations.down import down
from swarmctl.operations.kill import kill
from swarmctl.operations.opening import open_site
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import UpResult, up
from swarmctl.snapshot import NodeState, Snapshot
from swarmctl.upstream.tiny import write_tiny
from swarmctl_cli.app import execute
from swarmctl_cli.context import Run
from swarmctl_cli.output import Output

# One is up at a time, because a server takes ten seconds of a core to start; pytest orders the tests by it.
ON_LLAMA = pytest.mark.parametrize("swarm", ["llama"], indirect=True, scope="session")
ON_BOTH = pytest.mark.parametrize("swarm", ["llama", "bloom"], indirect=True, scope="session")

# If `a` dies, no single server can replace it: b1 and b2 must take its blocks over together.
SPLIT = {"a": "0:3", "b1": "0:2", "b2": "2:3", "c": "3:6", "d": "3:6"}
NUM_BLOCKS = 6
MAX_LENGTH = 256
CACHE_TOKENS = 1024

_FILE = """\
version: 1
swarm: {name}
model: {{source: ./model}}
redundancy: {{min: {replicas}, by: gpu}}
defaults:
  torch_dtype: float32
  threads: 1
  num_handlers: 2
  update_period: 5s
  inference_max_length: {max_length}
  attn_cache_tokens: {cache_tokens}
  restarts: 0
client: {{update_period: 2s}}
nodes:
{nodes}
"""
# A quiet machine needs 25 seconds for six servers; one that is shared has been seen to need four times that.
_UP_S = 200.0
_LOG_LINES = 40


@dataclass
class LiveSwarm:
    """One swarm in a folder of its own, with its file, its state and its sockets."""

    folder: Path
    site: Site
    ports: dict[str, int] = field(default_factory=dict)
    doomed: set[NodeName] = field(default_factory=set)

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The declared servers."""
        return tuple(self.site.spec.nodes)

    @property
    def env(self) -> dict[str, str]:
        """What makes a command line mean this swarm."""
        layout = self.site.layout
        return {"SWARMCTL_STATE": str(layout.state), "SWARMCTL_RUN": str(layout.run), "NO_COLOR": "1"}

    def up(self, *only: str, sink: Callable[[Event], None] = lambda _event: None) -> UpResult:
        """Start what is missing, and wait until it serves."""
        done = up(self.site, only=tuple(map(NodeName, only)), sink=sink, deadline_s=_UP_S)
        self.ports |= ports_of(self.site.layout)
        return done

    def ready(self, *names: str) -> None:
        """Start all that is missing if any of these nodes is (all of them, if none is named)."""
        self.await_death(*self.doomed)
        states = self.states()
        if any(states[NodeName(name)] is not NodeState.ONLINE for name in names or self.nodes):
            self.up()

    def await_death(self, *names: str) -> None:
        """Wait until nothing of these killed nodes lives, so that they can be started again."""

        def look() -> None:
            left = {name: found.node.processes for name, found in self.site.survey(names).items()}
            assert not any(left.values()), f"still alive: {left}"

        eventually(look, within_s=20)
        self.doomed.difference_update(names)

    def kill(self, *names: str) -> None:
        """SIGKILL these nodes, and wait until each record says so."""
        for name in names:
            kill(self.site, NodeName(name), sink=lambda _event: None)

    def snapshot(self) -> Snapshot:
        """What is observed now."""
        return read_snapshot(self.site)

    def states(self) -> dict[NodeName, NodeState]:
        """Each declared server's state."""
        return {node.name: node.state for node in self.snapshot().nodes}

    def command(self, *words: str) -> Finished:
        """A command line of this swarm's operator, in this process; not for commands that connect a client."""
        out, err = Stream(), Stream()
        env = {"HOME": str(self.folder), **self.env}
        output = Output(stdout=out, stderr=err, env=env)
        run = Run(out=output, env=env, cwd=self.folder, open_site=lambda _spec, _state, _run: self.site)
        code = execute(list(words), run)
        return Finished(code=code, out=out.getvalue(), err=err.getvalue())

    def program(self, *argv: str, within_s: float, env: Mapping[str, str] | None = None) -> Finished:
        """A Python program of this swarm's operator, in a process of its own that has so many seconds.

        Raises:
            subprocess.TimeoutExpired: it had not ended; it was killed, and what it had started with it.
        """
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=self.folder,
            env={**os.environ, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        return Finished(code=done.returncode, out=done.stdout, err=done.stderr)

    def logs(self) -> str:
        """The last lines of every node's log."""
        parts = []
        for name in self.site.layout.names():
            chunk = self.site.transport(next(iter(self.site.spec.hosts))).read_log(name, tail=_LOG_LINES)
            parts += [f"--- {name}", *chunk.lines]
        return "\n".join(parts)


@contextmanager
def live_swarm(
    family: str,
    nodes: Mapping[str, str],
    *,
    replicas: int = 2,
    settings: Mapping[str, str] | None = None,
    log: Callable[[str], None],
) -> Iterator[LiveSwarm]:
    """A swarm that is up; on leaving it is brought down, and whatever it leaves behind is an error, and is killed.

    `settings`: more keys of a node, as `{"a": "step_timeout: 4s"}`. `log` gets the nodes' logs when the swarm does not
    come up or does not go down.
    """
    # Not pytest's tmp_path: its names are longer than a unix socket's path may be.
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    write_tiny(TinyShape(family=family, blocks=NUM_BLOCKS), folder / "model")
    more = {name: f", {keys}" for name, keys in (settings or {}).items()}
    lines = "\n".join(f'  {name}: {{blocks: "{blocks}"{more.get(name, "")}}}' for name, blocks in nodes.items())
    sizes = {"max_length": MAX_LENGTH, "cache_tokens": CACHE_TOKENS}
    file = folder / config.FILE_NAME
    file.write_text(_FILE.format(name=family, nodes=lines, replicas=replicas, **sizes))
    site = open_site(config.load(file), folder / "state", folder / "run", python=sys.executable)
    swarm = LiveSwarm(folder=folder, site=site)
    try:
        try:
            swarm.up()
            yield swarm
            down(site, sink=lambda _event: None)
            left = left_of_swarm(site.layout, swarm.ports.values())
            assert not left, f"down left: {left}"
        except BaseException:
            log(swarm.logs())
            raise
    finally:
        reap(site.layout)
        shutil.rmtree(folder, ignore_errors=True)
