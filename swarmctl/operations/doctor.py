"""Is this machine fit for a swarm? The same conditions that other operations meet later, looked at ahead of time."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from swarmctl.errors import ConfigError, SwarmctlError
from swarmctl.operations.opening import open_site as open_here
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.snapshot import Snapshot
from swarmctl.spec import SwarmSpec

PETALS = "2.2.0.post1"
PETALS_REMEDY = f"pip install --no-deps petals=={PETALS}"
_PYTHONS = ((3, 10), (3, 12))
_MODULES = ("torch", "hivemind", "transformers")
# sockaddr_un.sun_path holds 108 bytes with its closing zero
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/0123abcd/p2pclient-XXXXXXXXXXX.sock"

OpenSite = Callable[[SwarmSpec, Path, Path], Site]


class Level(str, Enum):
    """FAILED: something will not work. WARNING: it may work and was not verified."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One condition. `found` says what is there; `hint`, what to type if it is not as it should be."""

    name: str
    level: Level
    found: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class PatchNote:
    """A rebinding of an upstream name that swarmctl makes while it works.

    `drift`: how upstream differs from what was verified; None if that was not looked at.
    """

    name: str
    target: str
    why: str
    until: str
    drift: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All checks in the order in which they matter."""

    checks: tuple[Check, ...]
    patches: tuple[PatchNote, ...]

    @property
    def fit(self) -> bool:
        """True if nothing failed."""
        return all(check.level is not Level.FAILED for check in self.checks)


def examine(
    *, state: Path, run: Path, config: Path | None = None, deep: bool = False, open_site: OpenSite | None = None
) -> Diagnosis:
    """Look at the interpreter, the packages, the folders and the swarm file; imports neither petals nor torch.

    Args:
        state: the folder for the files of swarms; need not exist.
        run: the folder for sockets; need not exist.
        config: the swarm file, None if there is none. If its swarm is up, its servers are looked at too.
        deep: also import petals (some seconds) and compare what is patched with what was verified.
        open_site: the way to the swarm's hosts, from its file and the two folders; this machine's own if None.
    """
    checks = [_python(), _system(), *_packages(), *map(_module, _MODULES), _petals()]
    checks += [_folder("state folder", state), _folder("run folder", run), _socket_paths(run)]
    if config is not None:
        checks += _swarm(config, lambda spec: (open_site or _open_here)(spec, state, run))
    patches = _patches(deep=deep and all(check.level is not Level.FAILED for check in checks))
    drifted = [note.name for note in patches if note.drift]
    if drifted:
        found = f"upstream differs from what was verified for {', '.join(drifted)}"
        checks.append(Check(name="patches", level=Level.FAILED, found=found, hint=PETALS_REMEDY))
    return Diagnosis(checks=tuple(checks), patches=patches)


def _python() -> Check:
    version = platform.python_version()
    fits = _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]
    hint = None if fits else "install Python 3.11 and make the environment with it: python3.11 -m venv .venv"
    return Check(
        name="python", level=Level.OK if fits else Level.FAILED, found=f"{version}, {sys.executable}", hint=hint
    )


def _system() -> Check:
    linux = sys.platform.startswith("linux")
    hint = None if linux else "servers run on Linux only; a client may work elsewhere"
    found = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Check(name="system", level=Level.OK if linux else Level.WARNING, found=found, hint=hint)


def _packages() -> list[Check]:
    """The packages that swarmctl declares, against the versions it declares; what fits is one line."""
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(text) for text in metadata.requires("swarmctl") or ()]
    except metadata.PackageNotFoundError:
        found = "swarmctl is run from its source, so the versions of its packages are not checked"
        return [Check(name="packages", level=Level.WARNING, found=found, hint="pip install -e .")]
    wanted = [one for one in declared if one.marker is None or one.marker.evaluate({"extra": ""})]
    faults = []
    for one in wanted:
        version = _version(one.name)
        if version is None:
            faults.append(Check(name=one.name, level=Level.FAILED, found="missing", hint=f"pip install '{one}'"))
        elif not one.specifier.contains(version, prereleases=True):
            found = f"{version}, verified with {one.specifier}"
            faults.append(Check(name=one.name, level=Level.WARNING, found=found, hint=f"pip install '{one}'"))
    fit = Check(name="packages", level=Level.OK, found=f"{len(wanted) - len(faults)} of {len(wanted)} as declared")
    return [fit, *faults]


def _module(name: str) -> Check:
    if find_spec(name) is None:
        return Check(name=name, level=Level.FAILED, found="cannot be imported", hint="pip install swarmctl")
    return Check(name=name, level=Level.OK, found=_version(name) or "of unknown version")


def _petals() -> Check:
    if find_spec("petals") is None:
        return Check(name="petals", level=Level.FAILED, found="cannot be imported", hint=PETALS_REMEDY)
    version = _version("petals")
    if version != PETALS:
        found = f"{version or 'of unknown version'}, verified with {PETALS}"
        return Check(name="petals", level=Level.WARNING, found=found, hint=PETALS_REMEDY)
    return Check(name="petals", level=Level.OK, found=version)


def _folder(name: str, folder: Path) -> Check:
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check(name=name, level=Level.OK, found=str(folder))
    variable = "SWARMCTL_STATE" if name.startswith("state") else "SWARMCTL_RUN"
    found = f"{folder} cannot be written, because of {nearest}"
    return Check(name=name, level=Level.FAILED, found=found, hint=f"name another folder: export {variable}=DIR")


def _socket_paths(run: Path) -> Check:
    longest = len(f"{run}{_SOCKET_NAME}".encode())
    found = f"{longest} of {_SOCKET_PATH_BYTES} bytes"
    if longest <= _SOCKET_PATH_BYTES:
        return Check(name="socket paths", level=Level.OK, found=found)
    return Check(name="socket paths", level=Level.FAILED, found=found, hint="export SWARMCTL_RUN=/tmp/swarmctl")


def _swarm(path: Path, site_of: Callable[[SwarmSpec], Site]) -> list[Check]:
    from swarmctl import config

    try:
        spec = config.load(path)
    except ConfigError as error:
        found = f"{path}: {max(1, len(error.findings))} faults" if error.findings else error.message
        hint = f"swarmctl config validate -c {path}"
        return [Check(name="swarm file", level=Level.FAILED, found=found, hint=hint)]
    nodes = f"{len(spec.nodes)} nodes on {len(spec.hosts)} hosts"
    fit = Check(name="swarm file", level=Level.OK, found=f"{path}: swarm {spec.name}, {nodes}")
    try:
        snapshot = read_snapshot(site_of(spec))
    except SwarmctlError:
        return [fit]  # a file for other machines, or folders that were found wanting above
    return [fit, *_servers(snapshot, path)]


def _servers(snapshot: Snapshot, path: Path) -> list[Check]:
    """Do the servers that compute run with the patches? Nothing where a bootstrap peer sees none."""
    online, stock = len(snapshot.replicas()), [node.name for node in snapshot.stock()]
    if not online:
        return []
    if not stock:
        return [Check(name="servers", level=Level.OK, found=f"{online} online, all with swarmctl's patches")]
    found = f"{online} online, of which without swarmctl's patches: {', '.join(stock)}"
    hint = f"swarmctl restart {' '.join(stock)} -c {path}"
    return [Check(name="servers", level=Level.WARNING, found=found, hint=hint)]


def _open_here(spec: SwarmSpec, state: Path, run: Path) -> Site:
    return open_here(spec, state, run, python=sys.executable)


def _patches(*, deep: bool) -> tuple[PatchNote, ...]:
    from swarmctl.upstream import patches

    return tuple(
        PatchNote(
            name=patch.name,
            target=patch.target,
            why=patch.why,
            until=patch.until,
            drift=_drift(patch) if deep else None,
        )
        for patch in patches.catalogue()
    )


def _drift(patch: object) -> tuple[str, ...]:
    from swarmctl.upstream import compat, patching

    try:
        compat.import_petals()
        return patching.drift_of(patch)  # type: ignore[arg-type]  # the catalogue's own entries
    except SwarmctlError as error:
        return (error.message,)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
