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
