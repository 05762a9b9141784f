"""A trial as a file: JSON lines, so that it can be read by eye and cut with the usual tools, and be judged again.

{"trial": 1, "cell": …, "subject": …, …, "runs": 2}       one line for the trial
{"run": 0, "expected": …, "ids": …, …, "events": 57}      then for each run a line, and one for each of its events
{"event": "RouteChosen", …}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from swarmctl import events
from swarmctl.errors import UsageError
from swarmctl.events import Event
from swarmctl.matrix import parse_cell
from swarmctl.trial.values import Run, Subject, Trial

_Made = TypeVar("_Made", Run, Trial)

VERSION = 1
"""Of the form of the file; it changes when an older reader would misread a newer file."""


def encode_trial(trial: Trial) -> str:
    """The text of the file; `decode_trial` reads it."""
    head = {
        "trial": VERSION,
        "cell": str(trial.cell),
        "subject": trial.subject.value,
        "num_blocks": trial.num_blocks,
        "took_s": trial.took_s,
        "missed": trial.missed,
        "budget_s": trial.budget_s,
        "runs": len(trial.runs),
    }
    lines = [_line(head)]
    for number, run in enumerate(trial.runs):
        about = {
            "run": number,
            "expected": run.expected,
            "local": run.local,
            "ids": run.ids,
            "error": run.error,
            "distances": run.distances,
            "margins": run.margins,
            "events": len(run.events),
        }
        lines += [_line(about), *(events.encode(event) for event in run.events)]
    return "\n".join([*lines, ""])


def decode_trial(text: str) -> Trial:
    """The trial of a file's text.

    Raises:
        ValueError: when it is damaged, cut off, or of another version; it names the line, counted from 1.
    """
    # Not `splitlines`: texts inside may hold other characters that it takes for the end of a line.
    lines = _Lines(text.removesuffix("\n").split("\n"))
    with lines.reading("the trial") as line:
        raw = _object(line)
        if raw.pop("trial", None) != VERSION:
            raise ValueError(f"not a trial of version {VERSION}, which is what this swarmctl reads")
        num_runs = _count(raw.pop("runs", None))
        raw["cell"] = parse_cell(str(raw.get("cell")))
        raw["subject"] = Subject(raw.get("subject"))
        trial = _made(Trial, {**raw, "runs": ()})
    runs = tuple(_read_run(lines, number) for number in range(num_runs))
    lines.end()
    return replace(trial, runs=runs)


def _read_run(lines: _Lines, number: int) -> Run:
    with lines.reading(f"run {number}") as line:
        raw = _object(line)
        if raw.pop("run", None) != number:
            raise ValueError(f"not run {number}")
        num_events = _count(raw.pop("events", None))
        run = _made(Run, {**raw, "events": ()})
    return replace(run, events=tuple(_read_event(lines) for _ in range(num_events)))


def _read_event(lines: _Lines) -> Event:
    with lines.reading("an event") as line:
        event = events.decode(line)
        _check(event)
    return event


class _Lines:
    """The lines of a file, one after the other."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._done = 0

    @contextmanager
    def reading(self, what: str) -> Iterator[str]:
        """The next line, which should hold `what`; errors in the block get its number."""
        if self._done == len(self._lines):
            raise ValueError(f"line {self._done + 1}: the file ends before {what}")
        try:
            yield self._lines[self._done]
        except json.JSONDecodeError as error:
            raise ValueError(f"line {self._done + 1}: not JSON: {error.msg}") from error
        except (UsageError, ValueError, TypeError) as error:
            raise ValueError(f"line {self._done + 1}: {error}") from error
        self._done += 1

    def end(self) -> None:
        """Nothing may follow."""
        if self._done < len(self._lines):
            raise ValueError(f"line {self._done + 1}: the trial has ended, and more follows")


def _line(about: dict[str, Any]) -> str:
    return json.dumps(about, ensure_ascii=False)


def _object(line: str) -> dict[str, Any]:
    raw = json.loads(line)
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    return {name: _frozen(value) for name, value in raw.items()}


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of lines that follow")
    return value


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _made(kind: type[_Made], values: dict[str, Any]) -> _Made:
    made = kind(**values)
    _check(made)
    return made


def _check(value: Any) -> None:
    """Refuse what the constructor of a dataclass takes and its types do not allow."""
    for name, hint in get_type_hints(type(value)).items():
        held = getattr(value, name)
        if not _fits(held, hint):
            raise ValueError(f"{name} of {type(value).__name__} cannot be {held!r:.60}")


def _fits(value: Any, hint: Any) -> bool:
    hint = getattr(hint, "__supertype__", hint)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if get_args(hint):
        return any(_fits(value, choice) for choice in get_args(hint))
    if not isinstance(value, hint):
        return False
    return not is_dataclass(hint) or all(_fits(getattr(value, at), inner) for at, inner in get_type_hints(hint).items())
