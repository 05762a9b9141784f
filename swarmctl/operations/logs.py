"""Reading nodes' logs, once or as they grow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from swarmctl.blocks import NodeName
from swarmctl.errors import UsageError
from swarmctl.operations.site import Hosted, Site
from swarmctl.transport.base import LogPosition

_POLL_S = 0.25


def read(
    site: Site, nodes: Sequence[NodeName], *, tail: int | None = 100, follow: bool = False, grep: str | None = None
) -> Iterator[tuple[NodeName, str]]:
    """The last `tail` lines of each node (None: all), node by node; then, with `follow`, each new line as it comes.

    Following ends when nothing is left of any of the nodes, so the last line is the runner's: why it ended. `grep` is a
    regular expression that a line must contain; it is applied after `tail`.

    Raises:
        UsageError: when `grep` is no regular expression.
    """
    try:
        wanted = re.compile(grep or "")
    except re.error as error:
        raise UsageError(f"{grep!r} is not a regular expression: {error}") from error
    return _lines(site, nodes, tail, wanted, follow=follow)


def _lines(
    site: Site, nodes: Sequence[NodeName], tail: int | None, wanted: re.Pattern[str], *, follow: bool
) -> Iterator[tuple[NodeName, str]]:
    positions: dict[NodeName, LogPosition | None] = {}
    hosted = site.survey(nodes)
    for name in nodes:
        yield from _new(site, hosted, name, positions, tail, wanted)
    while follow and any(not found.node.settled for found in hosted.values()):
        site.clock.sleep(_POLL_S)
        # Before reading: what a node wrote before it was seen to be gone is read after this.
        hosted = site.survey(nodes)
        for name in nodes:
            yield from _new(site, hosted, name, positions, None, wanted)


def _new(
    site: Site,
    hosted: dict[NodeName, Hosted],
    name: NodeName,
    positions: dict[NodeName, LogPosition | None],
    tail: int | None,
    wanted: re.Pattern[str],
) -> Iterator[tuple[NodeName, str]]:
    if name not in hosted:
        return
    chunk = site.transport(hosted[name].host).read_log(name, after=positions.get(name), tail=tail)
    positions[name] = chunk.position
    yield from ((name, line) for line in chunk.lines if wanted.search(line))
