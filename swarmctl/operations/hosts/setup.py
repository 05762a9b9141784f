"""Makes hosts fit: Python's environment, the packages, and this very swarmctl. Each step is skipped where it is done.

What is done is marked on the host when it is whole, so an interrupted setup goes on where it was.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from swarmctl import build
from swarmctl.blocks import HostName
from swarmctl.errors import HostUnreachable, PartialFailure, Refused, SwarmctlError, UsageError
from swarmctl.operations.hosts import remote, wheel
from swarmctl.operations.hosts.remote import Remote
from swarmctl.spec import DEFAULT_PYTHON, HostSpec
from swarmctl.transport.reach import Reach, ssh_command
from swarmctl.transport.ssh import SshTransport

_AT_ONCE = 16
# What pip says of a package of an index, and of a file.
_FOUND = ("Collecting ", "Processing ")
_INSTALLING = "Installing collected packages: "

Tell = Callable[[HostName, str], None]
"""Told what happens on a host, from several threads."""


class Outcome(str, Enum):
    """How the setup of a host ended. WOULD: on a dry run, something is to do. LOCAL: swarmctl runs here already."""

    DONE = "done"
    NOTHING = "nothing to do"
    WOULD = "would be set up"
    LOCAL = "this machine"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class HostSetup:
    """What became of one host. `steps`: those that were done, or would be."""

    host: HostName
    outcome: Outcome
    steps: tuple[str, ...] = ()
    error: SwarmctlError | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How to set up. `wheelhouse`: a folder of wheels to install from. `python`: what makes the environments.

    `over_running`: also where nodes run from an environment of another build.
    """

    wheelhouse: Path | None = None
    python: str = ""
    over_running: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class _There:
    """What a host has. `runs`: nodes whose runners run from the environment."""

    build: str
    packages: str
    python: str | None
    runs: tuple[str, ...]


def set_up(
    reaches: Mapping[HostName, Reach | None], how: Setup, *, tell: Tell = lambda _host, _line: None
) -> tuple[HostSetup, ...]:
    """Set hosts up, all at the same time; one that fails does not keep the others. None: a host that is this machine.

    Ctrl-C hangs up everywhere; the next setup repairs what that leaves.
    """
    if how.wheelhouse is not None and not any(how.wheelhouse.glob("*.whl")):
        raise Refused(f"there are no wheels in {how.wheelhouse}", hints=[f"swarmctl host wheelhouse {how.wheelhouse}"])
    with tempfile.TemporaryDirectory(prefix="swarmctl-") as folder:
        ours = wheel.build_wheel(Path(folder))
        jobs = {host: _Job(host, reach, how, ours, tell) for host, reach in reaches.items() if reach is not None}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="setup") as pool:
            try:
                done = dict(zip(jobs, pool.map(lambda job: job.do(), jobs.values()), strict=True))
            except BaseException:
                for job in jobs.values():
                    job.remote.cancel()
                raise
    return tuple(done.get(host) or HostSetup(host=host, outcome=Outcome.LOCAL) for host in reaches)


def failure_of(results: Sequence[HostSetup]) -> SwarmctlError | None:
    """What to raise for these results; None if none failed."""
    failed = {one.host: one.error for one in results if one.error is not None}
    if not failed:
        return None
    reasons = [line for host, error in failed.items() for line in (f"{host}: {error.message}", *error.reasons)]
    hints = list(dict.fromkeys(hint for error in failed.values() for hint in error.hints))
    message = f"{', '.join(failed)} could not be set up"
    if any(one.error is None and one.outcome is not Outcome.LOCAL for one in results):
        return PartialFailure(message, reasons=reasons, hints=hints)
    kinds = {type(error) for error in failed.values()}
    for kind in (HostUnreachable, Refused):
        if all(issubclass(one, kind) for one in kinds):
            return kind(message, reasons=reasons, hints=hints)
    return SwarmctlError(message, reasons=reasons, hints=hints)


def reach_to(host: HostSpec, run: Path, ssh: str | None) -> Reach | None:
    """The way to a host for `set_up`; None to this machine. `run` and `ssh` as for `open_site`.

    Raises:
        Refused: the Python that the file names there is none of an environment.
        UsageError: `ssh` makes no sense.
    """
    if host.ssh is None:
        return None
    python = PurePosixPath(host.python or DEFAULT_PYTHON)
    if python.name not in ("python", "python3") or python.parent.name != "bin":
        raise Refused(
            f"host {host.name} runs {python}, which is not in an environment that can be made",
            hints=[f"in the file: hosts.{host.name}.python: {DEFAULT_PYTHON}, or leave it out"],
        )
    try:
        command = ssh_command(ssh)
    except ValueError as error:
        raise UsageError(f"SWARMCTL_SSH makes no sense: {error}", reasons=[ssh or ""]) from error
    return Reach(host=host.name, destination=host.ssh, python=str(python), command=command, control=run / "ssh")


