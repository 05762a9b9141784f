"""A swarm, the hosts it is on, and the ways to reach them: what every operation is given."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from swarmctl.blocks import HostName, NodeName
from swarmctl.clock import Clock
from swarmctl.errors import HostUnreachable, Locked
from swarmctl.spec import SwarmSpec
from swarmctl.store import Layout
from swarmctl.transport.base import HostedNode, Transport
from swarmctl.transport.journal import Entry
from swarmctl.transport.local import user
from swarmctl.transport.oplock import LockNote

T = TypeVar("T")

_AT_ONCE = 32
_LOCK_POLL_S = 0.5
# An operator's side is heard of every five seconds.
_QUIET_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A node's facts together with the host that they come from."""

    host: HostName
    node: HostedNode


class Survey(Mapping[NodeName, Hosted]):
    """What the hosts say of their nodes, and which hosts say nothing: `unreachable`, with the reason of each.

    `at`: the moment (UTC) of the last answer. To wait for a host that gives none takes seconds, by which the others'
    answers must not be taken for old.
    """

    def __init__(
        self,
        nodes: Mapping[NodeName, Hosted],
        *,
        at: datetime,
        unreachable: Mapping[HostName, HostUnreachable] | None = None,
    ) -> None:
        self._nodes = dict(nodes)
        self.at = at
        self.errors: Mapping[HostName, HostUnreachable] = dict(unreachable or {})

    @property
    def unreachable(self) -> Mapping[HostName, str]:
        """Why each host that does not answer does not, in a few words."""
        return {host: str(error.context.get("why", error.message)) for host, error in self.errors.items()}

    def __getitem__(self, name: NodeName) -> Hosted:
        return self._nodes[name]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Who acts: `who` (user@machine), and `why` in the operator's own words (`-m`), if there are any.

    `lock_wait_s`: how long to wait for another operator to finish.
    """

    who: str
    why: str | None = None
    lock_wait_s: float = 0.0


@dataclass
class _Holding:
    """The operator lock while it is held: where, and for what."""

    transport: Transport
    doing: str


@dataclass(frozen=True, kw_only=True)
class Site:
    """One swarm as this machine sees it. `python` runs swarmctl's own programs on local hosts."""

    spec: SwarmSpec
    layout: Layout
    transports: Mapping[HostName, Transport]
    clock: Clock
    python: str
    operator: Operator = field(default_factory=lambda: Operator(who=f"{user()}@{socket.gethostname()}"))
    _holding: list[_Holding] = field(default_factory=list, repr=False, compare=False)

    def host_of(self, node: NodeName) -> HostName | None:
        """The host that the file puts a node on; None for one that is not in the file."""
        if node in self.spec.nodes:
            return self.spec.nodes[node].host
        return next((peer.host for peer in self.spec.bootstraps if peer.name == node), None)

    def transport(self, host: HostName) -> Transport:
        """The way to a host."""
        return self.transports[host]

    def python_on(self, host: HostName) -> str:
        """The interpreter that runs swarmctl's programs on a host.

        Raises:
            HostUnreachable: when the host has to be asked, and does not answer.
        """
        if self.spec.hosts[host].is_local:
            return self.spec.hosts[host].python or self.python
        return self.transport(host).facts().python

    def ask(
        self, hosts: Iterable[HostName], question: Callable[[HostName, Transport], T]
    ) -> tuple[dict[HostName, T], dict[HostName, HostUnreachable]]:
        """Ask hosts at the same time: the answers, and the failures of those that do not answer.

        `question` runs on threads; whatever else it raises is raised here, when all have ended.
        """
        asked = tuple(hosts)
        answers: dict[HostName, T] = {}
        failures: dict[HostName, HostUnreachable] = {}

        def one(host: HostName) -> None:
            try:
                answers[host] = question(host, self.transports[host])
            except HostUnreachable as failure:
                failures[host] = failure

        if len(asked) == 1:
            one(asked[0])
        elif asked:
            with ThreadPoolExecutor(min(len(asked), _AT_ONCE), thread_name_prefix="host") as pool:
                list(pool.map(one, asked))
        # In the order of the question, not of the answers.
        return {h: answers[h] for h in asked if h in answers}, {h: failures[h] for h in asked if h in failures}

    def survey(self, names: Sequence[NodeName] | None = None) -> Survey:
        """What runs, and what left files, on all hosts; with nodes that are not in the file.

        A node that was moved to another host in the file appears as the one that runs, until it does not.
        """
        answered: list[datetime] = []

        def look(_host: HostName, transport: Transport) -> tuple[HostedNode, ...]:
            nodes = transport.survey(names)
            answered.append(self.clock.now())
            return nodes

        answers, failures = self.ask(self.machines(), look)
        found: dict[NodeName, Hosted] = {}
        for host, nodes in answers.items():
            for node in nodes:
                home = self.host_of(node.name)
                same = home is not None and self.transports[home] is self.transports[host]
                seen = Hosted(host=home if home is not None and same else host, node=node)
                before = found.get(node.name)
                if before is None or self._rank(seen) > self._rank(before):
                    found[node.name] = seen
        return Survey(found, at=max(answered, default=self.clock.now()), unreachable=failures)

    def _rank(self, seen: Hosted) -> tuple[bool, bool]:
        return (seen.node.running, self.host_of(seen.node.name) == seen.host)

    def machines(self) -> tuple[HostName, ...]:
        """One name a machine; several names in the file may lead to one, whose files would be read twice."""
        seen: dict[int, HostName] = {}
        for host, transport in self.transports.items():
            seen.setdefault(id(transport), host)
        return tuple(seen.values())

    def keepers(self) -> tuple[HostName, ...]:
        """The hosts that keep the operator lock and the log of events, the one that has them first.

        These are the bootstrap peers' hosts in the file's order: the next one takes over where the first is dead.
        """
        hosts = [peer.host for peer in self.spec.bootstraps] or list(self.spec.hosts)[:1]
        return tuple(dict.fromkeys(hosts))

    def keeper(self) -> tuple[HostName, Transport]:
        """The first of the `keepers` that answers.

        Raises:
            HostUnreachable: when none does.
        """
        failure: HostUnreachable | None = None
        for host in self.keepers():
            transport = self.transports[host]
            try:
                transport.read_lock()
            except HostUnreachable as error:
                failure = failure or error
            else:
                return host, transport
        assert failure is not None
        raise failure

    @contextmanager
    def hold(self, doing: str) -> Iterator[None]:
        """Keep other operators from changing the swarm meanwhile; ends with the process at the latest.

        Raises:
            Locked: when another one holds it; says who, since when, and what for.
            HostUnreachable: when no bootstrap peer's host answers.
        """
        _, transport = self.keeper()
        note = LockNote(
            who=self.operator.who,
            doing=doing,
            why=self.operator.why,
            since=self.clock.now().isoformat(timespec="seconds"),
        )
        self._take(transport, note)
        self._holding.append(_Holding(transport=transport, doing=doing))
        try:
            yield
        finally:
            self._holding.pop()
            transport.release_lock()

    def _take(self, transport: Transport, note: LockNote) -> None:
        until_s = self.clock.monotonic() + self.operator.lock_wait_s
        while (other := transport.take_lock(note)) is not None:
            if self.clock.monotonic() >= until_s:
                raise Locked(
                    f"another operator is changing swarm {self.spec.name}",
                    reasons=[describe_lock(other)],
                    hints=["swarmctl lock status", "or wait for it: add --lock-wait 5m"],
                    context={"who": other.who, "doing": other.doing, "since": other.since, "why": other.why},
                )
            self.clock.sleep(_LOCK_POLL_S)

    def check_hold(self) -> None:
        """Before each act under the lock: make sure that it is still ours.

        Raises:
            Locked: when another operator has broken it, or the line to the host that keeps it was lost.
        """
        for holding in self._holding:
            if not holding.transport.has_lock():
                raise Locked(
                    f"the lock of swarm {self.spec.name} was taken away while `{holding.doing}` had it",
                    reasons=["another operator has broken it, or the line to its host was lost; nothing more was done"],
                    hints=["swarmctl lock status", "swarmctl events", "swarmctl status"],
                )

    def note(self, kind: str, *, node: NodeName | None = None, doing: str | None = None, **fields: str | None) -> None:
        """Write down that something was done; `fields` are those of `Entry`.

        What cannot be written down is done all the same: the log's host may be the very one that is being repaired.
        """
        entry = Entry(
            at=self.clock.now().timestamp(),
            type=kind,
            who=self.operator.who,
            doing=doing or (self._holding[-1].doing if self._holding else ""),
            why=self.operator.why,
            node=node,
            **fields,
        )
        try:
            transport = self._holding[-1].transport if self._holding else self.keeper()[1]
            transport.append_events((entry,))
        except HostUnreachable:
            return

    def close(self) -> None:
        """Hang up on all hosts."""
        for host in self.machines():
            self.transports[host].close()


def describe_lock(note: LockNote) -> str:
    """Who has the lock, in words."""
    why = f" ({note.why})" if note.why else ""
    silent = f"; not heard of for {note.silent_s:.0f} s" if note.silent_s > _QUIET_S else ""
    return f"{note.who}: `{note.doing}`{why}, since {note.since}{silent}"
