from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml
from support.interrupts import press_at_look

from swarmctl.operations.site import Site
from swarmctl_cli.app import app
from swarmctl_cli.context import KINDS

FIELDS = ["apiVersion", "kind", "swarm", "generatedAt", "data", "warnings", "error"]


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["version"], 0, "Version"),
        (["config", "validate"], 0, "Validation"),
        (["plan"], 0, "Plan"),
        (["up"], 0, "Up"),
        (["status"], 4, "Status"),
        (["ps"], 0, "Processes"),
        (["kill", "left-a"], 5, "Kill"),
        (["kill", "nobody"], 2, "Kill"),
        (["verify", "redundancy"], 4, "Redundancy"),
        (["down"], 0, "Down"),
    ],
)
def test_stdout_holds_exactly_one_document_and_error_is_null_only_on_success(shell, words, code, kind):
    done = shell(*words, "-o", "json")
    document = done.document
    assert list(document) == FIELDS
    assert (done.code, document["apiVersion"], document["kind"]) == (code, "swarmctl/v1", kind)
    assert (document["error"] is None) == (code == 0)
    assert done.out.endswith("}\n")


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


EVERY = [*commands(typer.main.get_command(app))]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_kind_is_the_commands_own_also_where_its_options_make_no_sense(shell, words):
    done = shell("-o", "json", *words, "--nonsense")
    assert (done.code, done.document["error"]["code"]) == (2, "UsageError")
    assert done.document["kind"] == KINDS[" ".join(words)]


FAILING: dict[tuple[str, ...], tuple[str, ...]] = {
    ("init",): ("nonsense",),
    ("kill",): ("left-a",),
    ("demo",): ("-c", "none.yaml"),
    ("model", "tiny"): ("--hidden-size", "9"),
    ("model", "import"): ("none.gguf",),
    ("verify", "recovery"): ("nonsense",),
}
"""What makes a command fail by itself, where the lack of a swarm file does not."""


@pytest.mark.parametrize("words", [words for words in EVERY if words != ("config", "schema")], ids=" ".join)
def test_the_kind_is_the_commands_own_on_every_other_failure_too(bare, words, monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("the cause")

    monkeypatch.setattr("sys.stdin", io.StringIO("once"))
    # Only `doctor` and `version` ask for it; nothing else of theirs can be made to fail.
    monkeypatch.setattr("platform.python_version", fail)
    done = bare("-o", "json", *words, *FAILING.get(words, ()))
    assert (done.code != 0, done.document["error"] is None) == (True, False)
    assert done.document["kind"] == KINDS[" ".join(words)]


def test_every_command_has_a_kind_and_nothing_else_has():
    assert {" ".join(words) for words in EVERY} == set(KINDS)


@pytest.mark.parametrize(
    "words", [["nonsense"], ["config", "nonsense"], ["--nonsense", "status"], ["--timeout", "soon", "status"]]
)
def test_where_no_command_is_known_the_kind_is_error(shell, words):
    assert shell("-o", "json", *words).document["kind"] == "Error"


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "json", "up", "--nonsense"],
        ["up", "--nonsense", "-ojson"],
        ["--output=json", "nonsense"],
        ["status", "--every", "soon", "--output", "json"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_document_too(shell, words):
    done = shell(*words)
    assert done.code == 2
    assert done.document["error"]["code"] == "UsageError"
    assert done.document["error"]["hints"][0].endswith("--help")


def test_options_are_taken_before_and_after_the_verb_and_after_wins(shell):
    assert shell("-o", "json", "version").document["kind"] == "Version"
    assert shell("-o", "json", "version", "-o", "name").out == "0.1.0\n"


def test_yaml_is_the_same_document(shell):
    done = shell("config", "validate", "-o", "yaml")
    document = yaml.safe_load(done.out)
    assert list(document) == FIELDS
    assert document["data"]["blocks"] == 30


def test_json_lines_are_one_object_a_row_and_a_failure_is_one_document_in_a_line(shell):
    rows = [json.loads(line) for line in shell("plan", "-o", "jsonl").out.splitlines()]
    assert [row["action"] for row in rows] == ["start bootstrap", *["start"] * 5]
    (line,) = shell("kill", "left-a", "-o", "jsonl").out.splitlines()
    assert json.loads(line)["error"]["code"] == "Refused"


def test_names_are_refused_where_a_result_has_none(shell):
    done = shell("verify", "redundancy", "-o", "name")
    assert (done.code, done.out) == (2, "")


def test_a_failure_in_words_has_three_parts_and_leaves_stdout_empty(shell):
    done = shell("kill", "left-b")
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[0] == "error: 'left-b' means several nodes"
    assert lines[1] == "  it could be left-b1, left-b2"
    assert lines[2].startswith("hint: ")


def test_an_exception_that_nobody_planned_for_shows_its_traceback_and_where_to_report_it(shell, monkeypatch):
    def fail(self: Site, names: object = None) -> None:
        raise RuntimeError("the cause")

    monkeypatch.setattr(Site, "survey", fail)
    done = shell("ps", "-o", "json")
    assert done.code == 1
    assert done.document["error"]["code"] == "InternalError"
    assert "Traceback (most recent call last)" in done.err
    assert "error: unexpected RuntimeError: the cause" in done.err
    assert "hint: report it" in done.err


def test_a_word_that_is_almost_one_of_the_known_comes_with_that_one(bare):
    done = bare("verify", "recovery", "--fault", "kil", "-o", "json")
    assert (done.code, done.document["error"]["hints"][0]) == (2, "did you mean kill?")
    assert not any("mean" in hint for hint in bare("status", "-o", "xyz").err.splitlines())


def test_ctrl_c_gives_130_and_says_how_to_go_on(shell, monkeypatch):
    def interrupt(self: Site, names: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Site, "survey", interrupt)
    done = shell("up")
    assert done.code == 130
    assert done.err.startswith("error: interrupted\n")
    assert "swarmctl up, or swarmctl down" in done.err
    assert shell("up", "-o", "json").document["error"]["code"] == "Interrupted"


def test_ctrl_c_is_how_a_watch_ends_well(shell, monkeypatch):
    shell("up")
    press_at_look(3, monkeypatch)
    done = shell("status", "--watch", "--every", "1ms", "-o", "jsonl")
    assert done.code == 0
    assert [json.loads(line)["verdict"] for line in done.out.splitlines()] == ["HEALTHY", "HEALTHY"]


def test_quiet_says_nothing_but_faults(shell):
    assert shell("up", "-q").err == ""
    assert shell("-q", "down").err == ""


def test_without_line_drawing_characters_stdout_is_ascii(shell):
    shell.env["SWARMCTL_ASCII"] = "1"
    shell("up")
    assert shell("status").out.isascii()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "-o", "jsn"], "'jsn' is not one of 'table', 'json', 'jsonl', 'yaml', 'name'"),
        (["verify", "redundancy", "--min", "0"], "must be at least 1"),
        (["verify", "redundancy", "--min", "two"], "must be a whole number"),
    ],
)
def test_a_value_that_does_not_do_is_refused_in_plain_words(shell, words, said):
    done = shell(*words)
    assert done.code == 2
    assert done.err.splitlines()[0].endswith(f": {said}")
