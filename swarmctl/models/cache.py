"""Folders that hold a checkpoint which swarmctl made: whole, or recognised as broken.

A checkpoint is built in a hidden folder beside its place and renamed when everything is in it. The last file to be
written is the manifest, `swarmctl.json`: what the checkpoint was made from, and the size, the time and the SHA-256
of each of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from swarmctl import locks
from swarmctl.clock import Clock, SystemClock
from swarmctl.errors import Refused, SwarmctlError
from swarmctl.poll import Pending, wait_until

MANIFEST = "swarmctl.json"
# The key in a checkpoint's config.json that says what swarmctl made it from.
MARK = "swarmctl"

# Longer than an import of a large file takes on a slow machine.
_LOCK_WAIT_S = 3600.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file as it was when the checkpoint was finished."""

    name: str
    size_bytes: int
    mtime_ns: int
    sha256: str


def default_cache(home: Path, xdg: str | None) -> Path:
    """Where checkpoints go unless told otherwise. `xdg` is XDG_CACHE_HOME, which counts only if it is absolute."""
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else home / ".cache"
    return base / "swarmctl" / "models"


def is_complete(folder: Path, *, deep: bool = False, origin: Mapping[str, str] | None = None) -> bool:
    """True if `verify` finds nothing."""
    return not verify(folder, deep=deep, origin=origin)


def verify(folder: Path, *, deep: bool = False, origin: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What is wrong with the checkpoint in `folder`, one line a problem; nothing if it is whole.

    A file whose size and time are those of the manifest is taken as it is; one with another time is read and its
    digest compared. With `deep` every file is read. With `origin` a checkpoint made from anything else is a problem.
    """
    if not folder.is_dir():
        return (f"there is no folder {folder}",)
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        made_from = dict(raw["origin"])
        files = [_File(**entry) for entry in raw["files"]]
    except FileNotFoundError:
        return (f"{MANIFEST} is missing, so it was never finished",)
    except (OSError, ValueError, TypeError, KeyError):
        return (f"{MANIFEST} cannot be read",)
    if origin is not None and made_from != dict(origin):
        changed = sorted(key for key in {*made_from, *origin} if made_from.get(key) != origin.get(key))
        return (f"it was made from something else: {', '.join(changed)} changed",)
    found = (_fault(folder, file, deep=deep) for file in files)
    return tuple(fault for fault in found if fault)


def write_manifest(folder: Path, origin: Mapping[str, str] | None = None) -> None:
    """Declare the checkpoint in `folder` finished, as it is now. Reads every file; subfolders do not count."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and entry.name != MANIFEST)
    files = []
    for name in names:
        digest = _digest(folder / name)
        seen = (folder / name).stat()
        files.append(_File(name=name, size_bytes=seen.st_size, mtime_ns=seen.st_mtime_ns, sha256=digest))
    manifest = {"version": 1, "origin": dict(origin or {}), "files": [asdict(file) for file in files]}
    partial = folder / f".{MANIFEST}"
    partial.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST)


def is_replaceable(folder: Path) -> bool:
    """True if nothing of the user's is lost when `folder` is replaced: it is absent, empty, or swarmctl made it."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()) or (folder / MANIFEST).exists():
        return True
    try:
        return MARK in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def building(folder: Path, *, origin: Mapping[str, str] | None = None, clock: Clock | None = None) -> Iterator[Path]:
    """`exclusive` and `replacing` in one: the usual way to build a checkpoint."""
    with exclusive(folder, clock=clock), replacing(folder, origin=origin) as partial:
        yield partial


@contextmanager
def exclusive(folder: Path, *, clock: Clock | None = None, within_s: float = _LOCK_WAIT_S) -> Iterator[None]:
    """Nobody else builds `folder` meanwhile; whoever tries waits here. The folder's parent is made if need be.

    The lock is a hidden file beside the folder, gone afterwards. A dead holder's lock holds nobody up.

    Raises:
        DeadlineExceeded: when somebody else still builds it after `within_s` seconds.
        SwarmctlError: when the folder's parent cannot be written.
    """
    place = folder.resolve()
    path = place.parent / f".{place.name}.lock"
    with _writing(folder):
        place.parent.mkdir(parents=True, exist_ok=True)

    def attempt() -> int | Pending:
        with _writing(folder):
            taken = locks.take(path)
        return Pending(reasons=(f"{path} is held by {_holder(path)}",)) if taken is None else taken

    handle = wait_until(
        attempt,
        what=f"another swarmctl that builds {folder}",
        within_s=within_s,
        clock=clock or SystemClock(),
        every_s=0.2,
    )
    try:
        os.truncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def replacing(folder: Path, *, origin: Mapping[str, str] | None = None) -> Iterator[Path]:
    """An empty folder to build a checkpoint in; on success it gets its manifest and becomes `folder`.

    On an error it is removed, and `folder` is what it was. The caller holds `exclusive(folder)`: what earlier
    builds of the same folder left behind is removed first.

    Raises:
        Refused: when `folder` holds something that swarmctl did not make.
        SwarmctlError: when the disk refuses.
    """
    if not is_replaceable(folder):
        raise Refused(
            f"{folder} holds something that swarmctl did not make, so it is not overwritten",
            hints=("choose another folder: -o DIR",),
        )
    place = folder.resolve()
    mark = secrets.token_hex(4)
    partial, old = (place.parent / f"{prefix}{mark}" for prefix in _leftover_prefixes(place))
    with _writing(folder), ExitStack() as stack:
        _sweep(place)
        stack.callback(_sweep, place)
        partial.mkdir()
        yield partial
        write_manifest(partial, origin)
        _swap(partial, place, old)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except SwarmctlError:
        raise
    except OSError as error:
        raise SwarmctlError(
            f"cannot write {folder}", reasons=(str(error),), hints=("choose another folder: -o DIR",)
        ) from error


def _leftover_prefixes(place: Path) -> tuple[str, str]:
    return f".{place.name}.partial-", f".{place.name}.old-"


def _swap(partial: Path, place: Path, old: Path) -> None:
    if place.exists():
        place.rename(old)
    try:
        partial.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise


def _sweep(place: Path) -> None:
    for entry in list(place.parent.iterdir()):
        if entry.name.startswith(_leftover_prefixes(place)):
            shutil.rmtree(entry, ignore_errors=True)


def _fault(folder: Path, file: _File, *, deep: bool) -> str | None:
    try:
        seen = (folder / file.name).stat()
        if seen.st_size != file.size_bytes:
            return f"{file.name} has {seen.st_size} of {file.size_bytes} bytes"
        if (deep or seen.st_mtime_ns != file.mtime_ns) and _digest(folder / file.name) != file.sha256:
            return f"{file.name} is not what was written"
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    return None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_text(encoding='ascii'))}"
    except (OSError, ValueError):
        return "another process"
