"""A failover's time line as inline SVG. Colours are the page's CSS variables; what a colour says, a shape says too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10

from swarmctl_cli.views import measure
from swarmctl_cli.views.lanes import Bar, Lane, Mark
from swarmctl_cli.views.timeline import Failover, Step

_WIDTH = 960
_LEFT, _RIGHT = 120, 280
"""Room for the servers' names, and for what is told of each."""
_ROW = 26
_TOP = 34
_LEAST_PX = 2.0

STYLE = """
svg.time { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg.time text { fill: var(--ink); }
svg.time .quiet { fill: var(--quiet); }
svg.time .axis { stroke: var(--line); stroke-width: 1; }
svg.time .fault { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg.time .faulty { fill: var(--bad); font-weight: 600; }
svg.time .step { fill: var(--calm); }
svg.time .met { fill: var(--warm); }
svg.time .broke { fill: none; stroke: var(--bad); stroke-width: 2; }
svg.time .serving { fill: var(--good); }
svg.time .late { fill: url(#late); stroke: var(--warm); }
svg.time .replaying { fill: url(#replay); stroke: var(--calm); }
svg.time .failed { stroke: var(--bad); stroke-width: 2.5; fill: none; }
svg.time .left { stroke: var(--ink); stroke-width: 2; fill: var(--page); }
"""
"""Rules for every time line of a page; the page defines the variables, in a light and a dark form."""

PATTERNS = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<pattern id="replay" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="var(--page)"/><rect width="3" height="6" fill="var(--calm)"/></pattern>'
    '<pattern id="late" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<rect width="5" height="5" fill="var(--page)"/><circle cx="2.5" cy="2.5" r="1.4" fill="var(--warm)"/></pattern>'
    "</defs></svg>"
)
"""The hatchings, once a page."""

_KEYS = (
    ("step", "a step", 0),
    ("met", "the step that met it", 95),
    ("broke", "no answer", 260),
    ("serving", "in the route", 365),
    ("late", "late, suspected", 480),
    ("replaying", "fed the history", 615),
)
"""A class of shapes, what it means, and where in the key it stands."""

_THICK = {"serving": 4, "step": 10, "met": 18, "broke": 18}


def key() -> str:
    """What the shapes mean, as one small picture."""
    parts = []
    for name, words, x in _KEYS:
        thick = _THICK.get(name, 12)
        parts.append(f'<rect class="{name}" x="{x}" y="{12 - thick / 2:g}" width="22" height="{thick}" rx="2"/>')
        parts.append(f'<text x="{x + 28}" y="16">{words}</text>')
    parts.append(_cross("failed", 760, 12) + '<text x="772" y="16">given up</text>')
    parts.append(_ring("left", 860, 12) + '<text x="872" y="16">let go</text>')
    return f'<svg class="time" viewBox="0 0 {_WIDTH} 24" role="img" aria-label="key">{"".join(parts)}</svg>'


def draw(failover: Failover, *, title: str) -> str:
    """The time line; `title` is what a screen reader says of it. Times count from the fault, or the step it met."""
    height = _TOP + _ROW * (1 + len(failover.lanes)) + 20
    parts = [
        f'<svg class="time" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        *_axis(failover, height),
        _name("steps", 0),
        *(_step(failover, step) for step in failover.steps),
        *_notes(_slowest(failover), 0),
    ]
    for row, lane in enumerate(failover.lanes, start=1):
        parts += _lane(failover, lane, row)
    parts += _faults(failover, height)
    return "".join((*parts, "</svg>"))


def _x(failover: Failover, at_s: float) -> float:
    share = (at_s - failover.start_s) / (failover.end_s - failover.start_s)
    return round(_LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(row: int) -> int:
    return _TOP + row * _ROW


def _axis(failover: Failover, height: int) -> Iterator[str]:
    bottom = height - 16
    every = _tick(failover.end_s - failover.start_s)
    first = -floor((failover.zero_s - failover.start_s) / every + 1e-9)
    last = floor((failover.end_s - failover.zero_s) / every + 1e-9)
    for number in range(first, last + 1):
        x = _x(failover, failover.zero_s + number * every)
        yield f'<line class="axis" x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}"/>'
        yield f'<text class="quiet" x="{x}" y="{height - 3}" text-anchor="middle">{_offset(number * every)}</text>'


def _tick(span_s: float) -> float:
    """About six ticks, at 1, 2 or 5 times a power of ten."""
    rough = span_s / 6
    power = 10 ** floor(log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999))


