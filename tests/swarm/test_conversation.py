"""Sessions over several calls on real servers: chats that pause, age, fail, and meet each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.connected import ConnectedClient
from support.eventually import eventually
from support.history import History, check
from support.leaks import nothing_left
from support.swarm import CACHE_TOKENS, NUM_BLOCKS, ON_LLAMA

from swarmctl.client.generate import Listener, Sampling
from swarmctl.errors import RecoveryFailed
from swarmctl.events import Event, PeerFailed, RouteChosen, TokensEmitted

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

PROMPT = "The swarm keeps its blocks"


def prompt_of(client: ConnectedClient) -> list[int]:
    return client.client.encode(PROMPT, chat=False)


# --- calls that fail --------------------------------------------------------------------------------------------


@ON_LLAMA
def test_conversation_goes_on_where_a_failed_call_stopped_when_a_server_is_back(client: ConnectedClient):
    client.ready("a", "c", "d")
    client.swarm.kill("d")
    history = History(about="all replicas are lost in a call")
    drawn = Sampling(max_new_tokens=20, temperature=1.1, seed=3)
    hasty = client.limited(recover_timeout_s=1.0)

    with hasty.client.conversation(max_length=64) as undisturbed:
        undisturbed.say([prompt_of(client)], drawn)

    def sink(event: Event) -> None:
        history.events.append(event)
        if isinstance(event, TokensEmitted) and event.index == 7:
            client.swarm.kill("c")

    client.histories.append(history)
    with hasty.client.conversation(max_length=64, listener=Listener(sink=sink)) as talk:
        with pytest.raises(RecoveryFailed, match="no server for blocks 3:6") as caught:
            talk.say([prompt_of(client)], drawn)
        assert talk.answer[0] == undisturbed.answer[0][:8]
        client.ready("c", "d")
        (rest,) = talk.resume()

    assert len(rest) == 12
    assert talk.answer == undisturbed.answer, history.report()
    assert caught.value.reasons[-1] == "8 tokens came out before"


# --- many at once -----------------------------------------------------------------------------------------------


@ON_LLAMA
def test_eight_conversations_that_lose_the_same_server_at_once_all_go_on(client: ConnectedClient):
    client.ready()
    client.steer("a")
    at_once, tokens = 8, 16
    words = ("one", "two", "a", "the", "of", "to", "in", "on")
    prompts = [client.client.encode(f"{PROMPT} {word}", chat=False) for word in words]
    expected = [client.reference.generate(prompt, tokens) for prompt in prompts]
    histories = [History(about=f"conversation {number}") for number in range(at_once)]
    client.histories.extend(histories)
    meeting, killed = threading.Barrier(at_once, timeout=120), threading.Event()

    def talk(number: int) -> tuple[int, ...]:
        def sink(event: Event) -> None:
            histories[number].events.append(event)
            if isinstance(event, TokensEmitted) and event.index == 4:
                if meeting.wait() == 0:
                    client.swarm.kill("a")
                    killed.set()
                assert killed.wait(60)

        with client.client.conversation(max_length=len(prompts[number]) + tokens, listener=Listener(sink=sink)) as talk:
            talk.say([prompts[number]], Sampling(max_new_tokens=tokens // 2))
            talk.resume(Sampling(max_new_tokens=tokens // 2))
            histories[number].ids = talk.answer
            return talk.answer[0]

    with nothing_left(), ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(talk, range(at_once)))

    assert answers == expected
    for history in histories:
        # Where the kill takes seconds it is a pause too, after which the server is dialled once.
        assert {event.hop.node for event in history.of(PeerFailed)} == {"a"}, history.report()
        assert history.of(RouteChosen)[0].route[0].node == "a"
        check(history, num_blocks=NUM_BLOCKS)
    # A server announces what it has left every few seconds.
    eventually(lambda: _assert_nothing_is_held(client, dead="a"), within_s=30)


def _assert_nothing_is_held(client: ConnectedClient, *, dead: str) -> None:
    client.opened.router.refresh(timeout_s=2.0)
    for record in client.opened.router.records():
        name = client.connection.names[record.peer]
        assert name == dead or record.cache_room == CACHE_TOKENS * len(record.blocks), f"{name}: {record.cache_room}"