class _Job:
    """The setup of one host."""

    def __init__(self, host: HostName, reach: Reach, how: Setup, ours: Path, tell: Tell) -> None:
        self.host = host
        self._reach = reach
        self._how = how
        self._ours = ours
        self._tell = tell
        self._python = PurePosixPath(reach.python)
        self._venv = str(self._python.parent.parent)
        self.remote = Remote(reach, self._venv)

    def do(self) -> HostSetup:
        """All of it; whatever is known to fail becomes the result."""
        try:
            return self._do()
        except SwarmctlError as error:
            self._say(f"failed: {error.message}")
            return HostSetup(host=self.host, outcome=Outcome.FAILED, error=error)

    def _do(self) -> HostSetup:
        there, mark = self._look(), _mark()
        steps = [
            *(("environment",) if there.python is None else ()),
            *(("packages",) if there.packages != mark or there.python is None else ()),
            *(("swarmctl",) if there.build != build.digest() or there.python is None else ()),
        ]
        if not steps and self._answers():
            return HostSetup(host=self.host, outcome=Outcome.NOTHING)
        steps = steps or ["environment", "packages", "swarmctl"]
        if there.runs and not self._how.over_running:
            raise Refused(
                f"nodes run on {self.host} from the environment that would be changed: {', '.join(there.runs)}",
                reasons=[f"build there: {there.build or 'unknown'}, here: {build.digest()}"],
                hints=["swarmctl down", f"or, and restart them afterwards: swarmctl host setup {self.host} --yes"],
            )
        if self._how.dry_run:
            return HostSetup(host=self.host, outcome=Outcome.WOULD, steps=tuple(steps))
        self._environment()
        # The environment may have been made anew.
        if "packages" in steps or self._look().packages != mark:
            self._packages(mark)
        self._swarmctl()
        self._verify()
        return HostSetup(host=self.host, outcome=Outcome.DONE, steps=tuple(steps))

    def _say(self, line: str) -> None:
        self._tell(self.host, line)

    def _look(self) -> _There:
        said = [line.partition(" ")[::2] for line in self.remote.script(remote.LOOK)]
        found = dict(said)
        python = found.get("python", "")
        runs = (words.partition("--launch ")[2].split("/launch.json")[0] for word, words in said if word == "runs")
        return _There(
            build=found.get("build", ""),
            packages=found.get("packages", ""),
            python=python if python[:1].isdigit() else None,
            runs=tuple("/".join(PurePosixPath(path).parts[-2:]) for path in runs),
        )

    def _answers(self) -> bool:
        """Whether what is marked as done works."""
        try:
            self._verify(quietly=True)
        except SwarmctlError:
            return False
        return True

    def _environment(self) -> None:
        self._say("environment")
        try:
            self.remote.script(remote.ENVIRONMENT, self._how.python)
        except HostUnreachable:
            raise
        except SwarmctlError as error:
            hints = [f"remove it, or name another place in the file: hosts.{self.host}.python: DIR/bin/python"]
            if error.context.get("status") == remote.NO_PYTHON:
                hints = ["on Debian and Ubuntu: apt install python3.11-venv", "or name one: host setup --python PYTHON"]
            raise SwarmctlError(error.message, reasons=error.reasons[:-1], hints=hints) from error

    def _packages(self, mark: str) -> None:
        wheels = self._copy_wheels() if self._how.wheelhouse is not None else 0
        seen: set[str] = set()

        def hear(line: str) -> None:
            if line.startswith(_FOUND):
                seen.add(line.split()[1])
                self._say(f"packages {len(seen)}{f' of {wheels}' if wheels else ''}")
            elif line.startswith(_INSTALLING):
                self._say(f"packages: installing {len(line.removeprefix(_INSTALLING).split(', '))}")

        self._say("packages")
        source = "wheels" if wheels else "index"
        try:
            self.remote.script(remote.PACKAGES, mark, source, wheel.PETALS, *wheel.requirements(), hear=hear)
        except HostUnreachable:
            raise
        except SwarmctlError as error:
            hints = [] if wheels else ["a host without a package index: host setup --wheelhouse DIR"]
            message = f"pip cannot install the packages on {self.host}"
            raise SwarmctlError(message, reasons=error.reasons, hints=hints) from error

    def _copy_wheels(self) -> int:
        """Copy the wheels that are not there yet; returns how many there are."""
        assert self._how.wheelhouse is not None
        there = {tuple(line.split(maxsplit=1)) for line in self.remote.script(remote.WHEELS_THERE)}
        files = sorted(self._how.wheelhouse.glob("*.whl"))
        for number, file in enumerate(files, start=1):
            if (_sha256(file), f"./{file.name}") not in there:
                self._say(f"copied {number} of {len(files)}: {file.name}")
                self.remote.store(file)
        return len(files)

    def _swarmctl(self) -> None:
        self._say("swarmctl")
        self.remote.store(self._ours)
        self.remote.script(remote.SWARMCTL, build.digest(), self._ours.name)

    def _verify(self, *, quietly: bool = False) -> None:
        if not quietly:
            self._say("check")
        transport = SshTransport(self._reach, "setup")
        try:
            found = transport.facts()
        finally:
            transport.close()
        if found.build != build.digest():
            raise SwarmctlError(f"host {self.host} answers with build {found.build}, and this is {build.digest()}")


def _mark() -> str:
    """What the installed packages are known by."""
    return hashlib.sha256("\n".join((*wheel.requirements(), wheel.PETALS)).encode()).hexdigest()[:12]


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        found = hashlib.sha256()
        while chunk := source.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()
