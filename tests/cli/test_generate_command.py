"""What `generate` refuses before it connects; the generation itself is tested on real servers."""

from __future__ import annotations

import io
import sys


def test_without_a_prompt_it_says_how_to_give_one(shell, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = shell("generate")
    assert done.code == 2
    assert done.err.startswith("error: there is no prompt\n")


def test_a_prompt_file_that_cannot_be_read_is_named(shell):
    done = shell("generate", "--prompt-file", str(shell.folder / "none.txt"))
    assert done.code == 2
    assert "cannot read the prompt file" in done.err


def test_a_drill_that_names_no_node_lists_what_could_be_named(shell):
    done = shell("generate", "once", "--kill", "nobody@3")
    assert done.code == 2
    assert "nodes: left-a, left-b1, left-b2, right-a, right-b" in done.err
    assert shell("generate", "once", "--kill", "left-a").code == 2


def test_settings_that_contradict_each_other_are_refused_before_anything_is_connected(shell):
    done = shell("generate", "once", "--num-beams", "2", "--temperature", "0.5", "-o", "json")
    assert (done.code, done.document["error"]["code"]) == (2, "RequestInvalid")


def test_a_swarm_that_does_not_run_is_told_to_be_started(shell):
    done = shell("generate", "once")
    assert done.code == 2
    assert "hint: swarmctl up" in done.err


def test_events_that_cannot_be_written_stop_it_before_it_connects(shell):
    done = shell("generate", "once", "--events", str(shell.folder / "no" / "events.jsonl"))
    assert done.code == 2
    assert "cannot write the events" in done.err
