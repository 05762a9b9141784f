"""Reading nodes' logs, once or as they grow, interleaved by the time of their lines."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Thread

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import HostUnreachable, UsageError
from swarmctl.operations.site import Site
from swarmctl.transport.base import HostedNode, LogChunk, LogLine, LogPosition, Transport

_POLL_S = 0.25
# A host that takes longer is not waited for: the others' lines come meanwhile, and its own when it answers.
_PATIENCE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """A line that a node has written on a host. `at`: see `LogLine`."""

    node: NodeName
    host: HostName
    at: float | None
    text: str


Heard = Callable[[HostName, HostUnreachable | None], None]
"""Told of a host that answers no more, with the reason, and with None of one that answers again."""


def read(
    site: Site,
    nodes: Sequence[NodeName],
    *,
    tail: int | None = 100,
    since: float | None = None,
    follow: bool = False,
    grep: str | None = None,
    heard: Heard = lambda _host, _failure: None,
) -> Iterator[NodeLine]:
    """The last `tail` lines of each node (None: all) that are not older than `since`; then, with `follow`, new ones.

    `since`: UTC epoch seconds. Lines of several nodes come in the order of their times, each by the clock of its own
    host; those that follow are held back for one look at most, so that a line read late still finds its place. `grep`
    is a regular expression that a line must contain; it is applied after `tail`.

    Following ends when nothing is left of any of the nodes, so the last line is the runner's: why it ended. A host
    that does not answer does not end it.

    Raises:
        UsageError: when `grep` is no regular expression.
        HostUnreachable: without `follow`, after the lines of the other hosts.
    """
    try:
        wanted = re.compile(grep or "")
    except re.error as error:
        raise UsageError(f"{grep!r} is not a regular expression: {error}") from error
    reading = _Reading(site, nodes, _Begin(tail=tail, since=since), heard)
    lines = reading.follow() if follow else reading.once()
    return (line for line in lines if wanted.search(line.text))


@dataclass(frozen=True, kw_only=True)
class _Begin:
    """Where to begin in a log, see `Transport.read_log`."""

    tail: int | None
    since: float | None


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a host says at one look: its nodes, and then what they have written since the look before."""

    nodes: tuple[HostedNode, ...]
    chunks: Mapping[NodeName, LogChunk]


# With the newest time that its node has had so far: a clock that was set back must not tear a log apart.
_Placed = tuple[float, NodeLine]


