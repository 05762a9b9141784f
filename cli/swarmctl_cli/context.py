"""One run of the command: the options that were given, the folders they lead to, and the swarm they mean."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from swarmctl import folders
from swarmctl.errors import ConfigError, UsageError
from swarmctl_cli.completion import CONFIG_NAME, config_file
from swarmctl_cli.output import NO_COMMAND, Format, Output

if TYPE_CHECKING:
    from swarmctl.blocks import NodeName
    from swarmctl.client.generate import Client
    from swarmctl.operations.site import Site
    from swarmctl.spec import SwarmSpec
    from swarmctl_cli.attempt import Trying

_SWARM_COMMAND = re.compile(
    r"\bswarmctl (?=(?:up|down|plan|status|ps|logs|events|lock|kill|restart|generate|verify|config|host|export)\b)"
    r"(?!.*(?: -c |--config))"
)
KINDS = {
    "init": "Init",
    "config validate": "Validation",
    "config show": "Config",
    "config schema": "Schema",
    "model tiny": "Model",
    "model import": "Model",
    "plan": "Plan",
    "up": "Up",
    "down": "Down",
    "restart": "Restart",
    "status": "Status",
    "ps": "Processes",
    "logs": "Logs",
    "kill": "Kill",
    "events": "Events",
    "lock status": "Lock",
    "lock break": "Lock",
    "verify redundancy": "Redundancy",
    "verify recovery": "Recovery",
    "generate": "Generation",
    "demo": "Demo",
    "export systemd": "Units",
    "host check": "HostCheck",
    "host setup": "HostSetup",
    "host wheelhouse": "Wheelhouse",
    "doctor": "Doctor",
    "version": "Version",
}
"""The kind of each command's document. A command line that makes no sense is known by its words alone, so they are here
and not in the commands."""
_LOG_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@dataclass(kw_only=True)
class Run:
    """Made once in `app`, filled in by the options before and after the verb, and read by the command.

    `why` and `lock_wait_s`: see `swarmctl.operations.site.Operator`.
    `interrupt_note`: what the user is told after Ctrl-C; a command sets it before it changes anything.
    `open_site` makes a site of a spec, the state folder and the run folder; None: the hosts as they are.
    `open_client` connects a client to a site, until its block is left; None: to the swarm as it is.
    `try_cells` has the cells of `verify recovery` tried; None: on real swarms.
    """

    out: Output
    env: Mapping[str, str]
    cwd: Path
    config: Path | None = None
    verbose: int = 0
    yes: bool = False
    dry_run: bool = False
    timeout_s: float | None = None
    why: str | None = None
    lock_wait_s: float = 0.0
    interrupt_note: str | None = None
    open_site: Callable[[SwarmSpec, Path, Path], Site] | None = None
    open_client: Callable[[Site], AbstractContextManager[Client]] | None = None
    try_cells: Trying | None = None
    _spec: SwarmSpec | None = field(default=None, repr=False)

    @classmethod
    def of_process(cls, *, stdout: TextIO | None = None, stderr: TextIO | None = None) -> Run:
        """A run with this process's environment and streams."""
        out = Output(stdout=stdout or sys.stdout, stderr=stderr or sys.stderr, env=os.environ)
        return cls(out=out, env=os.environ, cwd=Path.cwd())

    @property
    def state_folder(self) -> Path:
        """Where swarms keep their files on this machine."""
        return folders.state_of(self.env)

    @property
    def run_folder(self) -> Path:
        """Where unix sockets are made; short, because the kernel limits the length of their paths."""
        return folders.run_of(self.env)

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return folders.home_of(self.env)

    def command(self, *words: str) -> str:
        """A command line for a hint, with the `-c` that the user gave."""
        return " ".join(("swarmctl", *(("-c", str(self.config)) if self.config else ()), *words))

    def personal(self, hint: str) -> str:
        """A hint of the library with the `-c` that the user gave."""
        return _SWARM_COMMAND.sub(self.command() + " ", hint) if self.config else hint

    def site_named(self, swarm: str | None) -> Site:
        """As `site`; with a name, what runs of that swarm on this machine, whatever its file says now.

        Raises:
            ConfigError: the file is not valid; with the way to go on without it.
            UsageError: nothing of that name has left files here.
        """
        if swarm is None:
            try:
                return self.site()
            except ConfigError as error:
                names = ", ".join(self._swarms_here())
                if names:
                    error.hints = (*error.hints, f"without the file: add --swarm NAME; here are: {names}")
                raise
        if swarm not in self._swarms_here():
            names = ", ".join(self._swarms_here()) or "none"
            raise UsageError(f"no swarm {swarm} has left files in {self.state_folder}", reasons=[f"there are: {names}"])
        from swarmctl.spec import known_by_name

        self._spec = known_by_name(swarm)
        self.out.swarm = swarm
        return self.site()

    def _swarms_here(self) -> tuple[str, ...]:
        folder = self.state_folder
        return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir())) if folder.is_dir() else ()

    def select(self, site: Site, patterns: Sequence[str]) -> tuple[NodeName, ...]:
        """The nodes that the user's words mean; none for no words.

        Raises:
            UsageError: when a word means nothing, or several nodes.
        """
        if not patterns:
            return ()
        from swarmctl.operations.selection import candidates, select

        return select(candidates(site), patterns)

    @property
    def models_folder(self) -> Path:
        """Where imported models go when the user names no folder: the user's cache."""
        from swarmctl.models.cache import default_cache

        return default_cache(self.home, self.env.get("XDG_CACHE_HOME"))

    def config_path(self) -> Path:
        """The swarm file.

        Raises:
            ConfigError: when none is named and none is found.
        """
        path = config_file(self.config, self.env, self.cwd)
        if path is None:
            raise ConfigError(
                f"no {CONFIG_NAME} in {self.cwd} or above it",
                hints=["swarmctl init", "or name one: swarmctl -c FILE …, or set SWARMCTL_CONFIG"],
            )
        return path

    def spec(self) -> SwarmSpec:
        """The swarm file as values, read once.

        Raises:
            ConfigError: when there is no file, or it is not valid.
        """
        if self._spec is None:
            from swarmctl import config

            self._spec = config.load(self.config_path())
            self.out.swarm = self._spec.name
        return self._spec

    def site(self) -> Site:
        """The swarm with the means to reach its hosts.

        Raises:
            ConfigError: as `spec`.
            UsageError: when a host cannot be reached in any way that is known, or a folder does not do.
        """
        return self.site_of(self.spec())

    def site_of(self, spec: SwarmSpec) -> Site:
        """As `site`, for a spec that is not the file's.

        Raises:
            UsageError: as `site`.
        """
        self.out.swarm = spec.name
        site = (self.open_site or self._open_site)(spec, self.state_folder, self.run_folder)
        if self.why is None and not self.lock_wait_s:
            return site
        return replace(site, operator=replace(site.operator, why=self.why, lock_wait_s=self.lock_wait_s))

    def _open_site(self, spec: SwarmSpec, state: Path, run: Path) -> Site:
        from swarmctl.operations.opening import open_site

        return open_site(spec, state, run, python=sys.executable, ssh=self.env.get("SWARMCTL_SSH"))


