"""`Client.generate` around a model that steps its session as transformers does: grouping, text, tokens, endings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fakeswarm import HIDDEN, Die, FakeRouter, servers_of

from swarmctl.blocks import NodeName
from swarmctl.client.generate import Client, Connection, Generation, Listener, Sampling
from swarmctl.errors import RequestInvalid
from swarmctl.events import Event, RecoveryDone, StepDone, TokensEmitted
from swarmctl.spec import ClientSpec
from swarmctl.upstream.legs import SessionSettings

STOP, PAD = 0, 9


class Digits:
    """A tokenizer of digits; 0 is the stop, which has no text."""

    pad_token_id = PAD
    chat_template = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        assert add_special_tokens
        return SimpleNamespace(input_ids=[int(letter) for letter in text])

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(str(token) for token in ids if token != STOP)


@dataclass
class Greedy:
    """What petals' model does with a session, streamer and limits; the next token is a digit of the last answer."""

    generation_config: Any = field(default_factory=lambda: SimpleNamespace(eos_token_id=STOP))
    batches: list[torch.Tensor] = field(default_factory=list)
    config: Any = field(default_factory=lambda: SimpleNamespace(eos_token_id=5))
    seeds: list[float] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def generate(
        self,
        inputs: torch.Tensor,
        *,
        session: Any,
        attention_mask: torch.Tensor,
        streamer: Any,
        max_new_tokens: int,
        eos_token_id: list[int],
        pad_token_id: int,
        do_sample: bool,
        num_beams: int = 1,
    ) -> torch.Tensor:
        assert bool(attention_mask.all())
        assert (streamer is None) == (num_beams > 1)
        self.batches.append(inputs)
        self.stops = eos_token_id
        self.seeds.append(float(torch.rand(())))
        whole, new = inputs, inputs
        ended = torch.zeros(len(inputs), dtype=torch.bool)
        if streamer is not None:
            streamer.put(inputs)
        for _ in range(max_new_tokens):
            hidden = new.double().unsqueeze(2).expand(-1, -1, HIDDEN)
            token = session.step(hidden)[:, -1, 0].long() % 8
            token = torch.where(ended, pad_token_id, token)
            ended |= torch.isin(token, torch.tensor(eos_token_id))
            whole, new = torch.cat([whole, token[:, None]], dim=1), token[:, None]
            if streamer is not None:
                streamer.put(token)
            if bool(ended.all()):
                break
        return whole


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

    def __init__(self, *, max_length: int | None = None) -> None:
        self.servers = servers_of("a=0:3", "b=0:3")
        self.router = FakeRouter(self.servers, 3)
        self.model = Greedy()
        self.heard = Heard()
        connection = Connection(
            source="lab/model",
            dht_prefix="lab",
            initial_peers=("/ip4/127.0.0.1",),
            sockets=Path("/run/x"),
            names={peer: NodeName(server.name) for peer, server in self.router.servers.items()},
            max_length=max_length,
        )
        opened = SimpleNamespace(model=self.model, tokenizer=Digits(), router=self.router)
        self.client = Client(opened, connection)  # type: ignore[arg-type]

    def generate(self, *prompts: str, **sampling: Any) -> tuple[Generation, ...]:
        return self.client.generate(prompts, Sampling(**sampling), listener=self.heard.listener)


def expected(prompt: str, count: int) -> list[int]:
    """The tokens of one prompt on its own, up to the stop."""
    (alone,) = Bench().generate(prompt, max_new_tokens=count)
    return list(alone.ids)


def test_prompts_of_different_lengths_come_back_in_their_order_and_equal_those_generated_alone() -> None:
    prompts = ("12345", "7", "54321", "3", "123")
    bench = Bench()

    done = bench.generate(*prompts, max_new_tokens=6)

    assert [generation.prompt for generation in done] == list(prompts)
    assert [list(generation.ids) for generation in done] == [expected(prompt, 6) for prompt in prompts]
    assert sorted(tuple(batch.shape) for batch in bench.model.batches) == [(1, 3), (2, 1), (2, 5)]
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

    assert list(done.ids) == expected("123", 6)
    assert len(done.ids) > 1
    assert len([event for event in bench.heard.events if isinstance(event, RecoveryDone)]) == 1


def test_beam_search_has_its_text_at_the_end() -> None:
    bench = Bench()

    (done,) = bench.generate("123", max_new_tokens=4, num_beams=2)

    assert bench.heard.pieces.get(0, "") == done.text
    assert not any(isinstance(event, TokensEmitted) for event in bench.heard.events)


def test_a_seed_makes_draws_repeatable_and_is_set_for_each_session() -> None:
    bench = Bench()

    bench.generate("1", "12", max_new_tokens=1, seed=5)

    assert bench.model.seeds[0] == bench.model.seeds[1]


def test_every_session_is_closed() -> None:
    bench = Bench()

    bench.generate("1", "12", "21", max_new_tokens=3)

    assert not any(server.open_streams for server in bench.servers)


@pytest.mark.parametrize(("stops", "known"), [(3, {3}), ([3, 4], {3, 4}), (None, {5})])
def test_the_stop_tokens_are_those_of_the_generation_config_else_of_the_model(stops: object, known: set[int]) -> None:
    bench = Bench()
    bench.model.generation_config.eos_token_id = stops

    bench.generate("12", max_new_tokens=1)

    assert set(bench.model.stops) == known
