"""The file of a trial: nothing is lost in it, and a damaged one is refused by the line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tales import Incident, a_trial, tales, tell

from swarmctl.matrix import Cell, Cover, Fault, Moment, Traffic, Victim
from swarmctl.trial import Run, Subject, Trial, decode_trial, encode_trial, judge

NUMBERS = st.floats(allow_nan=False)
TOKENS = st.lists(st.lists(st.integers(0, 200_000), max_size=4).map(tuple), max_size=3).map(tuple)
CELLS = st.builds(
    Cell,
    family=st.sampled_from(["llama", "own model"]),
    fault=st.sampled_from(Fault),
    moment=st.sampled_from(Moment),
    victim=st.sampled_from(Victim),
    cover=st.sampled_from(Cover),
    traffic=st.sampled_from(Traffic),
)
RUNS = st.builds(
    Run,
    events=tales().map(lambda tale: tale.events),
    expected=TOKENS,
    local=st.none() | TOKENS,
    ids=st.none() | TOKENS,
    error=st.none() | st.text(),
    distances=st.lists(NUMBERS, max_size=3).map(tuple),
    margins=st.lists(NUMBERS, max_size=3).map(tuple),
)
TRIALS = st.builds(
    Trial,
    cell=CELLS,
    subject=st.sampled_from(Subject),
    num_blocks=st.integers(1, 80),
    runs=st.lists(RUNS, max_size=3).map(tuple),
    took_s=NUMBERS,
    missed=st.none() | st.text(),
    budget_s=NUMBERS,
)
TRIAL = a_trial(tell([Incident.QUIET, Incident.LOST]).run(), tell([Incident.QUIET]).run())
LINES = encode_trial(TRIAL).splitlines()
EVENTS = len(TRIAL.runs[0].events)


@settings(max_examples=60)
@given(TRIALS)
def test_a_trial_survives_its_file(trial: Trial) -> None:
    assert decode_trial(encode_trial(trial)) == trial


@settings(max_examples=30)
@given(tales())
def test_a_saved_trial_is_judged_as_it_was(tale: Any) -> None:
    trial = tale.trial()
    assert judge(decode_trial(encode_trial(trial))) == judge(trial)


@pytest.mark.parametrize("text", ["two\nlines", "next\u2028line", "\x85", "\r", '"', "ü"])
def test_a_text_with_ends_of_lines_in_it_stays_on_its_line(text: str) -> None:
    trial = replace(TRIAL, missed=text, runs=(replace(TRIAL.runs[0], error=text),))
    assert decode_trial(encode_trial(trial)) == trial


def test_the_file_is_a_line_for_the_trial_a_line_for_each_run_and_one_for_each_event() -> None:
    head, first, *_ = (json.loads(line) for line in LINES)
    assert (head["trial"], head["cell"], head["runs"]) == (1, "llama/kill/mid-step/first/same/greedy", 2)
    assert (first["run"], first["ids"], first["events"]) == (0, [[10, 20]], EVENTS)
    assert len(LINES) == 1 + sum(1 + len(run.events) for run in TRIAL.runs)


def test_the_last_end_of_line_may_be_missing() -> None:
    assert decode_trial("\n".join(LINES)) == TRIAL


@pytest.mark.parametrize("kept", range(len(LINES)))
def test_a_file_that_is_cut_off_is_refused_at_the_line_that_is_missing(kept: int) -> None:
    with pytest.raises(ValueError, match=rf"line {max(1, kept + (kept > 0))}: "):
        decode_trial("\n".join(LINES[:kept]))


@pytest.mark.parametrize("at", range(len(LINES)))
@pytest.mark.parametrize("damage", ["", "{", "null", "[]", "{}", '"text"', "7"], ids=repr)
def test_a_damaged_line_is_named(at: int, damage: str) -> None:
    with pytest.raises(ValueError, match=rf"^line {at + 1}: "):
        decode_trial("\n".join([*LINES[:at], damage, *LINES[at + 1 :]]))


def changed(at: int, **values: Any) -> str:
    """The file with other values in one of its lines; None takes one away."""
    raw = {name: value for name, value in {**json.loads(LINES[at]), **values}.items() if value is not ...}
    return "\n".join([*LINES[:at], json.dumps(raw), *LINES[at + 1 :]])


@pytest.mark.parametrize(
    ("at", "values", "words"),
    [
        (0, {"trial": 2}, "not a trial of version 1"),
        (0, {"cell": "llama/kil/mid-step/first/same/greedy"}, "'kil' is no fault"),
        (0, {"cell": ...}, "is no cell"),
        (0, {"subject": "theirs"}, "'theirs' is not a valid Subject"),
        (0, {"runs": -1}, "no number of lines"),
        (0, {"runs": "2"}, "no number of lines"),
        (0, {"took_s": "long"}, "took_s of Trial cannot be 'long'"),
        (0, {"num_blocks": 6.5}, "num_blocks of Trial cannot be 6.5"),
        (0, {"num_blocks": True}, "num_blocks of Trial cannot be True"),
        (0, {"missed": 3}, "missed of Trial cannot be 3"),
        (0, {"num_blocks": ...}, "num_blocks"),
        (0, {"colour": "red"}, "colour"),
        (1, {"run": 1}, "not run 0"),
        (1, {"expected": None}, "expected of Run cannot be None"),
        (1, {"ids": [["10", "20"]]}, "ids of Run cannot be"),
        (1, {"margins": [1, None]}, "margins of Run cannot be"),
        (1, {"events": None}, "no number of lines"),
        (2, {"took_ms": "long"}, "took_ms of RouteChosen cannot be 'long'"),
        (2, {"at_s": None}, "at_s of RouteChosen cannot be None"),
        (2, {"event": "RouteLost"}, "not an event of this version"),
        (2, {"route": [{"blocks": "0:3", "peer": 4, "node": None}]}, "route of RouteChosen cannot be"),
        (2, {"route": [{"blocks": "3:0", "peer": "x", "node": None}]}, "3:0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_line(at: int, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^line {at + 1}: (.|\n)*{words}"):
        decode_trial(changed(at, **values))


def test_a_line_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match=rf"^line {len(LINES) + 1}: the trial has ended"):
        decode_trial("\n".join([*LINES, LINES[-1]]))
