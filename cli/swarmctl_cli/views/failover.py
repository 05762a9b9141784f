"""A client's session as it runs: the route, the health of each span, and what happened when a server died.

`reduce` and `render` make the live panel of a terminal; `line` makes the failover log, one sentence an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rich.console import Group, RenderableType
from rich.text import Text

from swarmctl import events as ev
from swarmctl.events import Event, Hop
from swarmctl_cli.views import measure
from swarmctl_cli.views.symbols import UNICODE, Symbols

_KEPT_LINES = 6
_NEWEST_WEIGHT = 0.2
"""How much the newest step counts for the shown speed; a step of 50 ms in a run of hundreds stays readable."""


class SpanHealth(str, Enum):
    """SUSPECTED: slow, nothing decided. FAILED: given up. REPLAYING: new, its cache is being rebuilt."""

    OK = "ok"
    SUSPECTED = "suspected"
    FAILED = "failed"
    REPLAYING = "replaying"


_STYLES = {
    SpanHealth.OK: "green",
    SpanHealth.SUSPECTED: "yellow",
    SpanHealth.FAILED: "bold red",
    SpanHealth.REPLAYING: "cyan",
}

_HEALTH_AFTER: dict[type[Event], SpanHealth] = {
    ev.PeerSuspected: SpanHealth.SUSPECTED,
    ev.PeerFailed: SpanHealth.FAILED,
    ev.PeerOvertaken: SpanHealth.FAILED,
    ev.HedgeDropped: SpanHealth.OK,
    ev.ReplayStarted: SpanHealth.REPLAYING,
    ev.ReplayDone: SpanHealth.OK,
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """One hop of the route and how it is."""

    hop: Hop
    health: SpanHealth = SpanHealth.OK


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """What is known of a session from its events.

    `step_ms`: how long a one-token step takes, smoothed, without those that met a failure; `batch` sequences get a
    token in it. `recovered`: the step that is about to be told done met a failure.
    """

    route: tuple[Span, ...] = ()
    position: int = 0
    step_ms: float | None = None
    batch: int = 1
    recovered: bool = False
    failovers: int = 0
    waiting: str | None = None
    log: tuple[str, ...] = ()


def reduce(state: SessionView, event: Event) -> SessionView:
    """The view after `event`."""
    said = line(event, state.step_ms)
    if said is not None:
        state = replace(state, log=(*state.log, said)[-_KEPT_LINES:])
    match event:
        case ev.RouteChosen(route=route):
            return replace(state, route=tuple(Span(hop=hop) for hop in route), waiting=None)
        case ev.StepDone():
            return _step(state, event)
        case ev.RouteChanged(now=now, route=route):
            return _rerouted(state, now, route)
        case ev.RecoveryDone(position=position):
            healed = _mark(state, (span.hop for span in state.route), SpanHealth.OK)
            return replace(healed, position=position, failovers=state.failovers + 1, recovered=True, waiting=None)
        case ev.WaitingForPeers(blocks=blocks, remaining_s=left):
            return replace(state, waiting=f"waiting for a server of blocks {blocks}, {measure.age(left)} left")
        case ev.RecoveryGivenUp(blocks=blocks):
            return replace(state, waiting=f"no server for blocks {blocks}")
        case ev.PeerSuspected() | ev.PeerFailed() | ev.PeerOvertaken() | ev.HedgeDropped():
            return _mark(state, (event.hop,), _HEALTH_AFTER[type(event)])
        case ev.ReplayStarted() | ev.ReplayDone():
            return _mark(state, (event.hop,), _HEALTH_AFTER[type(event)])
        case _:
            return state


def render(state: SessionView, width: int, symbols: Symbols = UNICODE) -> RenderableType:
    """The panel: the route in block order, position and rate, then the newest events, oldest first."""
    head = Text.assemble(("route  ", "dim"), _route(state.route, symbols, width - 7))
    rate = f", {state.batch * 1000 / state.step_ms:.1f} tokens/s" if state.step_ms else ""
    failovers = f", {measure.count(state.failovers, 'failover')}" if state.failovers else ""
    numbers = Text.assemble(("at     ", "dim"), f"position {state.position}{rate}{failovers}")
    parts = [Text(symbols.rule * width, style="dim"), head, numbers]
    if state.waiting:
        parts.append(Text(f"       {state.waiting}", style="yellow"))
    for said in state.log:
        # Folded, not cut: a live display crops what is longer than the screen is wide.
        parts.append(Text(said, style="dim" if said is not state.log[-1] else "", no_wrap=False, overflow="fold"))
    return Group(*parts)


def line(event: Event, step_ms: float | None = None) -> str | None:
    """The event as one plain sentence with its time; None for those that only move a counter.

    `step_ms`: how long a step without a failure takes, where that is known.
    """
    said = _recovered(event, step_ms) if isinstance(event, ev.RecoveryDone) else _sentence(event)
    return None if said is None else f"[{event.at_s:6.2f} s] {said}"


def _sentence(event: Event) -> str | None:
    match event:
        case ev.RouteChosen(route=route, took_ms=took_ms):
            return f"route {_plain_route(route)}, found in {measure.millis(took_ms)}"
        case ev.PeerFailed():
            return _failure(event)
        case ev.RouteChanged(now=now):
            return f"taken over by {' + '.join(_place(hop) for hop in now)}"
        case ev.ReplayDone(hop=hop, tokens=tokens, took_ms=took_ms):
            return f"replayed {measure.count(tokens, 'token')} to {hop.label} in {measure.millis(took_ms)}"
        case ev.WaitingForPeers(blocks=blocks, remaining_s=remaining_s):
            left = measure.age(remaining_s)
            return f"no server left for blocks {blocks}: waiting up to {left} for one (swarmctl status shows why)"
        case ev.RecoveryGivenUp(blocks=blocks, position=position, tried=tried, waited_s=waited_s):
            after = f"after {measure.age(waited_s)} and {measure.count(len(tried), 'peer')} tried"
            return f"given up at position {position}: no server for blocks {blocks} {after}"
        case ev.FaultInjected(fault=fault, node=node, token=token, in_flight=in_flight):
            moment = "while a step is in flight" if in_flight else "between steps"
            return f"drill: {fault} {node} at token {token}, {moment}"
        case _:
            return _suspicion(event)


def _suspicion(event: Event) -> str | None:
    match event:
        case ev.PeerSuspected(hop=hop, silent_ms=silent_ms):
            return f"{_place(hop)} is late: no answer for {measure.millis(silent_ms)}"
        case ev.HedgeStarted(now=now):
            return f"asking {' + '.join(_place(hop) for hop in now)} beside it: the first answer wins"
        case ev.HedgeDropped(hop=hop, waited_ms=waited_ms):
            return f"{_place(hop)} answered after {measure.millis(waited_ms)}, and stays"
        case ev.PeerOvertaken(hop=hop, silent_ms=silent_ms):
            return f"{_place(hop)} was overtaken: no answer for {measure.millis(silent_ms)}"
        case _:
            return None


def _recovered(event: ev.RecoveryDone, step_ms: float | None) -> str:
    normal = "" if step_ms is None else f", a normal one takes {measure.millis(step_ms)}"
    this = f"this step took {measure.millis(event.step_ms)}{normal}"
    # The event means that the step is complete on all spans, so nothing can be missing.
    return f"recovered in {measure.millis(event.pause_ms)} ({this}), 0 tokens lost"


def _failure(event: ev.PeerFailed) -> str:
    where = f"{'in mid-step ' if event.in_flight else ''}at position {event.position}"
    noticed = f"noticed after {measure.millis(event.detect_ms)}"
    what = {
        "lost": f"lost {where}",
        "busy": f"has no room {where}",
        "refused": f"refused the step {where}",
        "silent": f"went silent {where}",
        "broken": f"answered nonsense {where}",
        "expired": f"ended an old stream {where}",
        "undialled": f"was not dialled {where}",
    }.get(event.kind, f"failed ({event.kind}) {where}")
    return f"{_place(event.hop)} {what}: {event.reason}, {noticed}"


def _place(hop: Hop) -> str:
    return f"{hop.label} ({hop.blocks})"


def _plain_route(route: Sequence[Hop]) -> str:
    return " > ".join(_place(hop) for hop in route)


def _step(state: SessionView, event: ev.StepDone) -> SessionView:
    step_ms = state.step_ms
    # A step of many tokens is a prompt, and one that met a failure is no measure of those to come.
    if event.tokens == 1 and event.took_ms > 0 and not state.recovered:
        step_ms = event.took_ms if step_ms is None else step_ms + _NEWEST_WEIGHT * (event.took_ms - step_ms)
    # A committed step went through every span of the route, so none of them is sick any more.
    calm = tuple(replace(span, health=SpanHealth.OK) for span in state.route)
    return replace(
        state,
        route=calm,
        position=event.position,
        step_ms=step_ms,
        batch=max(1, event.batch),
        recovered=False,
        waiting=None,
    )


def _mark(state: SessionView, hops: Iterable[Hop], health: SpanHealth) -> SessionView:
    places = {(hop.peer, hop.blocks) for hop in hops}
    route = tuple(
        replace(span, health=health) if (span.hop.peer, span.hop.blocks) in places else span for span in state.route
    )
    return replace(state, route=route)


def _rerouted(state: SessionView, now: Sequence[Hop], route: Sequence[Hop]) -> SessionView:
    new = {(hop.peer, hop.blocks) for hop in now}
    known = {(span.hop.peer, span.hop.blocks): span.health for span in state.route}
    spans = []
    for hop in route:
        place = (hop.peer, hop.blocks)
        spans.append(Span(hop=hop, health=SpanHealth.REPLAYING if place in new else known.get(place, SpanHealth.OK)))
    return replace(state, route=tuple(spans), waiting=None)


def _route(route: Sequence[Span], symbols: Symbols, width: int) -> Text:
    if not route:
        return Text("none yet", style="dim")
    text, used = Text(), 0
    for index, span in enumerate(route):
        piece = f"{_place(span.hop)} {_mark_of(span.health, symbols)}"
        joint = f" {symbols.arrow} " if index else ""
        if used and used + len(joint) + len(piece) > width:
            text.append(f" {symbols.arrow}\n       ")
            joint, used = "", 0
        text.append(joint, style="dim")
        text.append(piece, style=_STYLES[span.health])
        used += len(joint) + len(piece)
    return text


def _mark_of(health: SpanHealth, symbols: Symbols) -> str:
    if health is SpanHealth.OK:
        return symbols.tick
    return f"{symbols.cross} failed" if health is SpanHealth.FAILED else health.value
