"""Reading the log of what was done to a swarm, from every host that keeps one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from swarmctl.blocks import HostName
from swarmctl.errors import HostUnreachable
from swarmctl.operations.site import Site
from swarmctl.transport.journal import Entry

_POLL_S = 0.5


def read(
    site: Site, *, since: float | None = None, kinds: Collection[str] = (), follow: bool = False
) -> Iterator[Entry]:
    """Entries from all keepers in the order of their time, then with `follow` each new one as it comes, without end.

    `since`: UTC epoch seconds; `kinds`: only these types. A keeper that does not answer is left out: where the first
    was dead for a while, the next one has what happened meanwhile.

    Raises:
        HostUnreachable: when no keeper answers.
    """
    offsets: dict[HostName, int] = dict.fromkeys(site.keepers(), 0)
    fresh, failures = _new(site, offsets)
    if len(failures) == len(offsets):
        raise next(iter(failures.values()))
    while True:
        for entry in sorted(fresh, key=lambda one: one.at):
            if (since is None or entry.at >= since) and (not kinds or entry.type in kinds):
                yield entry
        if not follow:
            return
        site.clock.sleep(_POLL_S)
        with contextlib.suppress(HostUnreachable):
            fresh, _ = _new(site, offsets)


def _new(site: Site, offsets: dict[HostName, int]) -> tuple[list[Entry], dict[HostName, HostUnreachable]]:
    found: list[Entry] = []

    def rest(host: HostName) -> list[Entry]:
        entries: list[Entry] = []
        while True:
            chunk = site.transport(host).read_events(offsets[host])
            offsets[host] = chunk.offset
            if not chunk.entries:
                return entries
            entries += chunk.entries

    answers, failures = site.ask(offsets, lambda host, _transport: rest(host))
    for entries in answers.values():
        found += entries
    return found, failures
