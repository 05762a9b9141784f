"""`verify recovery --html`: one page that needs nothing else, with the time line of each failover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from swarmctl.events import RouteChosen
from swarmctl.trial import Result, Run, Subject, Verdict
from swarmctl_cli.views import failover, measure, recovery, timeline, timeline_svg
from swarmctl_cli.views.recovery import Outcome, Row
from swarmctl_cli.views.symbols import UNICODE

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --quiet: #59636e; --line: #d8dee4; --band: #f6f8fa;
  --good: #1a7f37; --calm: #0969da; --warm: #b35900; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --quiet: #9198a1; --line: #30363d;
  --band: #151b23; --good: #3fb950; --calm: #58a6ff; --warm: #e3a04a; --bad: #ff7b72; } }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
p { margin: .3rem 0; } a { color: inherit; } .quiet { color: var(--quiet); }
.answer { font-size: 1.15rem; font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td { font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .45rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; } .number { text-align: right; }
tbody tr:hover { background: var(--band); }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .warm { color: var(--warm); }
.cell { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: .9rem 0; }
.cell:target { outline: 2px solid var(--calm); }
figure { margin: .5rem 0 0; overflow-x: auto; } figure svg { min-width: 44rem; }
figcaption, summary { color: var(--quiet); font-size: .9rem; } summary { cursor: pointer; margin-top: .4rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, monospace; margin: .4rem 0 0; }
"""

_READING = (
    "Times count from the fault (dashed), or from the beginning of the step that met it. "
    "Point at a shape for its numbers."
)
_CLASSES = {
    Verdict.IDENTICAL: "good",
    Verdict.WITHIN: "good",
    Verdict.DIFFERENT: "bad",
    Verdict.FAILED: "bad",
    Verdict.NOT_HIT: "warm",
}
_HEADERS = ("fault", "moment", "victim", "cover", "traffic", "verdict")
_NUMBERS = ("detect", "replay", "pause", "step", "replayed", "lost")


def render(outcomes: Sequence[Outcome], *, command: str, about: Sequence[str]) -> str:
    """The page. `command`: what the user types for `verify recovery`; `about`: when, where and with what it was run."""
    rows = recovery.rows_of(outcomes)
    sentences = recovery.conclusions(outcomes) or ("no cell was tried",)
    answer = "".join(f'<p class="answer">{escape(sentence)}</p>' for sentence in sentences)
    body = [
        "<h1>swarmctl verify recovery</h1>",
        answer,
        f'<p class="quiet">{escape(" · ".join(about))}</p>',
        *_table(rows),
        "<h2>Each failover on its axis of time</h2>",
        f'<p class="quiet">{_READING}</p>',
        timeline_svg.key(),
        timeline_svg.PATTERNS,
        *(part for number, row in enumerate(rows) for part in _cell(number, row, command)),
    ]
    return "\n".join((_head(), *body, "</body>", "</html>", ""))


def _head() -> str:
    # The policy makes the promise checkable: a browser loads nothing for this page, whatever is in it.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>swarmctl verify recovery</title>\n<style>{_STYLE}{timeline_svg.STYLE}</style>\n</head>\n<body>"
    )


def _table(rows: Sequence[Row]) -> Iterator[str]:
    both = any(row.stock is not None for row in rows)
    numbered = list(enumerate(rows))
    for family, members in groupby(numbered, key=lambda item: item[1].cell.family):
        yield f'<h2>{escape(family)}</h2>\n<div class="wide"><table>'
        heads = [f"<th>{name}</th>" for name in (*_HEADERS, *(("stock client",) if both else ()))]
        heads += [f'<th class="number">{name}</th>' for name in _NUMBERS]
        yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
        for number, row in members:
            yield _table_row(number, row, both)
        yield "</tbody></table></div>"


def _table_row(number: int, row: Row, both: bool) -> str:
    fault, *rest = list(recovery.cell_fields(row.cell).values())[1:]
    cells = [f'<td><a href="#cell-{number}">{fault}</a></td>', *(f"<td>{part}</td>" for part in rest)]
    cells.append(f"<td>{_verdict(row.shown.result)}</td>")
    if both:
        cells.append(f"<td>{_verdict(row.stock.result) if row.stock else '-'}</td>")
    cells += [f'<td class="number">{text}</td>' for text in recovery.numbers(row.shown.result)]
    return f"<tr>{''.join(cells)}</tr>"


def _verdict(result: Result) -> str:
    return f'<span class="verdict {_CLASSES[result.verdict]}">{recovery.mark(result.verdict, UNICODE)}</span>'


def _cell(number: int, row: Row, command: str) -> Iterator[str]:
    yield f'<section class="cell" id="cell-{number}">\n<h3>{escape(str(row.cell))}</h3>'
    for outcome in (row.shown, row.stock):
        if outcome is not None:
            yield f"<p>{_told(outcome.result)}</p>"
            yield from _drawn(outcome)
    yield f'<p class="quiet">again: <code>{escape(f"{command} {row.cell}")}</code></p>\n</section>'


def _told(result: Result) -> str:
    who = "the stock client: " if result.subject is Subject.STOCK else ""
    reason = f": {escape(result.reason)}" if result.reason else ""
    return f"{who}{_verdict(result)}{reason}"


def _drawn(outcome: Outcome) -> Iterator[str]:
    trial = outcome.trial
    if trial is None:
        return
    for index, run in enumerate(trial.runs):
        session = f"session {index + 1} of {len(trial.runs)}" if len(trial.runs) > 1 else ""
        found = timeline.failovers(run.events, answered=run.ids is not None)
        for place, one in enumerate(found):
            which = f"failover {place + 1} of {len(found)}" if len(found) > 1 else ""
            caption = ", ".join(filter(None, (session, which)))
            drawn = timeline_svg.draw(one, title=f"{trial.cell} {caption}".strip())
            yield f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"
        yield _log(run, session or "the session")


def _log(run: Run, session: str) -> str:
    lines = [said for event in run.events if (said := failover.line(event)) is not None]
    if not lines or all(isinstance(event, RouteChosen) for event in run.events):
        return ""
    summary = f"{session} in words, {measure.count(len(lines), 'line')}"
    return f"<details><summary>{summary}</summary><pre>{escape(chr(10).join(lines))}</pre></details>"
