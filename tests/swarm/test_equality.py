"""Without a fault, a swarm's tokens are those of transformers alone."""

from __future__ import annotations

import pytest
from support.connected import ConnectedClient
from support.history import check
from support.swarm import NUM_BLOCKS, ON_BOTH

from swarmctl.events import RouteChosen, StepDone

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

PROMPT = "The swarm keeps its blocks on many machines"
OF_ONE_LENGTH = ("the blocks and", "the server is", "a client sends")
OF_SEVERAL_LENGTHS = ("The history", PROMPT, "When a server is lost, another one that holds the same blocks")


@ON_BOTH
def test_greedy_tokens_are_those_of_the_local_model(client: ConnectedClient):
    client.ready()

    history = client.generate(PROMPT, tokens=40)

    assert history.ids == client.locally(PROMPT, tokens=40)
    assert len(set(history.ids[0])) > 10, "a model that repeats itself would hide a wrong cache"
    assert not history.failed
    check(history, num_blocks=NUM_BLOCKS)


@ON_BOTH
def test_prompts_of_one_length_share_a_session_and_keep_their_tokens(client: ConnectedClient):
    client.ready()

    history = client.generate(*OF_ONE_LENGTH)

    assert history.ids == client.locally(*OF_ONE_LENGTH)
    assert {step.batch for step in history.of(StepDone)} == {3}
    check(history, num_blocks=NUM_BLOCKS)


@ON_BOTH
def test_prompts_of_different_lengths_have_sessions_of_their_own(client: ConnectedClient):
    client.ready()

    history = client.generate(*OF_SEVERAL_LENGTHS, tokens=12)

    assert history.ids == client.locally(*OF_SEVERAL_LENGTHS, tokens=12)
    assert len(history.of(RouteChosen)) == 3
    check(history, num_blocks=NUM_BLOCKS)


@ON_BOTH
def test_beam_search_finds_what_the_local_model_finds(client: ConnectedClient):
    client.ready()

    history = client.generate(PROMPT, num_beams=3)

    assert history.ids == client.locally(PROMPT, num_beams=3)
    assert history.ids != client.locally(PROMPT), "greedy search would find this too"
    check(history, num_blocks=NUM_BLOCKS)
