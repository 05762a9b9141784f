"""Whether a child that lives also works, by the files that it writes; the runner asks about once a second.

A server writes `health.json` (see `upstream.health`), from a thread that waits for nothing and whatever the server is
busy with. A bootstrap peer writes `observed.json` after each reading of the DHT, which takes up to half a minute when
peers die, and may fail; so it is given more time. Before a child is online it is not judged: loading takes as long as
it takes, and `up` has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from swarmctl import store
from swarmctl.store import NodeFiles

HUNG_S = 30.0
"""A server that has written nothing for so long is hung, or stopped by a signal."""
HUNG_BOOTSTRAP_S = 120.0
SICK_S = 20.0
"""So long a server may say that it is not well; what it calls so has lasted for a while already."""
# The runner looks every second; one that was itself kept from looking has missed what the child wrote.
_LATE_S = 3.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """Why a child must go. `answers`: it may still follow a request to stop."""

    reason: str
    answers: bool


class Vitals:
    """Follows one child. Times are the caller's monotonic clock; the host's clock may jump as it likes."""

    def __init__(self, files: NodeFiles, kind: str, *, hung_s: float | None = None, sick_s: float = SICK_S) -> None:
        self._files = files
        self._server = kind == "server"
        self._hung_s = hung_s or (HUNG_S if self._server else HUNG_BOOTSTRAP_S)
        self._sick_s = sick_s
        self._stamp: int | None = None
        self._looked: float | None = None
        self._fresh = 0.0
        self._unwell: float | None = None
        self._reason = ""
        self.online_since: float | None = None

    def look(self, now: float) -> Complaint | None:
        """What is wrong now, for long enough; None while all is well, or may become so."""
        if self._looked is not None and now - self._looked > _LATE_S:
            self._fresh += now - self._looked
            self._unwell = None if self._unwell is None else self._unwell + now - self._looked
        self._looked = now
        if self.online_since is None:
            progress = _readable(store.read_progress, self._files)
            if progress is not None and progress.phase == "online":
                self.online_since = self._fresh = now
            return None
        self._read(now)
        if now - self._fresh >= self._hung_s:
            silent = f"gave no sign of life for {now - self._fresh:.0f} s: hung, or stopped by a signal"
            return Complaint(reason=silent, answers=False)
        if self._unwell is not None and now - self._unwell >= self._sick_s:
            return Complaint(reason=f"was not well for {now - self._unwell:.0f} s: {self._reason}", answers=True)
        return None

    def _read(self, now: float) -> None:
        stamp = _changed(self._files.health if self._server else self._files.observed)
        if stamp is None or stamp == self._stamp:
            return
        self._stamp, self._fresh = stamp, now
        health = _readable(store.read_health, self._files) if self._server else None
        if health is None or health.ok:
            self._unwell = None
            return
        self._unwell = now if self._unwell is None else self._unwell
        self._reason = health.reason or "it does not say why"


def _changed(path: Path) -> int | None:
    # Not the time in the file: where a disk is full, a child can still touch the file that is there.
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _readable(read: Callable[[NodeFiles], T | None], files: NodeFiles) -> T | None:
    """What `read` finds; None for a file that another program has written."""
    try:
        return read(files)
    except (KeyError, TypeError, AttributeError):
        return None
