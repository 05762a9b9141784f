"""Servers are killed under a generation, and its tokens stay those of an undisturbed one.

Each test names the servers that it needs; they are started only if one of them is missing, so that the tests of this
file share what earlier ones have left standing, and each of them also runs alone.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch
from support.connected import ConnectedClient, Strike
from support.history import History, check
from support.swarm import NUM_BLOCKS, ON_BOTH, ON_LLAMA

from swarmctl.errors import ExitCode, RecoveryFailed
from swarmctl.events import Event, Hop, PeerFailed, RecoveryDone, RouteChosen, StepDone, WaitingForPeers
from swarmctl.snapshot import NodeState

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

PROMPT = "The swarm keeps its blocks on many machines"
OF_ONE_LENGTH = ("the blocks and", "the server is", "a client sends")
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
    client.steer("a")

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
def test_beam_search_finds_the_same_when_the_last_span_is_killed_in_mid_step(client: ConnectedClient):
    client.ready("b1", "b2", "c", "d")
    strike = Strike(client.swarm, lambda hop, position, _replay: hop.blocks.end == NUM_BLOCKS and position >= 20)

    history = client.generate(PROMPT, num_beams=3, request=strike)

    assert history.ids == client.locally(PROMPT, num_beams=3)
    (heir,) = {"c", "d"} - {strike.victim}
    assert history.routes[-1][-1] == f"{heir} 3:6"
    assert_survived(client, history, strike.victim)


@ON_LLAMA
def test_sampling_with_a_seed_draws_the_same_tokens_when_a_server_dies_between_two_steps(client: ConnectedClient):
    client.ready()
    chosen = {"temperature": 0.8, "top_p": 0.9, "seed": 7}

    undisturbed = client.generate(PROMPT, **chosen)
    other_seed = client.generate(PROMPT, **{**chosen, "seed": 8})
    client.steer("a")
    killed = client.generate(PROMPT, between={10: lambda: client.swarm.kill("a")}, **chosen)

    assert killed.ids == undisturbed.ids
    assert other_seed.ids != undisturbed.ids
    assert undisturbed.ids != client.locally(PROMPT)
    (failure,) = killed.of(PeerFailed)
    assert failure.position == PROMPT_TOKENS + 9, "the step after the kill is the one that meets it"
    assert_survived(client, killed, "a")


@ON_LLAMA
def test_unmodified_program_recovers_in_a_session_of_petals_own(client: ConnectedClient):
    client.ready("b1", "b2", "c", "d")
    model, ids = client.opened.model, client.client.encode(PROMPT, chat=False)

    with torch.inference_mode(), model.inference_session(max_length=64) as session:
        model.generate(torch.tensor([ids]), max_new_tokens=8, session=session, do_sample=False)
        last = session.route[-1].peer
        client.swarm.kill(client.connection.names[last])
        model.generate(max_new_tokens=8, session=session, do_sample=False)
        heir, output = session.route[-1].peer, session.output_ids

    assert tuple(output[0, len(ids) :].tolist()) == client.locally(PROMPT, tokens=16)[0]
    assert heir != last


@ON_LLAMA
def test_second_server_killed_while_the_first_is_being_replaced(client: ConnectedClient):
    client.ready()
    client.steer("a")
    first = Strike(client.swarm, lambda hop, position, _replay: hop.node == "a" and position >= 20)
    second = Strike(
        client.swarm,
        lambda hop, _position, replay: replay and hop.node == "b1",
        whom=lambda: client.histories[-1].of(RouteChosen)[0].route[-1].node,
    )

    def request(hop: Hop, position: int, replay: bool) -> None:
        first(hop, position, replay)
        second(hop, position, replay)

    history = client.limited(replay_chunk_tokens=8).generate(PROMPT, request=request)

    assert history.ids == client.locally(PROMPT)
    (recovery,) = history.of(RecoveryDone)
    assert len(recovery.failed) == 2
    assert {chunks for _, _, chunks in history.replays} == {3}, "a replay goes in pieces of bounded size"
    assert_survived(client, history, "a", second.victim)


@ON_LLAMA
def test_replacement_fails_when_the_original_is_back(client: ConnectedClient):
    client.ready("a", "b1", "b2", "c")
    client.steer("a")

    history = client.generate(PROMPT, tokens=30, kills=("a@6", "b1@20"), between={13: lambda: client.ready("a")})

    assert history.ids == client.locally(PROMPT, tokens=30)
    assert history.failed == ("a", "b1")
    assert history.routes[1][:2] == ("b1 0:2", "b2 2:3")
    assert history.routes[2][:2] == ("a 0:2", "b2 2:3")
    assert_survived(client, history, "a", "b1")


@ON_LLAMA
def test_batch_of_three_and_a_longer_prompt_go_on_when_a_server_dies(client: ConnectedClient):
    client.ready("a", "c", "d")

    history = client.generate(*OF_ONE_LENGTH, PROMPT, kills=("last@10",))

    assert history.ids == client.locally(*OF_ONE_LENGTH, PROMPT)
    assert {step.batch for step in history.of(StepDone)} == {3, 1}
    assert_survived(client, history, *history.killed)


@ON_LLAMA
def test_session_goes_on_when_the_only_server_comes_back_in_time(client: ConnectedClient):
    client.ready("a", "c")
    last = only_one_serves_the_end(client)
    starting: list[threading.Thread] = []

    def restart(event: Event) -> None:
        if isinstance(event, WaitingForPeers) and not starting:
            client.swarm.await_death(last)
            starting.append(threading.Thread(target=client.swarm.up, args=(last,)))
            starting[0].start()

    patient = client.limited(recover_timeout_s=150)
    history = patient.generate(PROMPT, kills=("last@10",), on_event=restart)
    starting[0].join(60)

    assert history.ids == client.locally(PROMPT)
    assert history.waited
    assert_survived(client, history, last)


@ON_LLAMA
def test_recovery_fails_in_time_and_names_the_blocks_when_every_replica_is_dead(client: ConnectedClient):
    client.ready("a", "c")
    last = only_one_serves_the_end(client)
    hasty = client.limited(recover_timeout_s=3)
    began = time.monotonic()

    with pytest.raises(RecoveryFailed, match="no server for blocks 3:6") as caught:
        hasty.generate(PROMPT, kills=("last@10",))

    assert time.monotonic() - began < 15
    (failure,) = client.histories[-1].of(PeerFailed)[:1]
    assert failure.hop.node == last
    assert caught.value.context["blocks"] == "3:6"
    assert caught.value.context["position"] == failure.position
    assert f"{last}: lost" in caught.value.reasons
    check(client.histories[-1], num_blocks=NUM_BLOCKS)


@ON_LLAMA
def test_generate_command_ends_with_4_when_blocks_have_no_server(client: ConnectedClient):
    client.ready("a")
    swarm = client.swarm
    swarm.kill(*(name for name in ("c", "d") if swarm.states()[name] is NodeState.ONLINE))

    done = swarm.program(
        *("-m", "swarmctl_cli", "generate", PROMPT, "--recover-timeout", "2s", "-o", "json"), within_s=100
    )

    assert done.code == ExitCode.CHECK_NEGATIVE, done.err
    assert done.document["error"]["context"]["blocks"] == "3:6"
    assert "no server for blocks 3:6" in done.err
    assert "Traceback" not in done.err