class _Reading:
    """Hosts are named by `Site.machines` here: one name each."""

    def __init__(self, site: Site, nodes: Sequence[NodeName], begin: _Begin, heard: Heard) -> None:
        self._site = site
        self._nodes = tuple(nodes)
        self._begin = begin
        self._heard = heard
        homes = {name: site.host_of(name) for name in nodes}
        self._homes = {name: self._machine(home) for name, home in homes.items() if home is not None}
        self._places: dict[NodeName, HostName] = {}
        self._positions: dict[NodeName, LogPosition | None] = {}
        self._newest: dict[NodeName, float] = {}
        self._running: set[NodeName] = set()
        self._unsettled: set[NodeName] = set()
        self._lost: dict[HostName, HostUnreachable] = {}
        self._asked: dict[HostName, Future[_Seen]] = {}

    def once(self) -> Iterator[NodeLine]:
        yield from self._beginning(finish=True)
        if len(self._lost) > 1:
            raise HostUnreachable(
                f"{len(self._lost)} hosts do not answer",
                reasons=[failure.message for failure in self._lost.values()],
                hints=["swarmctl status"],
                context={"hosts": list(self._lost)},
            )
        for failure in self._lost.values():
            raise failure

    def follow(self) -> Iterator[NodeLine]:
        yield from self._beginning(finish=False)
        for host, failure in self._lost.items():
            self._heard(host, failure)
        held: list[_Placed] = []
        going_on = bool(self._unsettled or self._lost)
        while going_on:
            self._site.clock.sleep(_POLL_S)
            fresh, going_on = self._look()
            # One node's lines are in order as they come.
            upto = max(map(itemgetter(0), held), default=-math.inf) if len(self._nodes) > 1 else math.inf
            lines = sorted([*held, *fresh], key=itemgetter(0))
            held = [line for line in lines if line[0] > upto and going_on]
            yield from (line for _, line in lines[: len(lines) - len(held)])

    def _beginning(self, *, finish: bool) -> Iterator[NodeLine]:
        survey = self._site.survey(self._nodes)
        for name, hosted in survey.items():
            self._places[name] = self._machine(hosted.host)
            self._note(hosted.node)
        awaited = {home for name, home in self._homes.items() if name not in self._places}
        self._lost = {host: failure for host, failure in survey.errors.items() if host in awaited}
        answers, failures = self._site.ask(
            dict.fromkeys(self._places.values()),
            lambda host, transport: {name: self._read(transport, name, None) for name in self._on(host)},
        )
        self._lost.update(failures)
        chunks = {name: chunk for answer in answers.values() for name, chunk in answer.items()}
        logs = [self._rest(name, chunks[name], finish=finish) for name in self._nodes if name in chunks]
        yield from (line for _, line in heapq.merge(*logs, key=itemgetter(0)))

    def _read(self, transport: Transport, name: NodeName, after: LogPosition | None) -> LogChunk:
        return transport.read_log(name, after=after, tail=self._begin.tail, since=self._begin.since)

    def _rest(self, name: NodeName, chunk: LogChunk, *, finish: bool) -> Iterator[_Placed]:
        """A log from its first chunk to its end, which with `finish` may be a line without one."""
        host = self._places[name]
        while True:
            yield from self._take(name, chunk)
            if not chunk.more:
                break
            try:
                chunk = self._read(self._site.transport(host), name, chunk.position)
            except HostUnreachable as failure:
                self._lost[host] = failure
                return
        if finish and chunk.unfinished is not None:
            yield from self._placed(name, [chunk.unfinished])

    def _look(self) -> tuple[list[_Placed], bool]:
        """What is new on all hosts that answer soon, and whether there may be more to come."""
        hosts = dict.fromkeys((*self._places.values(), *self._homes.values()))
        fresh = {host: _ask(partial(self._ask_host, host, self._on(host))) for host in hosts if host not in self._asked}
        wait(fresh.values(), timeout=_PATIENCE_S)
        self._asked.update(fresh)
        lines: list[_Placed] = []
        busy = False
        for host in [host for host, asked in self._asked.items() if asked.done()]:
            try:
                seen = self._asked.pop(host).result()
            except HostUnreachable as failure:
                self._lose(host, failure)
                continue
            if self._lost.pop(host, None) is not None:
                self._heard(host, None)
            for name, chunk in seen.chunks.items():
                # It may have been found to run elsewhere while this host was slow to answer.
                lines += self._take(name, chunk) if self._places[name] == host else ()
                busy = busy or chunk.more
            busy = self._adopt(host, seen.nodes) or busy
        return lines, busy or bool(self._unsettled or self._lost or self._asked)

    def _ask_host(self, host: HostName, names: Sequence[NodeName]) -> _Seen:
        transport = self._site.transport(host)
        # Before reading: what a node wrote before it was seen to be gone is read after this.
        nodes = transport.survey(self._nodes)
        chunks = {name: self._read(transport, name, self._positions.get(name)) for name in names}
        return _Seen(nodes=nodes, chunks=chunks)

    def _adopt(self, host: HostName, nodes: Sequence[HostedNode]) -> bool:
        """Note how a host's nodes are; True if one is new there, whose log has not been looked at yet."""
        for name in {*self._on(host)} - {node.name for node in nodes}:
            self._running.discard(name)
            self._unsettled.discard(name)
        new = False
        for node in nodes:
            place = self._places.setdefault(node.name, host)
            if place != host and (node.name in self._running or not node.running):
                continue
            self._note(node)
            if place != host:
                self._places[node.name] = host
                self._positions.pop(node.name, None)
            new = new or node.name not in self._positions
        return new

    def _note(self, node: HostedNode) -> None:
        for names, applies in ((self._running, node.running), (self._unsettled, not node.settled)):
            names.add(node.name) if applies else names.discard(node.name)

    def _lose(self, host: HostName, failure: HostUnreachable) -> None:
        concerns = host in self._places.values() or any(
            home == host and name not in self._places for name, home in self._homes.items()
        )
        if concerns and host not in self._lost:
            self._heard(host, failure)
            self._lost[host] = failure

    def _take(self, name: NodeName, chunk: LogChunk) -> Iterator[_Placed]:
        self._positions[name] = chunk.position
        return self._placed(name, chunk.entries)

    def _placed(self, name: NodeName, lines: Iterable[LogLine]) -> Iterator[_Placed]:
        for line in lines:
            newest = max(self._newest.get(name, -math.inf), -math.inf if line.at is None else line.at)
            self._newest[name] = newest
            yield newest, NodeLine(node=name, host=self._shown(name), at=line.at, text=line.text)

    def _on(self, machine: HostName) -> tuple[NodeName, ...]:
        return tuple(name for name in self._nodes if self._places.get(name) == machine)

    def _machine(self, host: HostName) -> HostName:
        transports = self._site.transports
        return next(machine for machine in self._site.machines() if transports[machine] is transports[host])

    def _shown(self, name: NodeName) -> HostName:
        """The host's name in the file, where several names lead to one machine."""
        home = self._site.host_of(name)
        return home if home is not None and self._homes[name] == self._places[name] else self._places[name]


def _ask(question: Callable[[], _Seen]) -> Future[_Seen]:
    """The answer to come, from a thread that keeps nobody from leaving meanwhile, as one of a pool would."""
    answer: Future[_Seen] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - a thread's end; whoever waits is told
            answer.set_exception(error)

    Thread(target=ask, name="look", daemon=True).start()
    return answer
