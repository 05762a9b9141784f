"""Each server's part in a failover: when it was in the route, late, fed the history, given up or let go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from swarmctl import events as ev
from swarmctl.events import Event, Hop
from swarmctl_cli.views import measure


class Part(str, Enum):
    """What a server does for a while. SERVING: it is in the route. LATE: suspected. REPLAYING: fed the history."""

    SERVING = "serving"
    LATE = "late"
    REPLAYING = "replaying"


class Mark(str, Enum):
    """What happens to a server at a moment. LEFT: another one answered first, or it was not needed after all."""

    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of time, in seconds of the run's clock."""

    start_s: float
    end_s: float
    part: Part


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One server. `notes`: its part in numbers, nothing for one that only went on."""

    hop: Hop
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, Mark], ...]
    notes: tuple[str, ...]


@dataclass
class _Server:
    """What one server did so far. `since`: since when it does `part`; None while it has none."""

    hop: Hop
    since: float | None = None
    part: Part = Part.SERVING
    bars: list[Bar] = field(default_factory=list)
    marks: list[tuple[float, Mark]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gone: bool = False

    def turn(self, at_s: float, part: Part | None) -> None:
        """From now on it does `part`."""
        if self.since is not None and at_s > self.since:
            self.bars.append(Bar(start_s=self.since, end_s=at_s, part=self.part))
        self.since = None if part is None else at_s
        self.part = part or self.part
        self.gone = self.gone and part is None

    def leave(self, at_s: float, mark: Mark) -> None:
        """It is given up, or let go."""
        self.turn(at_s, None)
        self.gone = True
        self.marks.append((at_s, mark))


def lanes_of(trouble: Iterable[Event], route: Sequence[Hop], start: float, end: float) -> tuple[Lane, ...]:
    """A lane for each server, from `start` to `end`; newcomers stand below those whose place they take.

    `route`: who served at the start. `trouble`: what happened from then on.
    """
    servers = [_Server(hop=hop, since=start) for hop in route]
    for event in trouble:
        match event:
            case ev.HedgeStarted(hop=hop, now=now):
                _enter(servers, None, hop, now)
            case ev.RouteChanged(at_s=at_s, was=was, now=now):
                _enter(servers, at_s, was, now)
                _part_with(servers, event)
            case ev.HedgeDropped():
                _settle(servers, event)
            case ev.PeerSuspected() | ev.PeerOvertaken() | ev.PeerFailed() | ev.ReplayStarted() | ev.ReplayDone():
                _apply(_of(servers, event.hop), event)
            case ev.StepDone(at_s=at_s) | ev.RecoveryGivenUp(at_s=at_s):
                _end_step(servers, at_s, done=isinstance(event, ev.StepDone))
            case _:
                pass
    for server in servers:
        server.turn(end, None)
    return tuple(
        Lane(hop=one.hop, bars=tuple(one.bars), marks=tuple(one.marks), notes=tuple(dict.fromkeys(one.notes)))
        for one in servers
    )


def _end_step(servers: Iterable[_Server], at_s: float, *, done: bool) -> None:
    """Nobody is waited for now. A step that is done went through the whole route, so newcomers have taken over."""
    for server in servers:
        late = server.since is not None and server.part is Part.LATE
        if late or (done and server.since is None and not server.gone):
            server.turn(at_s, Part.SERVING)


def _part_with(servers: Iterable[_Server], event: ev.RouteChanged) -> None:
    """Let those go that the new route is without; petals' own client tells nothing else of them."""
    kept = {hop.peer for hop in event.route}
    for server in servers:
        if server.hop.peer not in kept and server.since is not None:
            server.leave(event.at_s, Mark.LEFT)


def _settle(servers: list[_Server], event: ev.HedgeDropped) -> None:
    late = _of(servers, event.hop)
    late.turn(event.at_s, Part.SERVING)
    late.notes.append(f"answered first, after {measure.millis(event.waited_ms)}")
    for hop in event.dropped:
        spare = _of(servers, hop)
        spare.leave(event.at_s, Mark.LEFT)
        spare.notes.append("not needed")


def _apply(
    server: _Server, event: ev.PeerSuspected | ev.PeerOvertaken | ev.PeerFailed | ev.ReplayStarted | ev.ReplayDone
) -> None:
    match event:
        case ev.PeerSuspected(at_s=at_s):
            server.turn(at_s, Part.LATE)
        case ev.PeerOvertaken(at_s=at_s, silent_ms=silent_ms):
            server.leave(at_s, Mark.LEFT)
            server.notes.append(f"overtaken after {measure.millis(silent_ms)} of silence")
        case ev.PeerFailed(at_s=at_s, kind=kind, detect_ms=detect_ms):
            server.leave(at_s, Mark.FAILED)
            server.notes.append(f"{kind}, known after {measure.millis(detect_ms)}")
        case ev.ReplayStarted(at_s=at_s):
            server.turn(at_s, Part.REPLAYING)
        case ev.ReplayDone(at_s=at_s, tokens=tokens, took_ms=took_ms):
            server.turn(at_s, Part.SERVING)
            server.notes.append(f"replayed {measure.count(tokens, 'token')} in {measure.millis(took_ms)}")


def _enter(servers: list[_Server], at_s: float | None, after: Hop, now: Iterable[Hop]) -> None:
    """Put the newcomers below the one whose place they take; in the route from `at_s` on, None: not yet."""
    # What was lost may have been told in other pieces than those that were served.
    before = [index for index, one in enumerate(servers) if one.hop.blocks.intersection(after.blocks) is not None]
    place = (before[-1] if before else len(servers) - 1) + 1
    for hop in now:
        known = [one for one in servers if _same(one.hop, hop)]
        if known and known[0].since is None and at_s is not None:
            known[0].turn(at_s, Part.SERVING)
        elif not known:
            servers.insert(place, _Server(hop=hop, since=at_s))
            place += 1


def _of(servers: list[_Server], hop: Hop) -> _Server:
    for server in servers:
        if _same(server.hop, hop):
            return server
    servers.append(_Server(hop=hop))
    return servers[-1]


def _same(one: Hop, other: Hop) -> bool:
    return (one.peer, one.blocks) == (other.peer, other.blocks)
