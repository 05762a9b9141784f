"""Looking at the operator lock, and breaking it."""

from __future__ import annotations

from dataclasses import dataclass

from swarmctl.blocks import HostName
from swarmctl.operations.site import Site, describe_lock
from swarmctl.transport.oplock import LockNote


@dataclass(frozen=True, kw_only=True)
class LockSeen:
    """Where the lock is kept, and who has it; None if nobody has."""

    host: HostName
    holder: LockNote | None

    @property
    def holder_in_words(self) -> str:
        """Who, doing what, why, since when."""
        return "nobody" if self.holder is None else describe_lock(self.holder)


def read_lock(site: Site) -> LockSeen:
    """Who holds the lock now.

    Raises:
        HostUnreachable: when no bootstrap peer's host answers.
    """
    host, transport = site.keeper()
    return LockSeen(host=host, holder=transport.read_lock())


def break_lock(site: Site) -> LockSeen:
    """Take the lock away from its holder, who notices before its next act; returns who that was.

    Raises:
        HostUnreachable: when no bootstrap peer's host answers.
    """
    host, transport = site.keeper()
    holder = transport.break_lock()
    if holder is not None:
        site.note("lock-broken", host=host, doing="lock break", before=describe_lock(holder))
    return LockSeen(host=host, holder=holder)
