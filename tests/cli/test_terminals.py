"""What is written to a terminal that is narrow, or that takes no escape sequences."""

from __future__ import annotations

import re

import pytest
from support.interrupts import press_at_look
from support.shell import Shell

CURSOR = re.compile(r"\x1b\[(?:\?\d+[hl]|\d*[A-HJK])")
"""Escape sequences that move or hide the cursor, or clear what stands there."""

COMMANDS = [
    ["version"],
    ["doctor"],
    ["init", "--list"],
    ["config", "validate"],
    ["plan"],
    ["up"],
    ["status"],
    ["status", "--nonsense"],
    ["ps", "--all"],
    ["kill", "nobody"],
    ["kill", "left-a", "--allow-gap"],
    ["status"],
    ["verify", "redundancy"],
    ["verify", "recovery", "--list"],
    ["verify", "recovery"],
    ["generate", "once", "--kill", "nobody@3"],
    ["down"],
]


@pytest.fixture
def seen(shell: Shell, trials, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell on a terminal in colour."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shell.try_cells = trials
    shell.env["TERM"] = "xterm-256color"
    shell.terminal = shell.screen = True
    return shell


def test_a_terminal_gets_colours(seen):
    assert "\x1b[1" in seen("verify", "redundancy", "--source", "config").out
    assert "\x1b[1;31merror: " in seen("kill", "nobody").err


def test_with_no_color_nothing_is_escaped_but_the_moves_of_live_displays(seen):
    seen.env["NO_COLOR"] = "1"
    for words in COMMANDS:
        done = seen(*words)
        assert done.out or done.err
        assert "\x1b" not in done.out, words
        assert "\x1b" not in CURSOR.sub("", done.err), words


def test_a_dumb_terminal_gets_no_escape_sequence_at_all(seen):
    seen.env["TERM"] = "dumb"
    for words in COMMANDS:
        done = seen(*words)
        assert "\x1b" not in done.out + done.err, words


def test_a_watch_on_a_dumb_terminal_prints_one_picture_below_the_other(seen, monkeypatch):
    seen.env["TERM"] = "dumb"
    seen("up")
    press_at_look(3, monkeypatch)
    done = seen("status", "--watch", "--every", "1ms")
    assert (done.code, done.out.count("HEALTHY")) == (0, 2)
    assert "\x1b" not in done.out + done.err


def test_a_narrow_status_says_which_columns_it_leaves_out_and_cuts_no_name(shell):
    shell("up")
    assert "columns left out" not in shell("status").out
    shell.env["COLUMNS"] = "60"
    done = shell("status")
    assert "columns left out: HOST, THROUGHPUT, CACHE LEFT (wider terminal, or -o json)\n" in done.out
    for name in ("left-a", "left-b1", "left-b2", "right-a", "right-b"):
        assert re.search(rf"^{name}  +ONLINE", done.out, re.MULTILINE)


def test_narrow_results_of_verify_recovery_say_which_columns_they_leave_out(bare, trials):
    bare.env["COLUMNS"] = "70"
    done = bare("verify", "recovery")
    (line,) = (line for line in done.out.splitlines() if line.startswith("columns left out: "))
    assert line.endswith(" (wider terminal, or -o json)")
    assert all(word in line for word in ("REPLAYED", "DETECT"))
    assert "VERDICT" in done.out


@pytest.mark.parametrize("words", [["ps", "--all"], ["plan"], ["init", "--list"], ["verify", "recovery", "--list"]])
def test_other_tables_have_every_column_on_any_terminal(shell, words):
    shell("up")
    wide = shell(*words).out
    shell.env["COLUMNS"] = "30"
    assert shell(*words).out == wide


def test_a_cell_that_runs_is_named_whole_on_a_narrow_terminal(bare, trials):
    bare.env.update(TERM="xterm", COLUMNS="40")
    bare.terminal = True
    name = "llama/partition/between/first/split/several"
    done = bare("verify", "recovery", name)
    told = CURSOR.sub("", re.sub(r"\x1b\[[0-9;]*m", "", done.err))
    assert "…" not in told
