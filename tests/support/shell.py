"""The whole program in this process: arguments in; exit code, stdout and stderr out. Hosts are in memory."""

from __future__ import annotations

import io
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from swarmctl.client.generate import Client
from swarmctl.operations.site import Site
from swarmctl.spec import SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.fake import FakeTransport
from swarmctl_cli.app import execute
from swarmctl_cli.attempt import Trying
from swarmctl_cli.context import Run
from swarmctl_cli.output import Output

SWARM = """\
version: 1
swarm: lab
model: {source: lab/model, blocks: 30, hidden_size: 64, dht_prefix: lab}
redundancy: {min: 2, by: gpu}
defaults: {torch_dtype: float32}
nodes:
  left-a: {blocks: "0:15"}
  left-b1: {blocks: "0:8"}
  left-b2: {blocks: "8:15"}
  right-a: {blocks: "15:30"}
  right-b: {blocks: "15:30"}
"""


class Stream(io.StringIO):
    """A pipe that takes UTF-8."""

    encoding = "utf-8"


class Terminal(Stream):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class FakeClock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s

    def now(self) -> datetime:
        return datetime(2024, 5, 1, 12, tzinfo=timezone.utc) + timedelta(seconds=self.at_s)

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document that stdout must hold."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def data(self) -> Any:
        """What the document is about."""
        return self.document["data"]


@dataclass
class Shell:
    """Types command lines in `folder`; the swarm's only host is `fake`, once a command has opened it.

    `try_cells` takes the place of real trials, `client` that of one that is connected to the swarm. `terminal`: whether
    stderr says that it is one; `screen`: whether stdout does.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    fake: FakeTransport | None = None
    try_cells: Trying | None = None
    client: Client | None = None
    terminal: bool = False
    screen: bool = False

    def __call__(self, *words: str) -> Finished:
        out, err = (Terminal() if says_so else Stream() for says_so in (self.screen, self.terminal))
        run = Run(
            out=Output(stdout=out, stderr=err, env=self.env),
            env={"HOME": str(self.folder), **self.env},
            cwd=self.folder,
            open_site=self.open_site,
            open_client=None if self.client is None else self._open_client,
            try_cells=self.try_cells,
        )
        code = execute(list(words), run)
        return Finished(code=code, out=out.getvalue(), err=err.getvalue())

    @property
    def host(self) -> FakeTransport:
        """The host in memory."""
        assert self.fake is not None, "no command has opened the swarm yet"
        return self.fake

    def _open_client(self, _site: Site) -> AbstractContextManager[Client]:
        assert self.client is not None
        return nullcontext(self.client)

    def open_site(self, spec: SwarmSpec, state: Path, run: Path) -> Site:
        """A site whose hosts are one fake, kept from command to command."""
        layout = Layout(state=state, run=run, swarm=spec.name)
        self.fake = self.fake or FakeTransport(layout, self.clock)
        transports = dict.fromkeys(spec.hosts, self.fake)
        return Site(spec=spec, layout=layout, transports=transports, clock=self.clock, python="python")
