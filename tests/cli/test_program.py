"""The program as a process of its own: what it imports, how it completes, what it does to its streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.shell import SWARM

from swarmctl.matrix import QUICK

ROOT = Path(__file__).parents[2]
# pydantic is not among them: some versions of typer import it to read the command line.
HEAVY = ("torch", "petals", "hivemind", "transformers", "numpy", "swarmctl.config", "swarmctl.operations.up")


def program(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT / "cli"), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "swarmctl_cli", *words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": path, "COLUMNS": "100", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", [["status", "--help"], ["version"]])
def test_the_program_starts_without_anything_heavy(tmp_path, words):
    code = (
        "import json, sys, atexit\n"
        f"atexit.register(lambda: print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr))\n"
        f"from swarmctl_cli.app import main\nmain({words!r})\n"
    )
    path = os.pathsep.join((str(ROOT / "cli"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_a_pipe_that_closes_early_is_no_failure_worth_words(tmp_path):
    path = os.pathsep.join((str(ROOT / "cli"), str(ROOT)))
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m swarmctl_cli init reference -o - | head -n 1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def typed(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command line of bash, in which `swarmctl` is the program."""
    path = os.pathsep.join((str(ROOT / "cli"), str(ROOT)))
    return subprocess.run(
        ["bash", "-c", f'swarmctl() {{ "{sys.executable}" -m swarmctl_cli "$@"; }}; set -o pipefail; {line}'],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    ["version", "version -o json", "version -o name", "version -o yaml", "status --help", "init reference -o -"],
)
def test_a_full_disk_under_stdout_is_one_line_and_a_failure(tmp_path, words, unbuffered):
    done = typed(f"swarmctl {words} >/dev/full", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: cannot write to stdout: No space left on device\n"


def test_a_failure_whose_document_is_lost_is_told_with_its_own_words_too(tmp_path):
    done = typed("swarmctl config validate -o json >/dev/full", tmp_path)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert lines == [
        f"error: no swarm.yaml in {tmp_path} or above it",
        "error: cannot write to stdout: No space left on device",
    ]
    assert "Traceback" not in done.stderr


def test_words_that_cannot_be_written_change_neither_the_data_nor_the_answer(tmp_path):
    for lost in ("2>/dev/full", "2>&-"):
        done = typed(f"swarmctl status -o json {lost}", tmp_path)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (3, "ConfigError")


def test_a_stdout_that_is_closed_is_written_to_nowhere(tmp_path):
    done = typed("swarmctl version -o json >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["version", "version -o json", "status --help", "config schema"])
def test_a_pipe_that_nobody_reads_ends_every_command_without_a_word(tmp_path, words):
    # The reader is gone before the program writes.
    done = typed(f"(sleep 0.3; swarmctl {words}) | true", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_failure_into_a_pipe_that_nobody_reads_has_its_words_and_no_traceback(tmp_path):
    done = typed("(sleep 0.3; swarmctl status -o json) | true", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no swarm.yaml in ")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_terminal_without_unicode_gets_ascii(tmp_path):
    (tmp_path / "swarm.yaml").write_text(SWARM)
    done = program("verify", "redundancy", "--source", "config", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_committed_completion_script_is_what_the_program_prints(tmp_path, shell):
    done = program(cwd=tmp_path, _SWARMCTL_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert done.stdout.strip() == (ROOT / "completions" / f"swarmctl.{shell}").read_text().strip()


def complete(line: str, cwd: Path) -> list[str]:
    words = line.split(" ")
    done = program(cwd=cwd, _SWARMCTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stderr == ""
    return done.stdout.split()


def test_node_names_come_from_the_file_of_the_folder(tmp_path):
    (tmp_path / "swarm.yaml").write_text(SWARM)
    assert complete("swarmctl kill left", tmp_path) == ["left-a", "left-b1", "left-b2"]
    assert complete("swarmctl down left-a left", tmp_path) == ["left-b1", "left-b2"]


def test_node_names_come_from_the_file_that_is_named(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("nodes: {only-here: {blocks: '0:1'}}\nhosts: {box: {connect: local}}\n")
    assert complete(f"swarmctl -c {other} restart o", tmp_path) == ["only-here"]
    assert complete(f"swarmctl restart -c {other} @", tmp_path) == ["@box"]


@pytest.mark.parametrize("text", [None, "nodes: [1, 2", "nodes: 7", "\x00"])
def test_without_a_readable_file_nothing_is_offered_and_nothing_said(tmp_path, text):
    if text is not None:
        (tmp_path / "swarm.yaml").write_text(text)
    assert complete("swarmctl kill l", tmp_path) == []


def test_presets_are_offered(tmp_path):
    assert complete("swarmctl init tiny", tmp_path) == ["tiny-bloom", "tiny-llama"]


def test_cells_are_offered(tmp_path):
    quick = str(QUICK[-1])
    typed = quick[:20]
    offered = complete(f"swarmctl verify recovery {typed}", tmp_path)
    assert quick in offered
    assert all(name.startswith(typed) for name in offered)


def test_verbs_are_offered(tmp_path):
    assert complete("swarmctl re", tmp_path) == ["restart"]
