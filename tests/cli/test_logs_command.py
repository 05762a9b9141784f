from __future__ import annotations

import json
import re

import pytest
from support.shell import SWARM, Shell

from swarmctl.blocks import NodeName
from swarmctl_cli.commands.logs import moment_of

LEFT_A, RIGHT_A = NodeName("left-a"), NodeName("right-a")
NOON = 1714564800.0
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def up(shell: Shell) -> Shell:
    """A shell whose swarm has been up for a minute."""
    shell("up")
    shell.clock.sleep(60)
    return shell


def write(shell: Shell, node: NodeName, text: str, *, after_s: float = 1.0) -> None:
    shell.clock.sleep(after_s)
    shell.host.log(node, text)


def test_logs_carry_the_nodes_name_when_there_are_several(up):
    assert up("logs", "left-a").out == "started server left-a\n"
    assert "left-a      | started server left-a\n" in up("logs").out
    rows = [json.loads(line) for line in up("logs", "left-*", "-o", "jsonl").out.splitlines()]
    assert [row["node"] for row in rows] == ["left-a", "left-b1", "left-b2"]


def test_a_row_says_which_node_on_which_host_and_when(up):
    write(up, LEFT_A, "words")
    at = up.clock.now().timestamp()
    row = {"node": "left-a", "host": "here", "at": at, "line": "words"}
    assert up("logs", "left-a", "-n", "1", "-o", "json").data == [row]
    assert json.loads(up("logs", "left-a", "-n", "1", "-o", "jsonl").out) == row


def test_lines_of_several_nodes_are_interleaved_by_their_time(up):
    for node, text in ((RIGHT_A, "one"), (LEFT_A, "two"), (RIGHT_A, "three")):
        write(up, node, text)
    assert up("logs", "*-a", "-n", "2").out.splitlines()[-3:] == ["right-a | one", "left-a  | two", "right-a | three"]


def test_timestamps_are_utc(up):
    write(up, LEFT_A, "words", after_s=0.25)
    shown = f"{up.clock.now():%Y-%m-%dT%H:%M:%S}.{up.clock.now().microsecond // 1000:03}Z words\n"
    assert up("logs", "left-a", "-n", "1", "-t").out == shown


@pytest.mark.parametrize("since", ["10s", "2024-05-01T13:00:00", "2024-05-01T13:00:00Z", "2024-05-01T15:00+02:00"])
def test_since_takes_a_duration_or_a_moment(up, since):
    up.clock.sleep(3590 - up.clock.at_s)
    write(up, LEFT_A, "old")
    up.clock.sleep(3605 - up.clock.at_s)
    write(up, LEFT_A, "new")
    assert up("logs", "left-a", "--since", since).out == "new\n"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("2024-05-01", -43200.0), ("2024-05-01T11:59:30.5", -29.5), ("90", -90.0), ("250ms", -0.25), ("2h", -7200.0)],
)
def test_a_moment_is_utc_and_a_duration_is_counted_back(shell, written, seconds):
    assert moment_of(written, shell.clock.now()) == NOON + seconds


def test_since_that_is_neither_is_a_usage_error_with_both_forms(shell):
    done = shell("logs", "--since", "yesterday")
    assert done.code == 2
    assert "--since 'yesterday' is neither a duration nor a moment" in done.err
    assert "--since 10m" in done.err
    assert "--since 2026-12-07T08:00" in done.err


def test_only_lines_with_a_match_are_printed(up):
    for text in ("[INFO] fine", "[ERROR] not fine"):
        write(up, LEFT_A, text)
    assert up("logs", "--grep", "ERROR|Traceback").out == "left-a      | [ERROR] not fine\n"
    assert up("logs", "--grep", "(").code == 2


def test_a_nodes_name_is_coloured_on_a_terminal_and_nowhere_with_no_color(up, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    up.env["TERM"] = "xterm-256color"
    write(up, LEFT_A, "[ERROR] words that are far longer than the terminal is wide " + "x" * 200)
    plain = up("logs", "*-a", "-t").out
    up.screen = True
    coloured = up("logs", "*-a", "-t").out
    assert "\x1b[" in coloured
    assert ESCAPE.sub("", coloured) == plain
    up.env["NO_COLOR"] = "1"
    assert up("logs", "*-a", "-t").out == plain


def test_a_followed_log_makes_no_document_and_is_refused_as_one(shell):
    assert shell("logs", "-f", "-o", "json").code == 2


def test_a_followed_log_goes_on_until_nothing_is_left(up):
    up.host.end(RIGHT_A, "stopped")
    up.host.end(LEFT_A, "stopped")
    assert up("logs", "*-a", "-f").out.splitlines()[-2:] == ["left-a  | stopped", "right-a | stopped"]


def test_a_host_that_does_not_answer_is_exit_code_7_and_its_document_has_what_there_is(up):
    up.host.away = "host here (ops@here): no answer within 10 s"
    done = up("logs", "-o", "json")
    assert (done.code, done.data, done.document["error"]["code"]) == (7, [], "HostUnreachable")


def test_a_host_that_does_not_answer_is_one_line_on_stderr_of_who_follows(up):
    sleep = up.clock.sleep

    def back(seconds: float) -> None:
        sleep(seconds)
        up.host.away = None
        up.host.end(LEFT_A, "stopped")

    up.host.away = "host here (ops@here): no answer within 10 s"
    up.clock.sleep = back
    done = up("logs", "left-a", "-f")
    assert done.err.splitlines() == [
        "warning: host here (ops@here): no answer within 10 s; going on without it until it answers",
        "host here answers again",
    ]


def test_logs_of_a_node_that_crashed_and_of_one_that_left_the_file_are_printed(up):
    up.host.end(LEFT_A, "killed by signal 9 (SIGKILL)")
    without = SWARM.replace("  left-a:", "  left-c:")
    for text in (SWARM, without):
        (up.folder / "swarm.yaml").write_text(text)
        assert up("logs", "left-a", "-n", "1").out == "killed by signal 9 (SIGKILL)\n"
        assert "left-a      | killed by signal 9 (SIGKILL)\n" in up("logs", "@here").out
