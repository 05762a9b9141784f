"""Sessions over several calls on real servers: chats that pause, age, fail, and meet each other."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.connected import ConnectedClient, connected_client
from support.eventually import eventually
from support.history import History, check
from support.leaks import nothing_left
from support.swarm import NUM_BLOCKS, ON_LLAMA, LiveSwarm, live_swarm

from swarmctl.blocks import NodeName
from swarmctl.client.conversation import Conversation
from swarmctl.client.generate import Listener, Sampling
from swarmctl.errors import RecoveryFailed
from swarmctl.events import Event, PeerFailed, RouteChanged, RouteChosen, TokensEmitted
from swarmctl.upstream.failures import IDLE_S

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]

PROMPT = "The swarm keeps its blocks"
STOCK_CHAT = Path(__file__).with_name("stock_chat.py")
STEP_TIMEOUT_S, SESSION_TIMEOUT_S = 4.0, 10.0


@pytest.fixture(scope="module")
def brief() -> Iterator[LiveSwarm]:
    """Server s ends a stream that is idle for four seconds or ten seconds old; t has all blocks too, and does not."""
    limits = f"step_timeout: {STEP_TIMEOUT_S:.0f}s, session_timeout: {SESSION_TIMEOUT_S:.0f}s"
    with live_swarm("llama", {"s": "0:6", "t": "0:6"}, settings={"s": limits}, log=sys.stderr.write) as live:
        yield live


@pytest.fixture(scope="module")
def chatting(brief: LiveSwarm) -> Iterator[ConnectedClient]:
    """A client of `brief`."""
    with connected_client(brief) as client:
        yield client


def conversation(client: ConnectedClient, history: History, *, max_length: int = 200):
    client.histories.append(history)
    return client.client.conversation(max_length=max_length, listener=Listener(sink=history.events.append))


def prompt_of(client: ConnectedClient) -> list[int]:
    return client.client.encode(PROMPT, chat=False)


def assert_undisturbed(client: ConnectedClient, talk: Conversation, history: History) -> None:
    """The answer is that of transformers alone, and so are the events of a call and of those that finished it."""
    (answer,) = talk.answer
    assert answer == client.reference.generate(prompt_of(client), len(answer)), history.report()
    history.ids = talk.answer
    check(history, num_blocks=NUM_BLOCKS)


def prefer_s(client: ConnectedClient) -> None:
    client.ready()
    client.steer("s")


# --- servers that end streams -----------------------------------------------------------------------------------


def test_server_that_ended_an_idle_stream_is_asked_again_and_not_banned(chatting: ConnectedClient):
    prefer_s(chatting)
    history = History(about="a pause longer than step_timeout")

    with conversation(chatting, history) as talk:
        talk.say([prompt_of(chatting)], Sampling(max_new_tokens=6))
        for _ in range(2):
            # Idleness is what is tried here; there is nothing to wait for.
            time.sleep(STEP_TIMEOUT_S + 1.5)
            began = time.monotonic()
            talk.resume(Sampling(max_new_tokens=6))
            assert time.monotonic() - began < 3

    assert [(event.hop.node, event.kind) for event in history.of(PeerFailed)] == [("s", "expired")] * 2
    assert [route[0] for route in history.routes] == ["s 0:6"]
    assert "s" not in chatting.banned()
    assert_undisturbed(chatting, talk, history)


@pytest.mark.parametrize("pause_s", [0.02, 1.0], ids=["in the middle of a step", "between two steps"])
def test_server_that_ended_an_old_session_is_asked_again_and_not_banned(chatting: ConnectedClient, pause_s: float):
    prefer_s(chatting)
    history = History(about="a life longer than session_timeout")
    began = time.monotonic()

    with conversation(chatting, history, max_length=256) as talk:
        talk.say([prompt_of(chatting)], Sampling(max_new_tokens=2))
        while not history.of(PeerFailed):
            assert time.monotonic() - began < 3 * SESSION_TIMEOUT_S, history.report()
            time.sleep(pause_s)
            # A quick machine makes fifty tokens a second, and the session has room for so many.
            talk.resume(Sampling(max_new_tokens=1))
            time.sleep(max(0.0, 0.1 - pause_s))
        talk.resume(Sampling(max_new_tokens=4))

    assert [(event.hop.node, event.kind) for event in history.of(PeerFailed)] == [("s", "expired")]
    assert [route[0] for route in history.routes] == ["s 0:6"]
    assert "s" not in chatting.banned()
    assert_undisturbed(chatting, talk, history)


def test_server_that_came_back_empty_between_two_calls_is_fed_again(chatting: ConnectedClient):
    prefer_s(chatting)
    history = History(about="a restart between two calls")

    with conversation(chatting, history) as talk:
        talk.say([prompt_of(chatting)], Sampling(max_new_tokens=6))
        chatting.swarm.kill("s")
        chatting.swarm.await_death("s")
        chatting.ready("s")
        talk.resume(Sampling(max_new_tokens=6))

    assert [(event.hop.node, event.kind) for event in history.of(PeerFailed)] == [("s", "expired")]
    assert [(node, tokens) for node, tokens, _ in history.replays] == [("s", len(prompt_of(chatting)) + 5)]
    assert_undisturbed(chatting, talk, history)


def test_server_that_died_in_a_pause_costs_no_more_than_a_refused_dial(chatting: ConnectedClient):
    prefer_s(chatting)
    history = History(about="a death in a pause")

    with conversation(chatting, history) as talk:
        talk.say([prompt_of(chatting)], Sampling(max_new_tokens=6))
        chatting.swarm.kill("s")
        chatting.swarm.await_death("s")
        time.sleep(IDLE_S)
        talk.resume(Sampling(max_new_tokens=6))

    kinds = [(event.hop.node, event.kind) for event in history.of(PeerFailed)]
    assert kinds == [("s", "expired"), ("s", "lost")]
    assert history.of(PeerFailed)[1].detect_ms < 1_000
    assert history.of(RouteChanged)[-1].now[0].node == "t"
    assert_undisturbed(chatting, talk, history)


def test_stock_client_goes_wrong_after_a_failed_call_and_fails_after_a_pause(chatting: ConnectedClient):
    """The negative control; one server is left, so that petals cannot go to another."""
    chatting.ready("s")
    if chatting.swarm.states()[NodeName("t")].value == "ONLINE":
        chatting.swarm.kill("t")
    length = len(prompt_of(chatting))
    expected = list(chatting.reference.generate(prompt_of(chatting), 12))

    done = chatting.swarm.program(str(STOCK_CHAT), str(chatting.swarm.site.spec.path), PROMPT, within_s=150)

    said = json.loads(done.out)
    assert said["failed"].startswith("BrokenPipeError"), done.err
    assert (said["known"], said["position"]) == (4, 7), "its ids stay behind its servers' caches"
    assert len(said["next"]) == 4
    assert said["next"] not in (expected[4:8], expected[8:12]), "and it feeds a token that is not the last one"
    assert said["new_session"] is not None, f"tokens to skip are left behind; the prompt has {length}"
    assert "Broken input cache" in said["paused"]


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
        assert [event.hop.node for event in history.of(PeerFailed)] == ["a"], history.report()
        assert history.of(RouteChosen)[0].route[0].node == "a"
        check(history, num_blocks=NUM_BLOCKS)
    eventually(lambda: _assert_servers_let_go(client), within_s=20)


def _assert_servers_let_go(client: ConnectedClient) -> None:
    client.opened.router.refresh(timeout_s=2.0)
    rooms = {client.connection.names[record.peer]: record.cache_room for record in client.opened.router.records()}
    print(rooms)
