"""Events on their way to the user's eyes: a live display on a terminal, one line an event everywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column
from rich.text import Text

from swarmctl.events import Event, EventSink
from swarmctl_cli.output import Format, Output
from swarmctl_cli.views import failover, recovery_live, rollout, symbols

S = TypeVar("S")

_FRAMES_PER_SECOND = 8


@dataclass(frozen=True, kw_only=True)
class View(Generic[S]):
    """A view as values: `reduce` and `render` for the live form, `line` for the written one.

    `line` gets the state before the event.
    """

    start: S
    reduce: Callable[[S, Event], S]
    render: Callable[[S, int], RenderableType]
    line: Callable[[S, Event], str | None]


@contextmanager
def follow(out: Output, view: View[S]) -> Iterator[EventSink]:
    """A sink that shows what it takes, on stderr, until the block is left; the last live picture stays.

    The sink only folds the event into the state; a thread of the display draws.
    """
    state = view.start
    if not out.live:

        def tell(event: Event) -> None:
            nonlocal state
            _say(out, view.line(state, event))
            state = view.reduce(state, event)

        yield tell
        return
    console = out.words
    with Live(view.render(state, console.width), console=console, refresh_per_second=_FRAMES_PER_SECOND) as live:

        def sink(event: Event) -> None:
            nonlocal state
            state = view.reduce(state, event)
            live.update(view.render(state, console.width))

        yield sink


@contextmanager
def progress_bar(out: Output, title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a line a quarter elsewhere, both on stderr; takes `(done, total)`, shown from the first."""
    if not out.live:
        quarters: set[int] = set()

        def say(done: int, total: int) -> None:
            quarter = 4 * done // max(1, total)
            if quarter not in quarters:
                quarters.add(quarter)
                out.say(f"{title}: {done} of {total}")

        yield say
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=out.words, transient=True) as bar:
        task = bar.add_task(title, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def repeat(
    out: Output,
    look: Callable[[S | None], S],
    *,
    render: Callable[[S, int], RenderableType],
    document: Callable[[S], Any],
    pause: Callable[[], None],
) -> None:
    """Look, show, pause, for ever; ends by the caller's Ctrl-C. `look` is given what it returned the last time.

    On a terminal the picture is redrawn in place; elsewhere each one is printed, as a JSON line for machine formats.
    """
    state = look(None)
    if out.format is Format.TABLE and out.screen:
        console = out.console
        try:
            with Live(render(state, console.width), console=console, auto_refresh=False, screen=True) as live:
                while True:
                    live.update(render(state, console.width), refresh=True)
                    pause()
                    state = look(state)
        finally:
            # The full screen is gone by now; what was seen last stays in the scroll-back.
            console.print(render(state, console.width))
    while True:
        if out.format is Format.TABLE:
            out.console.print(render(state, out.width), end="\n\n")
        else:
            out.line(document(state))
        pause()
        state = look(state)


def follow_rollout(out: Output) -> AbstractContextManager[EventSink]:
    """A sink that shows how nodes start and stop."""
    chosen = symbols.choose(out.ascii_only)
    return follow(
        out,
        View(
            start=rollout.RolloutView(),
            reduce=rollout.reduce,
            render=lambda state, width: rollout.render(state, width, chosen),
            line=lambda _state, event: rollout.line(event),
        ),
    )


@contextmanager
def follow_trials(out: Output) -> Iterator[Callable[[recovery_live.Told], None]]:
    """A sink for `verify recovery`, on stderr: a line a cell, and what runs now: on a terminal with its time."""
    chosen = symbols.choose(out.ascii_only)
    if not out.live:
        began_s = time.monotonic()

        def tell(progress: recovery_live.Told) -> None:
            said = recovery_live.line(progress, chosen)
            if said is not None:
                out.say(said)
            _say(out, recovery_live.begins(progress, time.monotonic() - began_s))

        yield tell
        return
    from rich import progress as bars

    spinner = bars.SpinnerColumn("line" if out.ascii_only else "dots")
    # A cell's name is never cut, so that on a narrow terminal it goes on in the next line.
    told = bars.TextColumn("{task.description}", table_column=Column(overflow="fold"))
    columns = (spinner, told, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=out.words, transient=True) as shown:
        task: bars.TaskID | None = None

        def sink(progress: recovery_live.Told) -> None:
            nonlocal task
            said = recovery_live.line(progress, chosen)
            if said is not None:
                shown.console.print(said)
            if isinstance(progress, recovery_live.NodeUp):
                return
            now = recovery_live.running(progress)
            # A new task starts at zero: the time is that of the cell, not of the whole run.
            if task is not None:
                shown.remove_task(task)
            task = None if now is None else shown.add_task(now, total=None)

        yield sink


def transcript(out: Output, *, stream_text: bool) -> Transcript[failover.SessionView]:
    """Text and the failover log around it."""
    chosen = symbols.choose(out.ascii_only)
    view = View(
        start=failover.SessionView(),
        reduce=failover.reduce,
        render=lambda state, width: failover.render(state, width, chosen),
        line=lambda state, event: failover.line(event, state.step_ms),
    )
    return Transcript(out, view, stream_text=stream_text)


def _say(out: Output, said: str | None) -> None:
    if said is not None:
        out.say(said)


class Transcript(Generic[S]):
    """Generated text and the events around it, on one terminal or on two streams.

    Where both streams are terminals, text and panel share one live display, and on leaving, the text goes to stdout
    once and what happened stays above it. Elsewhere the text goes to stdout as it comes and the events, line by line,
    to stderr. With a machine format nothing is written to stdout here.
    """

    def __init__(self, out: Output, view: View[S], *, stream_text: bool) -> None:
        self._out = out
        self._view = view
        self._state = view.start
        self._stream_text = stream_text
        self._pieces: list[str] = []
        self._said: list[str] = []
        self._lock = threading.Lock()
        self._live: Live | None = None
        if out.live and (out.stdout.isatty() or not stream_text):
            self._live = Live(
                Text(), console=out.words, transient=True, refresh_per_second=_FRAMES_PER_SECOND, redirect_stdout=False
            )

    def __enter__(self) -> Transcript[S]:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            for said in self._said:
                self._out.say(said)
            if self._stream_text:
                self._out.text("".join(self._pieces))
        if self._stream_text and self._pieces and not self._pieces[-1].endswith("\n"):
            self._out.text("\n")

    def event(self, event: Event) -> None:
        """Take one event; an `EventSink`."""
        with self._lock:
            said = self._view.line(self._state, event)
            self._state = self._view.reduce(self._state, event)
            if self._live is None:
                _say(self._out, said)
                return
            if said is not None:
                self._said.append(said)
            self._draw(self._live)

    def text(self, piece: str) -> None:
        """Take the next piece of generated text."""
        with self._lock:
            self._pieces.append(piece)
            if self._live is not None:
                self._draw(self._live)
            elif self._stream_text:
                self._out.text(piece)

    def _draw(self, live: Live) -> None:
        console = self._out.words
        panel = self._view.render(self._state, console.width)
        live.update(Group(*self._tail(console.width, console.height // 2), panel))

    def _tail(self, width: int, height: int) -> list[Text]:
        if not self._stream_text:
            return []
        written = "".join(self._pieces).splitlines() or [""]
        rows = [text[i : i + width] for text in written for i in range(0, max(1, len(text)), width)]
        return [Text(row) for row in rows[-height:]]
