"""How the next token is chosen, and what of a prompt reaches the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarmctl.client.generate import Client, Connection, Sampling
from swarmctl.errors import ExitCode, RequestInvalid


@pytest.mark.parametrize(
    ("sampling", "arguments"),
    [
        (Sampling(), {"max_new_tokens": 64, "do_sample": False}),
        (Sampling(max_new_tokens=1, seed=7), {"max_new_tokens": 1, "do_sample": False}),
        (Sampling(temperature=0.7), {"max_new_tokens": 64, "do_sample": True, "temperature": 0.7}),
        (Sampling(top_p=0.9), {"max_new_tokens": 64, "do_sample": True, "top_p": 0.9}),
        (Sampling(top_k=5), {"max_new_tokens": 64, "do_sample": True, "top_k": 5}),
        (
            Sampling(max_new_tokens=9, temperature=1.5, top_p=1.0, top_k=1),
            {"max_new_tokens": 9, "do_sample": True, "temperature": 1.5, "top_p": 1.0, "top_k": 1},
        ),
        (Sampling(num_beams=4), {"max_new_tokens": 64, "do_sample": False, "num_beams": 4}),
    ],
    ids=repr,
)
def test_a_choice_becomes_the_arguments_of_generate(sampling: Sampling, arguments: dict[str, Any]) -> None:
    assert sampling.arguments() == arguments
    assert sampling.samples is arguments["do_sample"]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"max_new_tokens": -3}, "max_new_tokens is -3"),
        ({"temperature": 0.0}, "leave it out for greedy"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"temperature": math.nan}, "temperature must be above 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"num_beams": 0}, "num_beams must be at least 1"),
        ({"num_beams": 2, "temperature": 0.5}, "beam search is greedy"),
        ({"num_beams": 2, "top_k": 3}, "beam search is greedy"),
    ],
    ids=repr,
)
def test_a_choice_that_no_model_can_follow_is_the_callers_mistake(choice: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestInvalid, match=says) as caught:
        Sampling(**choice)

    assert caught.value.exit_code is ExitCode.USAGE


@dataclass
class Words:
    """A tokenizer of whole words, which begins every text with token 1; a chat template writes its own."""

    chat_template: str | None = None
    pad_token_id: int | None = None
    seen: list[str] = field(default_factory=list)

    def __call__(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        self.seen.append(text)
        return SimpleNamespace(input_ids=[1] * add_special_tokens + [len(word) for word in text.split()])

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        return " ".join(f"<s> {message['role']} {message['content']}" for message in messages)


def a_client(tokenizer: object) -> Client:
    connection = Connection(
        source="lab/model", dht_prefix="lab", initial_peers=("/ip4/127.0.0.1",), sockets=Path("/run/x"), names={}
    )
    settings = SimpleNamespace(eos_token_id=2)
    model = SimpleNamespace(generation_config=settings, config=settings)
    return Client(SimpleNamespace(tokenizer=tokenizer, model=model), connection)  # type: ignore[arg-type]


def test_a_prompt_is_encoded_with_the_models_first_token() -> None:
    assert a_client(Words()).encode("to be or", chat=False) == [1, 2, 2, 2]


def test_a_chat_is_put_into_the_models_template_whose_first_token_does_not_come_twice() -> None:
    tokenizer = Words(chat_template="yes")

    assert a_client(tokenizer).encode("hello", chat=True) == [3, 4, 5]
    assert tokenizer.seen == ["<s> user hello"]


def test_a_chat_with_a_model_that_has_no_template_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="lab/model has no chat template") as caught:
        a_client(Words()).encode("hello", chat=True)

    assert caught.value.hints == ("leave --chat out to continue plain text",)


def test_a_prompt_without_a_single_token_is_refused() -> None:
    class Bare(Words):
        def __call__(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
            return SimpleNamespace(input_ids=[len(word) for word in text.split()])

    with pytest.raises(RequestInvalid, match="the prompt is empty"):
        a_client(Bare()).encode("", chat=False)
