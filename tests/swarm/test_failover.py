"""Servers are killed under a generation, and its tokens stay those of an undisturbed one.

Each test names the servers that it needs; they are started only if one of them is missing, so that the tests of this
file share what earlier ones have left standing, and each of them also runs alone.
"""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch
from support.eventually import eventually
from support.history import History, check
from support.swarm import NUM_BLOCKS, ON_BOTH, ON_LLAMA, ConnectedClient, Strike

from swarmctl.errors import ExitCode, RecoveryFailed
from swarmctl.events import Event, PeerFailed, RecoveryDone, RouteChanged, WaitingForPeers
from swarmctl.snapshot import NodeState

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

PROMPT = "The swarm keeps its blocks on many machines"
OF_ONE_LENGTH = ("the blocks and", "the server is", "a client sends")
OF_SEVERAL_LENGTHS = ("The history", PROMPT)
PROMPT_TOKENS = 12


def assert_survived(client: ConnectedClient, history: History, *killed: str) -> None:
    """Nothing was lost, only the dead are blamed, and the healthy are not banned."""
    dead = {name for name, state in client.swarm.states().items() if state is not NodeState.ONLINE}
    assert set(killed) <= set(history.failed), history.report()
    assert set(history.failed) <= dead | set(killed), history.report()
    assert client.banned() <= dead | set(killed)
    assert history.of(RecoveryDone), history.report()
    check(history, num_blocks=NUM_BLOCKS)


def only_one_serves_the_end(client: ConnectedClient) -> str:
    """Leave one server of blocks 3:6, and return which."""
    states = client.swarm.states()
    up = [name for name in ("c", "d") if states[name] is NodeState.ONLINE]
    for spare in up[1:]:
        client.swarm.kill(spare)
    return up[0]


@ON_BOTH
def test_first_span_killed_in_mid_step_is_taken_over_by_two_servers(client: ConnectedClient):
    client.ready()

    history = client.generate(PROMPT, tokens=30, kills=("first@10",))

    assert history.ids == client.locally(PROMPT, tokens=30)
    assert history.routes[0][0] == "a 0:3"
    assert history.routes[-1][:2] == ("b1 0:2", "b2 2:3")
    (failure,) = history.of(PeerFailed)
    assert (failure.hop.node, failure.kind, failure.in_flight) == ("a", "lost", True)
    assert [(node, chunks) for node, _, chunks in history.replays] == [("b1", 1), ("b2", 1)]
    assert {tokens for _, tokens, _ in history.replays} == {failure.position}
    assert_survived(client, history, "a")


@ON_BOTH
def test_last_span_killed_in_mid_step_leaves_a_batch_of_three_unharmed(client: ConnectedClient):
    client.ready("b1", "b2", "c", "d")

    history = client.generate(*OF_ONE_LENGTH, kills=("last@10",))

    assert history.ids == client.locally(*OF_ONE_LENGTH)
    (victim,) = history.killed
    (heir,) = {"c", "d"} - {victim}
    assert history.routes[-1][-1] == f"{heir} 3:6"
    assert_survived(client, history, victim)


@ON_BOTH
def test_beam_search_finds_the_same_when_a_server_dies(client: ConnectedClient):
    client.ready("a", "b1", "b2", "c")
    strike = Strike(client.swarm, lambda hop, position, replay: hop.blocks.start == 0 and position >= 20)

    history = client.generate(PROMPT, num_beams=3, request=strike)

    assert history.ids == client.locally(PROMPT, num_beams=3)
    assert_survived(client, history, "a")


@ON_LLAMA
def test_sampling_with_a_seed_draws_the_same_tokens_when_a_server_dies(client: ConnectedClient):
    client.ready("b1", "b2", "c", "d")
    chosen = {"temperature": 0.8, "top_p": 0.9, "seed": 7}

    undisturbed = client.generate(PROMPT, **chosen)
    killed = client.generate(PROMPT, kills=("last@9",), **chosen)
    other_seed = client.generate(PROMPT, **{**chosen, "seed": 8})

    assert killed.ids == undisturbed.ids
    assert other_seed.ids != undisturbed.ids
    assert undisturbed.ids != client.locally(PROMPT)
    assert_survived(client, killed, *killed.killed)


@ON_LLAMA
def test_server_killed_between_two_steps_is_replaced_in_the_next(client: ConnectedClient):
    client.ready()

    history = client.generate(PROMPT, between={10: lambda: client.swarm.kill("a")})

    assert history.ids == client.locally(PROMPT)
    (failure,) = history.of(PeerFailed)
    assert failure.position == PROMPT_TOKENS + 9
    assert_survived(client, history, "a")


@ON_LLAMA
def test_unmodified_program_recovers_in_a_session_of_petals_own(client: ConnectedClient):
    client.ready("b1", "b2", "c", "d")
    model, ids = client.opened.model, client.client.encode(PROMPT, chat=False)

    with torch.inference_mode(), model.inference_session(max_length=64) as session:
        output = model.generate(torch.tensor([ids]), max_new_tokens=8, session=session, do_sample=False)
        last = session.route[-1].peer
        client.swarm.kill(client.connection.names[last])
        output = model.generate(max_new_tokens=8, session=session, do_sample=False)
        heir = session.route[-1].peer

    assert tuple(output[0, len(ids) :].tolist()) == client.locally(PROMPT, tokens=16)[0]
    assert heir != last


@ON_LLAMA
def test_second_server_killed_while_the_first_is_being_replaced(client: ConnectedClient):
    client.ready()
    first = Strike(client.swarm, lambda hop, position, replay: hop.node == "a" and position >= 20)
    second = Strike(client.swarm, lambda hop, _position, replay: hop.blocks.end == NUM_BLOCKS and first.victim)
    careful = client.limited(replay_chunk_tokens=8)

    def request(hop, position, replay):
        first(hop, position, replay)
        if replay and hop.node == "b1":
            # In the middle of the first recovery: the last span is fed next, with its new token in flight or lost.
            second.victim = second.victim or kill_last(client)

    history = careful.generate(PROMPT, request=request)

    assert history.ids == client.locally(PROMPT)
    (done,) = history.of(RecoveryDone)
    assert len(done.failed) == 2
    assert {chunks for _, _, chunks in history.replays} == {3}
    assert_survived(client, history, "a", second.victim)
