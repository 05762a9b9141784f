"""`Client.generate` over fake servers, with petals' and transformers' own: groups, text, tokens, ends, failures."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
from support.clients import a_client
from support.fakeswarm import Die, FakeRouter, servers_of
from support.toymodel import STOP, LocalModel, RemoteModel

from swarmctl.client.generate import Connection, Generation, Listener, Sampling
from swarmctl.errors import RecoveryFailed, RequestInvalid
from swarmctl.events import Event, RecoveryDone, StepDone, TokensEmitted
from swarmctl.spec import ClientSpec
from swarmctl.upstream.legs import SessionSettings

BLOCKS = 3
LOCAL = LocalModel(BLOCKS)


@dataclass
class Heard:
    """What a listener was told."""

    pieces: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def text(self, index: int, piece: str) -> None:
        self.pieces[index] = self.pieces.get(index, "") + piece

    @property
    def listener(self) -> Listener:
        return Listener(sink=self.events.append, text=self.text)


class Bench:
    """A client of servers a and b, which both have all blocks."""

    def __init__(self, **limits: Any) -> None:
        self.servers = servers_of(f"a=0:{BLOCKS}", f"b=0:{BLOCKS}")
        self.router = FakeRouter(self.servers, BLOCKS)
        self.model = RemoteModel(self.router)
        self.heard = Heard()
        self.client = a_client(self.router, self.model, **limits)

    def generate(self, *prompts: str, **sampling: Any) -> tuple[Generation, ...]:
        return self.client.generate(prompts, Sampling(**sampling), listener=self.heard.listener)


def expected(prompt: str, count: int, **sampling: Any) -> tuple[int, ...]:
    """What transformers makes of one prompt, from the whole model, up to the stop."""
    choice = Sampling(max_new_tokens=count, **sampling)
    if choice.seed is not None:
        torch.manual_seed(choice.seed)
    (new,) = LOCAL.new_ids([[int(letter) for letter in prompt]], **choice.arguments())
    return tuple(new)


def test_prompts_of_different_lengths_come_back_in_their_order_and_equal_those_generated_alone() -> None:
    prompts = ("12345", "7", "54321", "3", "123")
    bench = Bench()

    done = bench.generate(*prompts, max_new_tokens=6)

    assert [generation.prompt for generation in done] == list(prompts)
    assert [generation.ids for generation in done] == [expected(prompt, 6) for prompt in prompts]
    assert {(2, 5), (2, 1), (1, 3)} <= set(bench.model.batches), "those of one length share a session"
    assert bench.servers[0].dials == 3
    assert [generation.prompt_tokens for generation in done] == [5, 1, 5, 1, 3]


def test_a_session_longer_than_the_file_allows_is_refused_before_a_server_is_asked() -> None:
    bench = Bench(max_length=8)

    with pytest.raises(RequestInvalid, match="5 tokens of prompt and 4 new ones are more than the 8"):
        bench.generate("1", "12345", max_new_tokens=4)

    assert all(not server.received for server in bench.servers)
    assert len(bench.generate("12345", max_new_tokens=3)) == 1


@pytest.mark.parametrize("limits", [Connection, SessionSettings], ids=["connection", "session"])
def test_limits_that_a_program_leaves_out_are_those_of_the_swarm_file(limits: type) -> None:
    wanted = {one.name: one.default for one in fields(ClientSpec)}

    found = {one.name: one.default for one in fields(limits) if one.name in wanted}

    assert len(found) >= 6
    assert found == {name: wanted[name] for name in found}


def test_streamed_text_is_the_text_of_each_prompt() -> None:
    bench = Bench()

    done = bench.generate("12345", "7", "54321", max_new_tokens=8)

    assert bench.heard.pieces == {index: generation.text for index, generation in enumerate(done) if generation.text}


def test_a_sequence_ends_at_its_stop_token_and_says_so() -> None:
    endings = {prompt: Bench().generate(prompt, max_new_tokens=12)[0] for prompt in map(str, range(1, 25))}

    stopped = [generation for generation in endings.values() if generation.ended == "stop"]
    others = [generation for generation in endings.values() if generation.ended == "length"]
    assert stopped
    assert others
    assert all(generation.ids[-1] == STOP and STOP not in generation.ids[:-1] for generation in stopped)
    assert all(len(generation.ids) == 12 and STOP not in generation.ids for generation in others)


def test_a_stop_token_that_is_the_last_one_allowed_is_a_stop() -> None:
    prompt = next(p for p in map(str, range(1, 40)) if Bench().generate(p, max_new_tokens=12)[0].ended == "stop")
    length = len(expected(prompt, 12))

    (exact,) = Bench().generate(prompt, max_new_tokens=length)

    assert (len(exact.ids), exact.ended) == (length, "stop")


def test_tokens_are_told_after_the_step_that_made_them() -> None:
    bench = Bench()

    (done,) = bench.generate("123", max_new_tokens=5)

    kinds = [type(event).__name__ for event in bench.heard.events if isinstance(event, StepDone | TokensEmitted)]
    assert kinds == ["StepDone", "TokensEmitted"] * len(done.ids)
    emitted = [event for event in bench.heard.events if isinstance(event, TokensEmitted)]
    assert [event.index for event in emitted] == list(range(len(done.ids)))
    assert [event.ids for event in emitted] == [(token,) for token in done.ids]


def test_a_server_that_dies_in_the_middle_changes_no_token() -> None:
    bench = Bench()
    bench.servers[0].will(None, Die)

    (done,) = bench.generate("123", max_new_tokens=6)

    assert done.ids == expected("123", 6)
    assert len(done.ids) > 1
    assert len([event for event in bench.heard.events if isinstance(event, RecoveryDone)]) == 1


def test_beam_search_has_its_text_at_the_end() -> None:
    bench = Bench()

    (done,) = bench.generate("123", max_new_tokens=4, num_beams=2)

    assert bench.heard.pieces.get(0, "") == done.text
    assert not any(isinstance(event, TokensEmitted) for event in bench.heard.events)


def test_a_seed_makes_draws_repeatable_in_each_session_and_in_any_company() -> None:
    drawn = {"max_new_tokens": 9, "temperature": 1.5, "seed": 5}

    together = Bench().generate("21", "12", "1", **drawn)
    alone = [Bench().generate(prompt, **drawn)[0] for prompt in ("1", "12")]

    assert together[2] == alone[0]
    assert alone[1].ids == expected("12", 9, temperature=1.5, seed=5)


def test_every_session_is_closed() -> None:
    bench = Bench()

    bench.generate("1", "12", "21", max_new_tokens=3)

    assert not any(server.open_streams for server in bench.servers)


@pytest.mark.parametrize(("stops", "known"), [(3, {3}), ([3, 4], {3, 4}), (None, {5})])
def test_the_stop_tokens_are_those_of_the_generation_config_else_of_the_model(stops: object, known: set[int]) -> None:
    bench = Bench()
    bench.model.generation_config.eos_token_id = stops

    endings = {bench.generate(prompt, max_new_tokens=30)[0].ids[-1] for prompt in map(str, range(100, 118))}

    assert endings == known


def test_a_model_without_a_stop_goes_on_to_the_limit() -> None:
    bench = Bench()
    bench.model.generation_config.eos_token_id = bench.model.config.eos_token_id = None

    (done,) = bench.generate("109", max_new_tokens=30)

    assert STOP in done.ids[:-1]
    assert (len(done.ids), done.ended) == (30, "length")


# --- failures ---------------------------------------------------------------------------------------------------


def lose_all_after(bench: Bench, requests: int) -> None:
    """Both servers die, at the request after so many."""
    bench.servers[0].will(*[None] * requests, Die)
    bench.servers[1].will(Die)


def test_a_generation_that_fails_says_how_far_it_came() -> None:
    bench = Bench(recover_timeout_s=0.1)
    lose_all_after(bench, 7)

    with pytest.raises(RecoveryFailed) as caught:
        bench.generate("103", max_new_tokens=20)

    came = expected("103", 20)[:7]
    assert str(caught.value).endswith("7 tokens came out before")
    context = json.loads(json.dumps(caught.value.context))
    assert context["accepted"] == [{"index": 0, "ids": list(came), "text": "".join(map(str, came))}]
    assert context["blocks"] == f"0:{BLOCKS}"
    assert bench.heard.pieces == {0: context["accepted"][0]["text"]}


def test_a_generation_that_fails_has_the_prompts_that_were_done_and_those_that_were_begun() -> None:
    bench = Bench(recover_timeout_s=0.1)
    first = expected("103", 20)
    lose_all_after(bench, len(first) + 2)

    with pytest.raises(RecoveryFailed) as caught:
        bench.generate("103", "7", "54321", "1", max_new_tokens=20)

    accepted = {one["index"]: one["ids"] for one in caught.value.context["accepted"]}  # type: ignore[attr-defined]
    assert accepted == {
        0: list(first),
        1: list(expected("7", 20)[:2]),
        3: list(expected("1", 20)[:2]),
    }, "the one of five digits was never begun"
    came = len(accepted[1]) + len(accepted[3])
    assert caught.value.reasons[-1] == f"{came} tokens of 2 sequences came out before"


def test_a_generation_that_fails_before_its_first_token_has_nothing_to_say_of_tokens() -> None:
    bench = Bench(recover_timeout_s=0.1)
    lose_all_after(bench, 0)

    with pytest.raises(RecoveryFailed) as caught:
        bench.generate("103", max_new_tokens=20)

    assert "came out" not in str(caught.value)
    assert caught.value.context["accepted"] == [{"index": 0, "ids": [], "text": ""}]


def test_a_generation_after_one_that_failed_is_as_if_there_had_been_none() -> None:
    bench = Bench(recover_timeout_s=0.1)
    lose_all_after(bench, 4)
    with pytest.raises(RecoveryFailed):
        bench.generate("103", max_new_tokens=20)
    for server in bench.servers:
        server.alive = True

    (done,) = bench.generate("103", max_new_tokens=20)

    assert done.ids == expected("103", 20)


# --- several at once --------------------------------------------------------------------------------------------


def test_generations_in_threads_do_not_disturb_each_other_when_they_all_lose_a_server() -> None:
    bench, at_once = Bench(), 8
    prompts = [f"10{number}" for number in range(at_once)]
    drawn = {"temperature": 1.3, "seed": 4}
    choices = [drawn if number % 2 else {} for number in range(at_once)]
    wanted = [expected(prompt, 12, **choice) for prompt, choice in zip(prompts, choices, strict=True)]
    meeting, lost = threading.Barrier(at_once, timeout=30), threading.Event()

    def generate(number: int) -> tuple[int, ...]:
        def sink(event: Event) -> None:
            if isinstance(event, TokensEmitted) and event.index == 0:
                if meeting.wait() == 0:
                    bench.servers[0].kill()
                    lost.set()
                assert lost.wait(30)

        sampling = Sampling(max_new_tokens=12, **choices[number])
        (done,) = bench.client.generate([prompts[number]], sampling, listener=Listener(sink=sink))
        return done.ids

    with ThreadPoolExecutor(at_once) as pool:
        assert list(pool.map(generate, range(at_once))) == wanted
    assert not any(server.open_streams for server in bench.servers)
    assert {name for name, _ in bench.router.failures} == {"a"}