@dataclass(frozen=True, kw_only=True)
class Given:
    """The shared options as one command line gave them; see `options`. `timeout` and `lock_wait` in seconds."""

    config: Path | None = None
    output: Format | None = None
    quiet: bool = False
    verbose: int = 0
    yes: bool = False
    dry_run: bool = False
    timeout: float | None = None
    why: str | None = None
    lock_wait: float | None = None


def kind_of(command_path: str) -> str:
    """The kind of the documents of a command, from its words as typer has them: `swarmctl config show`."""
    return KINDS.get(command_path.partition(" ")[2], NO_COMMAND)


def run_of(ctx: typer.Context, given: Given, *, has_names: bool = False) -> Run:
    """The run of a command, with the options after the verb on top of those before it.

    `has_names`: its result has names for `-o name`.

    Raises:
        UsageError: when `-o name` is asked of a command without names.
    """
    run: Run = ctx.obj
    absorb(run, given)
    run.out.kind = kind_of(ctx.command_path)
    _configure_logging(run)
    if run.out.format is Format.NAME and not has_names:
        raise UsageError("this command's result has no names to list", hints=[f"{ctx.command_path} -o table"])
    return run


def absorb(run: Run, given: Given) -> None:
    """Lay options over those that the run has already; flags add up, values replace."""
    run.config = given.config if given.config is not None else run.config
    run.out.format = given.output or run.out.format
    run.out.quiet = run.out.quiet or given.quiet
    run.verbose = max(run.verbose, given.verbose)
    run.yes, run.dry_run = run.yes or given.yes, run.dry_run or given.dry_run
    run.timeout_s = given.timeout if given.timeout is not None else run.timeout_s
    run.why = given.why if given.why is not None else run.why
    run.lock_wait_s = given.lock_wait if given.lock_wait is not None else run.lock_wait_s


def _configure_logging(run: Run) -> None:
    logger = logging.getLogger("swarmctl")
    logger.setLevel(_LOG_LEVELS[min(run.verbose, len(_LOG_LEVELS) - 1)])
    if run.verbose and not any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers):
        handler = logging.StreamHandler(run.out.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
