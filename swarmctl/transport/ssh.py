"""The transport to a distant host: the operator's OpenSSH client, and swarmctl's agent at the other end of it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarmctl import __version__
from swarmctl.blocks import NodeName
from swarmctl.errors import HostNotSetUp, HostUnreachable
from swarmctl.store import Launch, Layout
from swarmctl.transport.base import AgentFacts, Completed, HostedNode, LogChunk, LogPosition, Order
from swarmctl.transport.channel import Channel, ChannelEnded, NoAnswer
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.oplock import LockNote
from swarmctl.transport.reach import Reach, failure_of

_GREETING_S = 12.0
# Through a connection that is open already it is a matter of Python's start; if the line is dead, nobody says so.
_SHARED_GREETING_S = 1.5
_ANSWER_S = 10.0
# A host that has just not answered is not asked again by every look of a waiting loop.
_SORE_S = 5.0
_FORGET_S = 3.0


class SshTransport:
    """A host behind ssh, as a `Transport`. Connects when first asked for something, and again if the line is lost.

    A lost line takes the operator lock with it: `has_lock` says so.
    """

    def __init__(self, reach: Reach, swarm: str, *, child: tuple[str, ...] | None = None) -> None:
        self._reach = reach
        self._swarm = swarm
        self._child = child
        self._guard = threading.Lock()
        self._channel: Channel | None = None
        self._greeted: AgentFacts | None = None
        self._sore: tuple[float, HostUnreachable] | None = None

    @property
    def layout(self) -> Layout:
        """See `Transport`; the host is asked once."""
        self._connected()
        facts = self._greeted
        if facts is None:
            raise HostUnreachable(f"host {self._reach.host} has not said where its files are")
        return Layout(state=Path(facts.state), run=Path(facts.run), swarm=self._swarm)

    def facts(self) -> AgentFacts:
        """See `Transport`."""
        facts: AgentFacts = self._ask("facts", {})
        return facts

    def close(self) -> None:
        """See `Transport`."""
        with self._guard:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """See `Transport`."""
        args = {"argv": tuple(argv), "timeout_s": timeout_s, "stdin": stdin}
        done: Completed = self._ask("run", args, within_s=timeout_s + _ANSWER_S)
        return done

    def survey(self, names: Sequence[NodeName] | None = None) -> tuple[HostedNode, ...]:
        """See `Transport`."""
        found: tuple[HostedNode, ...] = self._ask("survey", {"names": None if names is None else tuple(names)})
        return found

    def start_runner(self, launch: Launch) -> None:
        """See `Transport`."""
        self._ask("start_runner", {"launch": launch})

    def signal(self, node: NodeName, order: Order) -> bool:
        """See `Transport`."""
        return bool(self._ask("signal", {"node": node, "order": order}))

    def clear(self, node: NodeName, *, purge: bool = False) -> tuple[str, ...]:
        """See `Transport`."""
        left: tuple[str, ...] = self._ask("clear", {"node": node, "purge": purge})
        return left

    def read_log(
        self,
        node: NodeName,
        *,
        after: LogPosition | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """See `Transport`."""
        chunk: LogChunk = self._ask("read_log", {"node": node, "after": after, "tail": tail, "since": since})
        return chunk

    def take_lock(self, note: LockNote) -> LockNote | None:
        """See `Transport`."""
        other: LockNote | None = self._ask("take_lock", {"note": note})
        return other

    def has_lock(self) -> bool:
        """See `Transport`."""
        return bool(self._ask("has_lock", {}))

    def release_lock(self) -> None:
        """See `Transport`; with the line the lock is lost anyway."""
        with contextlib.suppress(HostUnreachable):
            self._ask("release_lock", {})

    def read_lock(self) -> LockNote | None:
        """See `Transport`."""
        note: LockNote | None = self._ask("read_lock", {})
        return note

    def break_lock(self) -> LockNote | None:
        """See `Transport`."""
        note: LockNote | None = self._ask("break_lock", {})
        return note

    def append_events(self, entries: Sequence[Entry]) -> None:
        """See `Transport`."""
        self._ask("append_events", {"entries": tuple(entries)})

    def read_events(self, offset: int = 0) -> EntryChunk:
        """See `Transport`."""
        chunk: EntryChunk = self._ask("read_events", {"offset": offset})
        return chunk

    def drop_swarm(self) -> None:
        """See `Transport`."""
        self._ask("drop_swarm", {})

    def _ask(self, do: str, args: dict[str, Any], *, within_s: float = _ANSWER_S) -> Any:
        channel = self._connected()
        try:
            return channel.call(do, args, within_s=within_s)
        except ChannelEnded as ended:
            raise self._lost(failure_of(self._reach, ended.code, ended.words)) from None
        except NoAnswer:
            raise self._lost(self._silent(within_s)) from None

    def _silent(self, within_s: float) -> HostUnreachable:
        why = f"no answer within {within_s:g} s"
        return HostUnreachable(
            f"host {self._reach.host} ({self._reach.destination}): {why}",
            hints=[f"by hand: {' '.join(self._reach.command)} {self._reach.destination} true"],
            context={"host": self._reach.host, "why": why, "silent": True},
        )

    def _lost(self, error: HostUnreachable) -> HostUnreachable:
        with self._guard:
            self._sore = (time.monotonic(), error)
        return error

    def _connected(self) -> Channel:
        with self._guard:
            if self._sore is not None and time.monotonic() - self._sore[0] < _SORE_S:
                raise self._sore[1]
            if self._channel is None or self._channel.ended:
                try:
                    self._channel, self._greeted = self._connect()
                    self._sore = None
                except HostUnreachable as error:
                    self._sore = (time.monotonic(), error)
                    raise
            return self._channel

    def _connect(self) -> tuple[Channel, AgentFacts]:
        if not self._reach.shares or self._reach.control is None:
            return self._greeted_by(self._open(fresh=True), _GREETING_S)
        self._reach.control.mkdir(mode=0o700, parents=True, exist_ok=True)
        shared = self._open(fresh=False)
        try:
            return self._greeted_by(shared, _SHARED_GREETING_S, keep=True)
        except HostUnreachable as error:
            if not error.context.get("silent"):
                raise
        # A shared connection may be dead without knowing it. If the host is merely slow, the second one is too.
        threading.Thread(target=self._give_up, args=(shared,), daemon=True).start()
        return self._greeted_by(self._open(fresh=True), _GREETING_S)

    def _open(self, *, fresh: bool) -> Channel:
        words = [self._reach.python, "-m", "swarmctl.node.agent", "--swarm", self._swarm]
        if self._child is not None:
            words += ["--child", *self._child]
        try:
            return Channel(self._reach.argv(words, fresh=fresh))
        except OSError as error:
            raise HostUnreachable(
                f"cannot run {self._reach.command[0]}: {error.strerror}", hints=["apt install openssh-client"]
            ) from error

    def _greeted_by(self, channel: Channel, within_s: float, *, keep: bool = False) -> tuple[Channel, AgentFacts]:
        """The channel and what its agent says of itself; `keep`: one that says nothing is not closed."""
        try:
            facts: AgentFacts = channel.greeting(within_s)
        except ChannelEnded as ended:
            raise failure_of(self._reach, ended.code, ended.words) from None
        except NoAnswer:
            if not keep:
                channel.close()
            raise self._silent(within_s) from None
        except ValueError as error:
            channel.close()
            raise self._other_version(str(error)) from None
        if facts.version != __version__:
            channel.close()
            raise self._other_version(f"there is version {facts.version}, here {__version__}")
        return channel, facts

    def _other_version(self, why: str) -> HostNotSetUp:
        return HostNotSetUp(
            f"host {self._reach.host} ({self._reach.destination}): another swarmctl is installed there",
            reasons=[why],
            hints=[f"swarmctl host setup {self._reach.host}"],
            context={"host": self._reach.host, "why": "another swarmctl is installed there"},
        )

    def _give_up(self, shared: Channel) -> None:
        # Not `exit`, which would cut off whoever still uses it.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                self._reach.forget_argv(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_FORGET_S,
                check=False,
            )
        shared.close()