def _offset(seconds: float) -> str:
    if abs(seconds) < 1e-9:
        return "0"
    sign = "\N{MINUS SIGN}" if seconds < 0 else ""
    size = abs(seconds)
    return f"{sign}{size:g} s" if size >= 1 else f"{sign}{size * 1e3:g} ms"


def _faults(failover: Failover, height: int) -> Iterator[str]:
    told = dict[float, list[str]]()
    for at_s, words in failover.faults:
        told.setdefault(_x(failover, at_s), []).append(words)
    for x, several in told.items():
        # On the right half the words stand to the left of the line, so that none is cut.
        right = x > (_LEFT + _WIDTH - _RIGHT) / 2
        anchor, shift = ("end", -6) if right else ("start", 6)
        said = escape(", ".join(dict.fromkeys(several)))
        yield f'<line class="fault" x1="{x}" y1="6" x2="{x}" y2="{height - 16}"/>'
        yield f'<path class="failed" d="M{x - 4} 4 h8 l-4 7 z"/>'
        yield f'<text class="faulty" x="{x + shift}" y="15" text-anchor="{anchor}">{said}</text>'


def _step(failover: Failover, step: Step) -> str:
    left, right = _x(failover, step.start_s), _x(failover, step.end_s)
    # Steps follow each other without a pause; a hair between them keeps them apart.
    width = max(_LEAST_PX, right - left - 1)
    name = ("met" if step.disturbed else "step") if step.done else "broke"
    told = f"{measure.millis((step.end_s - step.start_s) * 1e3)}, {measure.count(step.tokens, 'token')}"
    told = told if step.done else f"no answer after {told.partition(',')[0]}"
    thick = _THICK[name]
    rect = (
        f'<rect class="{name}" x="{left}" y="{_y(0) + 11 - thick / 2:g}" width="{width:.1f}" height="{thick}" rx="2">'
    )
    return f"{rect}<title>{told}</title></rect>"


def _slowest(failover: Failover) -> tuple[str, ...]:
    met = [step for step in failover.steps if step.disturbed]
    failed = [step for step in met if not step.done]
    told = max(failed or met, key=lambda step: step.end_s - step.start_s, default=None)
    if told is None:
        return ()
    took = measure.millis((told.end_s - told.start_s) * 1e3)
    return (f"the step took {took}" if told.done else f"no answer after {took}",)


def _lane(failover: Failover, lane: Lane, row: int) -> Iterator[str]:
    yield _name(f"{lane.hop.label} {lane.hop.blocks}", row)
    for bar in lane.bars:
        yield _bar(failover, bar, row)
    for at_s, mark in lane.marks:
        x, y = _x(failover, at_s), _y(row) + 11
        yield _cross("failed", x, y) if mark is Mark.FAILED else _ring("left", x, y)
    yield from _notes(lane.notes, row)


def _bar(failover: Failover, bar: Bar, row: int) -> str:
    left, right = _x(failover, bar.start_s), _x(failover, bar.end_s)
    thick = _THICK.get(bar.part.value, 12)
    y = _y(row) + 11 - thick / 2
    rect = f'<rect class="{bar.part.value}" x="{left}" y="{y:g}" width="{max(_LEAST_PX, right - left):.1f}"'
    took = measure.millis((bar.end_s - bar.start_s) * 1e3)
    return f'{rect} height="{thick}" rx="2"><title>{bar.part.value} for {took}</title></rect>'


def _name(words: str, row: int) -> str:
    return f'<text x="{_LEFT - 10}" y="{_y(row) + 15}" text-anchor="end">{escape(words)}</text>'


def _notes(notes: Sequence[str], row: int) -> Iterator[str]:
    """One line, or two smaller ones; more than two share the second."""
    x, first, rest = _WIDTH - _RIGHT + 12, notes[:1], notes[1:]
    lines = [*first, *(("; ".join(rest),) if rest else ())]
    small = ' font-size="11"' if rest else ""
    for line, y in zip(lines, (9, 21) if rest else (15,), strict=False):
        yield f'<text class="quiet" x="{x}" y="{_y(row) + y}"{small}>{escape(line)}</text>'


def _cross(name: str, x: float, y: float) -> str:
    return f'<path class="{name}" d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10"/>'


def _ring(name: str, x: float, y: float) -> str:
    return f'<circle class="{name}" cx="{x}" cy="{y}" r="5"/>'
