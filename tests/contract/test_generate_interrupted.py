"""Ctrl-C in `generate`, over fake servers with petals' and transformers' own client: what was accepted is not lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conversations import PROMPT, Bench, alone
from support.eventually import eventually
from support.fakeswarm import Die, Hang
from support.interrupts import ctrl_c_interrupts, press_soon
from support.shell import SWARM, Shell

from swarmctl.client.generate import Sampling

TYPED = "".join(map(str, PROMPT))
ALL = alone(PROMPT, Sampling(max_new_tokens=20))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "swarm.yaml").write_text(SWARM)
    return Shell(folder=tmp_path)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A client that waits long for a silent server, in a process that Ctrl-C interrupts."""
    with ctrl_c_interrupts():
        yield Bench(suspect_after_s=60.0, step_timeout_s=60.0)


def press_after(bench: Bench, requests: int) -> None:
    """The server is silent after so many requests, and Ctrl-C comes then."""
    bench.a.will(*[None] * requests, Hang)

    def press() -> None:
        def asked() -> None:
            assert not bench.a.faults

        eventually(asked, within_s=30)
        press_soon()

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_the_document_has_the_tokens_and_the_text_that_came_before_ctrl_c(
    shell: Shell, bench: Bench, form: str
) -> None:
    shell.client = bench.client
    press_after(bench, 3)

    done = shell("generate", TYPED, "-n", "20", "-o", form)

    error = done.document["error"]
    assert (done.code, done.document["kind"], error["code"]) == (130, "Generation", "Interrupted")
    assert error["context"] == {"accepted": [{"index": 0, "ids": [*ALL[:3]], "text": "".join(map(str, ALL[:3]))}]}
    assert done.err.endswith("error: interrupted\n  3 tokens came out before\n")


def test_of_several_prompts_those_that_are_done_are_there_whole(shell: Shell, bench: Bench) -> None:
    shell.client = bench.client
    other = alone([7], Sampling(max_new_tokens=20))
    press_after(bench, len(ALL) + 2)

    done = shell("generate", TYPED, "7", "12345", "-n", "20", "-o", "json")

    accepted = done.document["error"]["context"]["accepted"]
    assert [(one["index"], tuple(one["ids"])) for one in accepted] == [(0, ALL), (1, other[:2])]


def test_ctrl_c_before_the_first_token_has_nothing_to_say_of_tokens(shell: Shell, bench: Bench) -> None:
    shell.client = bench.client
    press_after(bench, 0)

    done = shell("generate", TYPED, "-o", "json")

    assert done.document["error"]["context"]["accepted"] == [{"index": 0, "ids": [], "text": ""}]
    assert done.err.endswith("error: interrupted\n")


def test_in_words_the_text_of_one_prompt_is_there_once(shell: Shell, bench: Bench) -> None:
    shell.client = bench.client
    press_after(bench, 3)

    done = shell("generate", TYPED, "-n", "20")

    assert (done.code, done.out) == (130, "".join(map(str, ALL[:3])) + "\n")


def test_in_words_the_texts_of_several_prompts_are_shown_as_far_as_they_came(shell: Shell, bench: Bench) -> None:
    shell.client = bench.client
    press_after(bench, len(ALL) + 2)

    done = shell("generate", TYPED, "7", "-n", "20")

    other = alone([7], Sampling(max_new_tokens=2))
    whole = "".join(str(token) for token in ALL[:-1])
    assert (done.code, done.out) == (130, f"{TYPED}{whole}\n\n7{''.join(map(str, other))}\n")


def test_a_failure_of_several_prompts_shows_in_words_what_came_before_too(shell: Shell, bench: Bench) -> None:
    shell.client = bench.client
    bench.a.will(*[None] * (len(ALL) + 2), Die)
    bench.b.will(Die)

    done = shell("generate", TYPED, "7", "-n", "20")

    assert done.code == 4
    assert done.out.startswith(TYPED + str(ALL[0]))
    document = json.loads(shell("generate", TYPED, "7", "-n", "20", "-o", "json").out)
    assert document["error"]["code"] == "RecoveryFailed"
