"""Sessions of our own client as they run: what each says, what becomes of it, and the blows that fall meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from swarmctl.client.generate import Client, Listener
from swarmctl.clock import Clock, SystemClock
from swarmctl.errors import DeadlineExceeded, RecoveryFailed, SwarmctlError
from swarmctl.events import Event, Hop, TokensEmitted
from swarmctl.operations.trials.moments import Blow, Moments
from swarmctl.operations.trials.traffic import Script
from swarmctl.trial import Tokens

if TYPE_CHECKING:
    from swarmctl.client.conversation import Conversation

# A session that is told to stop does so at its next event; the longest silence is a request's own limit.
_STOPPING_S = 20.0


class Direction:
    """What is done about the takes while they are played; nothing, unless it is overridden. Called by their threads."""

    def heard(self, event: Event, take: Take) -> None:
        """A session has told this, and waits."""

    def strike(self, blow: Blow, take: Take) -> None:
        """Do what a blow says; the session waits, or hivemind's event loop while a request is under way."""

    def pause(self, call: int, take: Take) -> None:
        """Between two calls of a session, so many of which are done."""

    def again(self, take: Take) -> bool:
        """No server was left; wait for one, and say whether the session shall go on."""
        return False


@dataclass
class Take:
    """One session of a trial: its script, and what is left behind. One thread plays it; all read it afterwards.

    `moments` says when to strike, if this is a session to follow; with Fault.LATE the answer is lost then.
    `outputs`: the hidden states of each step, `[batch, tokens, hidden_size]`. `began_s`: when the clock read so, the
    events' time began.
    """

    script: Script
    clock: Clock = field(default_factory=SystemClock)
    began_s: float = 0.0
    direction: Direction = field(default_factory=Direction)
    moments: Moments | None = None
    events: list[Event] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    ids: Tokens | None = None
    error: str | None = None

    def keep(self, event: Event) -> Event:
        """Add an event, with its time."""
        event = replace(event, at_s=self.clock.monotonic() - self.began_s)
        self.events.append(event)
        return event


class Stuck(DeadlineExceeded):
    """A session does not even end when it is told to; its client is of no more use."""


def play(client: Client, takes: Sequence[Take], *, at_once: bool, clock: Clock, within_s: float) -> None:
    """Play the takes, one after the other or all at once, with one clock for all their events.

    What ends a session early is in its `error`, and ends the play. Ctrl-C ends all sessions.

    Raises:
        DeadlineExceeded: after `within_s`; sessions that had not ended were told to.
        Stuck: and one of them does not.
    """
    stop = threading.Event()
    began_s = clock.monotonic()
    for take in takes:
        take.clock, take.began_s = clock, began_s
    players = [_Player(client, take, stop) for take in takes]
    lanes = [[player] for player in players] if at_once else [players]
    threads = [threading.Thread(target=_play_lane, args=(lane,), daemon=True) for lane in lanes]
    deadline = began_s + within_s
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - clock.monotonic()))
    finally:
        late = sum(thread.is_alive() for thread in threads)
        stop.set()
        deadline = clock.monotonic() + _STOPPING_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - clock.monotonic()))
    if late:
        what = f"gave up after {within_s:g} s waiting for {late} of {len(players)} sessions"
        if any(thread.is_alive() for thread in threads):
            raise Stuck(what, reasons=[f"told to stop, they had not after {_STOPPING_S:g} s"])
        raise DeadlineExceeded(what)


def _play_lane(players: Sequence[_Player]) -> None:
    for player in players:
        player.play()
        if player.take.error is not None:
            return


class _Stopped(Exception):
    """The play is over for this session."""


class _Player:
    """Plays one take, in the thread that calls `play`."""

    def __init__(self, client: Client, take: Take, stop: threading.Event) -> None:
        self.take = take
        self._client = client
        self._stop = stop
        self._emitted = 0

    def play(self) -> None:
        take = self.take
        listener = Listener(sink=self._note, request=self._left, answer=self._answered, output=take.outputs.append)
        try:
            with self._client.conversation(max_length=take.script.max_length, listener=listener) as talk:
                take.ids = self._say_all(talk)
        except _Stopped:
            take.error = "it was told to stop"
        except SwarmctlError as error:
            take.error = "; ".join((error.message, *error.reasons))
        except Exception as error:  # noqa: BLE001 - whatever ends a session is the trial's result
            take.error = f"{type(error).__name__}: {error}"

    def _say_all(self, talk: Conversation) -> Tokens:
        rows: list[tuple[int, ...]] = [()] * self.take.script.batch
        for call, turn in enumerate(self.take.script.turns):
            if call:
                self._between(call)
            self._emitted = sum(isinstance(event, TokensEmitted) for event in self.take.events)
            new = self._answer(talk, partial(talk.say, turn.ids, turn.sampling))
            rows = [(*row, *ids) for row, ids in zip(rows, new, strict=True)]
        return tuple(rows)

    def _answer(self, talk: Conversation, say: Callable[[], object]) -> Tokens:
        while True:
            try:
                say()
                return talk.answer
            except RecoveryFailed:
                if self._stop.is_set() or not self.take.direction.again(self.take):
                    raise
                say = talk.resume

    def _between(self, call: int) -> None:
        if self.take.moments is not None:
            self._strike(self.take.moments.paused(call))
        self.take.direction.pause(call, self.take)

    # --- what the session tells -----------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        take = self.take
        if isinstance(event, TokensEmitted):
            # Each call counts its own.
            event = replace(event, index=self._emitted + event.index)
        event = take.keep(event)
        if self._stop.is_set():
            raise _Stopped
        take.direction.heard(event, take)
        if take.moments is not None:
            self._strike(take.moments.note(event))

    def _left(self, hop: Hop, position: int, replay: bool) -> None:
        if self.take.moments is not None:
            self._strike(self.take.moments.left(hop, position, replay))

    def _answered(self, hop: Hop, position: int, replay: bool) -> None:
        if self.take.moments is not None and self._strike(self.take.moments.answered(hop, position, replay)):
            raise ConnectionResetError("the answer was lost on its way")

    def _strike(self, blow: Blow | None) -> bool:
        if blow is None:
            return False
        self.take.direction.strike(blow, self.take)
        return True
