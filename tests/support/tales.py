"""Made-up sessions whose events are as a real one tells them, with whatever happens to it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.checkers import Account
from swarmctl.events import (
    Event,
    FaultInjected,
    HedgeDropped,
    HedgeStarted,
    Hop,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    ReplayDone,
    ReplayStarted,
    RouteChanged,
    RouteChosen,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
)
from swarmctl.matrix import Cell, parse_cell
from swarmctl.trial import Run, Subject, Tokens, Trial

NUM_BLOCKS = 6
KILL = Cell(family="llama")


class Incident(str, Enum):
    """What happens in a step. HEDGED: a late server answers first. TWICE: the heir is lost as well, at once.

    FULL: the heirs have no room until the session has waited. GIVEN_UP: nobody is left; the next step finds one.
    """

    QUIET = "quiet"
    LOST = "lost"
    SILENT = "silent"
    OVERTAKEN = "overtaken"
    HEDGED = "hedged"
    EXPIRED = "expired"
    TWO = "two"
    TWICE = "twice"
    FULL = "full"
    GIVEN_UP = "given-up"


LOSING = tuple(incident for incident in Incident if incident not in (Incident.QUIET, Incident.HEDGED))
RECOVERED = tuple(incident for incident in LOSING if incident is not Incident.GIVEN_UP)
QUICKLY = tuple(incident for incident in RECOVERED if incident is not Incident.FULL)


@dataclass(frozen=True, kw_only=True)
class Tale:
    """The events of a session, and the tokens that it gave."""

    events: tuple[Event, ...]
    ids: Tokens

    def account(self, **changes: Any) -> Account:
        """As the checkers take it."""
        return replace(Account(events=self.events, num_blocks=NUM_BLOCKS, ids=self.ids), **changes)

    def run(self, **changes: Any) -> Run:
        """As a trial holds it; the undisturbed run and transformers alone gave the same tokens."""
        return replace(Run(events=self.events, expected=self.ids, local=self.ids, ids=self.ids), **changes)

    def trial(self, cell: Cell = KILL, **changes: Any) -> Trial:
        """A trial of nothing but this session; `changes` are made to its run."""
        return a_trial(self.run(**changes), cell=cell)

    def of(self, kind: type[Event]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def with_events(self, events: Sequence[Event]) -> Tale:
        """The same tokens after other events."""
        return replace(self, events=tuple(events))

    def without(self, event: Event) -> Tale:
        """One event is missing."""
        return self.with_events([other for other in self.events if other is not event])

    def changed(self, event: Event, **changes: Any) -> Tale:
        """One event says something else."""
        return self.with_events([replace(other, **changes) if other is event else other for other in self.events])


def a_trial(*runs: Run, cell: Cell = KILL, subject: Subject = Subject.SWARMCTL, missed: str | None = None) -> Trial:
    """A trial with these sessions."""
    return Trial(cell=cell, subject=subject, num_blocks=NUM_BLOCKS, runs=runs, took_s=2.5, missed=missed)


def tell(incidents: Sequence[Incident], *, cuts: Sequence[int] = (3,), batch: int = 1, prompt: int = 5) -> Tale:
    """A session of one step for each incident; its first route has spans that end at `cuts`."""
    teller = _Teller(cuts, batch)
    for place, incident in enumerate(incidents):
        teller.step(prompt if place == 0 else 1, incident)
    return Tale(events=tuple(teller.events), ids=tuple(tuple(row) for row in teller.rows))


@st.composite
def tales(draw: st.DrawFn, *, among: Sequence[Incident] = tuple(Incident), needs: Sequence[Incident] = ()) -> Tale:
    """Sessions of a few steps, with any of `among`, and one of `needs` if there are any."""
    incidents = draw(st.lists(st.sampled_from(tuple(among)), min_size=1, max_size=6))
    if needs:
        incidents.insert(draw(st.integers(0, len(incidents))), draw(st.sampled_from(tuple(needs))))
    if incidents[-1] is Incident.GIVEN_UP:
        incidents.append(Incident.QUIET)
    cuts = draw(st.sets(st.integers(1, NUM_BLOCKS - 1), min_size=1, max_size=3))
    return tell(incidents, cuts=sorted(cuts), batch=draw(st.integers(1, 3)), prompt=draw(st.integers(1, 9)))


class _Teller:
    """Tells what a session with such a route would, step by step."""

    def __init__(self, cuts: Sequence[int], batch: int) -> None:
        self.events: list[Event] = []
        self.rows: list[list[int]] = [[] for _ in range(batch)]
        self._now_s = 0.0
        self._peers = 0
        self._steps = 0
        self._position = 0
        self._failed: list[PeerId] = []
        self._replayed = 0
        self._spans = [BlockRange(start, end) for start, end in pairwise((0, *cuts, NUM_BLOCKS))]
        self._route: list[Hop] = []
        self._choose()

    def step(self, tokens: int, incident: Incident) -> None:
        began_s, self._failed, self._replayed = self._now_s, [], 0
        if not self._route:
            self._choose()
        noticed_s = self._now_s
        if self._meet(incident):
            self._say(RecoveryGivenUp, blocks=BlockRange(0, 6), position=self._position, tried=(), waited_s=3.0)
            self._route = []
            return
        self._steps += 1
        self._position += tokens
        self._now_s += 0.02
        took_ms = (self._now_s - began_s) * 1e3
        if incident in LOSING:
            self._say(
                RecoveryDone,
                position=self._position,
                failed=tuple(self._failed),
                replayed_tokens=self._replayed,
                pause_ms=(self._now_s - noticed_s) * 1e3,
                step_ms=took_ms,
            )
        done = {"step": self._steps, "position": self._position, "tokens": tokens, "batch": len(self.rows)}
        self._say(StepDone, **done, took_ms=took_ms)
        for number, row in enumerate(self.rows):
            row.append(self._steps * 10 + number)
        self._say(TokensEmitted, index=self._steps - 1, ids=tuple(row[-1] for row in self.rows))

    def _meet(self, incident: Incident) -> bool:
        """Tell of it; returns True if the session gave up."""
        victim = self._route[0]
        match incident:
            case Incident.QUIET:
                pass
            case Incident.LOST | Incident.SILENT:
                self._fail(victim, incident.value)
                self._replace(victim)
            case Incident.EXPIRED:
                self._fail(victim, "expired")
                self._replace(victim, peer=victim.peer)
            case Incident.OVERTAKEN | Incident.HEDGED:
                self._hedge(victim, wins=incident is Incident.OVERTAKEN)
            case Incident.TWO:
                for hop in (self._route[0], self._route[-1]):
                    self._fail(hop, "lost")
                    self._replace(hop)
            case Incident.TWICE:
                self._fail(victim, "lost")
                heir = self._replace(victim, replay=False)
                self._fail(heir, "lost")
                self._replace(heir)
            case Incident.FULL:
                self._fail(victim, "lost")
                heir = self._replace(victim, replay=False)
                self._fail(heir, "busy")
                self._say(WaitingForPeers, blocks=heir.blocks, remaining_s=60.0)
                self._now_s += 20.0
                self._replace(heir, peer=heir.peer)
            case Incident.GIVEN_UP:
                self._fail(victim, "lost")
                self._say(WaitingForPeers, blocks=victim.blocks, remaining_s=3.0)
                self._now_s += 3.0
                return True
        return False

    def _choose(self) -> None:
        self._route = [self._hop(blocks) for blocks in self._spans]
        self._say(RouteChosen, route=tuple(self._route), took_ms=3.0)

    def _fail(self, hop: Hop, kind: str) -> None:
        detect_s = 3.0 if kind == "silent" else 0.02
        self._say(FaultInjected, fault="kill", node=hop.node, token=self._steps, in_flight=True)
        self._now_s += detect_s
        if kind != "expired":
            self._failed.append(hop.peer)
        about = {"reason": "as it happens", "position": self._position, "in_flight": True}
        self._say(PeerFailed, hop=hop, kind=kind, detect_ms=detect_s * 1e3, **about)

    def _replace(self, was: Hop, *, peer: PeerId | None = None, replay: bool = True) -> Hop:
        heir = self._hop(was.blocks) if peer is None else replace(was, peer=peer)
        at = self._route.index(was)
        self._route[at] = heir
        self._say(RouteChanged, was=was, now=(heir,), route=tuple(self._route), took_ms=1.0)
        if replay and self._position:
            self._replay(heir)
        return heir

    def _replay(self, heir: Hop) -> None:
        self._say(ReplayStarted, hop=heir, tokens=self._position, chunks=1)
        self._now_s += 0.05
        self._replayed += self._position
        self._say(ReplayDone, hop=heir, tokens=self._position, took_ms=50.0)

    def _hedge(self, suspect: Hop, *, wins: bool) -> None:
        heir = self._hop(suspect.blocks)
        self._now_s += 0.5
        self._say(PeerSuspected, hop=suspect, silent_ms=500.0)
        self._say(HedgeStarted, hop=suspect, now=(heir,))
        if not wins:
            self._say(HedgeDropped, hop=suspect, dropped=(heir,), waited_ms=600.0)
            return
        if self._position:
            self._replay(heir)
        self._failed.append(suspect.peer)
        self._say(PeerOvertaken, hop=suspect, position=self._position, silent_ms=560.0)
        self._route[self._route.index(suspect)] = heir
        self._say(RouteChanged, was=suspect, now=(heir,), route=tuple(self._route), took_ms=0.0)

    def _hop(self, blocks: BlockRange) -> Hop:
        self._peers += 1
        return Hop(blocks=blocks, peer=PeerId(f"peer{self._peers}"), node=NodeName(f"n{self._peers}"))

    def _say(self, fact: type[Event], /, **values: Any) -> None:
        self.events.append(fact(at_s=self._now_s, **values))


def cell(name: str) -> Cell:
    """A cell of llama."""
    return parse_cell(f"llama/{name}")


ALL = cell("kill/mid-step/all/same/greedy")
FORGET = cell("forget/mid-step/first/same/greedy")
CROWD = cell("kill/mid-step/first/same/crowd")
LOST = tell([Incident.QUIET, Incident.LOST, Incident.QUIET, Incident.QUIET])
CALM = tell([Incident.QUIET] * 4)
