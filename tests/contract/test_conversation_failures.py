"""Calls of a conversation that fail: what was accepted stands, nothing is lost or comes twice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
from petals.client.remote_generation import _skipped_tokens
from support.conversations import DRAWN, LONG, PROMPT, Bench, alone, undisturbed
from support.fakeswarm import Hang
from support.interrupts import PressAt, ctrl_c_interrupts, press_soon

from swarmctl.client.conversation import Conversation
from swarmctl.client.generate import Sampling
from swarmctl.errors import RecoveryFailed
from swarmctl.events import Event, Hop, TokensEmitted
from swarmctl.upstream.generation import Dice

# --- calls that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("steps", [0, 1, 4, 11])
def test_what_came_out_before_all_servers_were_lost_stands_and_the_rest_follows(steps: int, sampling: Sampling) -> None:
    bench, wanted = Bench(), undisturbed(([PROMPT], sampling))

    with bench.talk() as talk:
        bench.lose_all_servers_after(steps)
        with pytest.raises(RecoveryFailed) as caught:
            talk.say([PROMPT], sampling)
        came = talk.answer[0]
        bench.revive()
        (rest,) = talk.resume()

    assert len(came) == steps
    assert (*came, *rest) == wanted.answer[0] == talk.answer[0]
    assert talk.tokens == wanted.tokens
    assert bench.emitted == list(enumerate((token,) for token in wanted.answer[0]))
    assert "".join(bench.pieces) == wanted.texts[0]
    (accepted,) = caught.value.context["accepted"]  # type: ignore[misc]
    assert accepted == {"index": 0, "ids": list(came), "text": "".join(map(str, came))}
    assert (f"{steps} token{'s' if steps > 1 else ''} came out before" in caught.value.reasons) is (steps > 0)


@pytest.mark.parametrize("steps", [0, 3])
def test_what_is_said_next_follows_on_what_came_out_before_the_failure(steps: int) -> None:
    bench = Bench()

    with bench.talk() as talk:
        bench.lose_all_servers_after(steps)
        with pytest.raises(RecoveryFailed):
            talk.say([PROMPT], LONG)
        came = talk.answer[0]
        bench.revive()
        (new,) = talk.say([[4, 2]], LONG)

    assert came == alone(PROMPT, LONG)[:steps]
    assert new == alone([*PROMPT, *came, 4, 2], LONG)


def test_a_later_call_that_fails_is_taken_up_where_it_was() -> None:
    bench = Bench()
    wanted = undisturbed(([PROMPT], LONG), ([[4]], DRAWN), ([[2]], LONG))

    with bench.talk() as talk:
        talk.say([PROMPT], LONG)
        bench.lose_all_servers_after(5)
        with pytest.raises(RecoveryFailed):
            talk.say([[4]], DRAWN)
        with pytest.raises(RecoveryFailed):
            talk.resume()
        bench.revive()
        talk.resume()
        assert talk.resume() == [()], "nothing is owed any more"
        talk.say([[2]], LONG)

    assert talk.tokens == wanted.tokens


def test_sequences_that_had_ended_before_a_failure_stay_as_they_are() -> None:
    prompts = [PROMPT, [1, 1, 2], [1, 3, 9]]
    wanted = undisturbed((prompts, LONG), ([[1], [1], [1]], LONG))
    bench = Bench()

    with bench.talk() as talk:
        bench.lose_all_servers_after(6)
        with pytest.raises(RecoveryFailed) as caught:
            talk.say(prompts, LONG)
        assert [len(ids) for ids in talk.answer] == [6, 2, 4]
        assert "12 tokens of 3 sequences came out before" in caught.value.reasons
        bench.revive()
        rest = talk.resume()
        assert rest[1:] == [(), ()]
        assert talk.say([[1], [1], [1]], LONG) == list(wanted.answer)

    assert talk.tokens == wanted.tokens


def test_an_answer_that_had_ended_when_its_call_failed_owes_nothing() -> None:
    bench = Bench()

    def refuse(_event: Event) -> None:
        if isinstance(_event, TokensEmitted):
            raise BrokenPipeError

    bench.listener.sink = refuse
    with bench.talk() as talk:
        with pytest.raises(BrokenPipeError):
            talk.say([[1, 1, 8]], Sampling(max_new_tokens=1))
        asked = len(bench.a.received)
        assert talk.resume() == [()]
        assert len(bench.a.received) == asked
        assert talk.answer == (alone([1, 1, 8], Sampling(max_new_tokens=1)),)


def test_text_that_another_sequences_listener_kept_from_being_shown_is_made_up_for() -> None:
    bench, shown = Bench(), dict[int, str]()

    def once(index: int, piece: str) -> None:
        first = not shown
        shown[index] = shown.get(index, "") + piece
        if first:
            raise BrokenPipeError

    bench.listener.text = once
    with bench.talk() as talk:
        with pytest.raises(BrokenPipeError):
            talk.say([PROMPT, [1, 2, 1]], Sampling(max_new_tokens=1))
        talk.resume()

    assert [shown[index] for index in (0, 1)] == list(talk.texts)


def fails(bench: Bench, where: str, at: int) -> Callable[[], None]:
    """Let the listener raise at its `at`-th call of one kind, from the returned call on."""
    calls, armed = 0, False

    def once(*_facts: object) -> None:
        nonlocal calls
        calls += armed
        if armed and calls == at:
            raise OSError("the caller's own")

    def sink(event: Event) -> None:
        bench.events.append(event)
        if where == type(event).__name__:
            once()

    def arm() -> None:
        nonlocal armed
        armed = True

    bench.listener.sink = sink
    for name in ("request", "answer", "output", "text"):
        if name == where:
            setattr(bench.listener, name, once)
    return arm


@pytest.mark.parametrize("sampling", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("where", ["request", "answer", "output", "text", "StepDone", "TokensEmitted"])
def test_an_error_of_the_callers_own_loses_no_token_and_doubles_none(where: str, at: int, sampling: Sampling) -> None:
    bench, wanted = Bench(), undisturbed(([[3]], LONG), ([PROMPT], sampling))
    arm = fails(bench, where, at)

    with bench.talk() as talk:
        talk.say([[3]], LONG)
        bench.events.clear()
        arm()
        with pytest.raises(OSError, match="the caller's own"):
            talk.say([PROMPT], sampling)
        assert talk.answer[0] == wanted.answer[0][: len(talk.answer[0])]
        talk.resume()

    assert talk.tokens == wanted.tokens
    assert bench.emitted == list(enumerate((token,) for token in wanted.answer[0]))


class Broken:
    """Calls a function, and raises at the n-th call, before it or after it."""

    def __init__(self, function: Callable[..., Any], *, at: int, after: bool) -> None:
        self._function = function
        self._left = at
        self._after = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise MemoryError
        made = self._function(*args, **kwargs)
        if self._left == 0:
            raise MemoryError
        return made


@pytest.mark.parametrize("sampling", [LONG, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_step_whose_token_did_not_come_to_be_is_done_again(
    at: int, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, wanted = Bench(), undisturbed(([[3]], LONG), ([PROMPT], sampling))

    with bench.talk() as talk:
        talk.say([[3]], LONG)
        with monkeypatch.context() as broken:
            broken.setattr(bench.model, "answer", Broken(bench.model.answer, at=at, after=False))
            with pytest.raises(MemoryError):
                talk.say([PROMPT], sampling)
        assert len(talk.answer[0]) == at - 1
        talk.resume()

    assert talk.tokens == wanted.tokens


@pytest.mark.parametrize("at", [1, 2, 5])
def test_random_numbers_of_a_draw_that_came_to_nothing_are_drawn_again(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = replace(DRAWN, seed=None)
    wanted = undisturbed(([PROMPT], DRAWN))
    wanted_after = undisturbed(([PROMPT], replace(DRAWN, max_new_tokens=at)), ([[4]], go_on))

    def failing(talk: Conversation, at: int) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(Dice, "draw", partialmethod(Broken(Dice.draw, at=at, after=True)))
            with pytest.raises(MemoryError):
                talk.say([PROMPT], DRAWN)

    with Bench().talk() as talk:
        failing(talk, at)
        talk.resume()
        assert talk.tokens == wanted.tokens
    with Bench().talk() as talk:
        failing(talk, at + 1)
        talk.say([[4]], go_on)
        assert talk.tokens == wanted_after.tokens


# A conversation's own code.
OWN = ("upstream/generation.py", "client/conversation.py", "client/answer.py")


def test_ctrl_c_at_any_line_of_a_call_loses_no_token_and_doubles_none() -> None:
    prompts = [PROMPT, [1, 1, 2]]
    wanted = undisturbed(([[3], [3]], LONG), (prompts, DRAWN))
    interrupted = 0
    for line in range(0, 10_000, 29):
        with Bench().talk() as talk:
            talk.say([[3], [3]], LONG)
            there = talk.tokens
            tracing = sys.gettrace()
            sys.settrace(PressAt(line, *OWN))
            try:
                talk.say(prompts, DRAWN)
                sys.settrace(tracing)
                break
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(tracing)
            if talk.tokens == there:
                talk.say(prompts, DRAWN)
            else:
                talk.resume()
            assert talk.tokens == wanted.tokens, f"after line {line}"
    assert interrupted > 20


def test_ctrl_c_while_a_server_computes_leaves_what_came_out() -> None:
    bench, wanted = Bench(suspect_after_s=60.0, step_timeout_s=60.0), undisturbed(([PROMPT], DRAWN))
    bench.a.will(None, None, None, Hang)
    pressed: list[threading.Timer] = []

    def press(_hop: Hop, position: int, _replay: bool) -> None:
        if position == len(PROMPT) + 2 and not pressed:
            pressed.append(press_soon())

    bench.listener.request = press
    with bench.talk() as talk:
        with ctrl_c_interrupts(), pytest.raises(KeyboardInterrupt):
            talk.say([PROMPT], DRAWN)
        assert len(talk.answer[0]) == 3
        talk.resume()

    assert talk.tokens == wanted.tokens


def test_a_beam_search_that_fails_adds_nothing_and_is_begun_again() -> None:
    bench, beams = Bench(), Sampling(max_new_tokens=5, num_beams=3)

    with bench.talk() as talk:
        (first,) = talk.say([PROMPT], Sampling(max_new_tokens=4))
        bench.lose_all_servers_after(2)
        with pytest.raises(RecoveryFailed):
            talk.say([[4]], beams)
        assert talk.answer == ((),)
        bench.revive()
        (found,) = talk.resume()

    assert found == talk.answer[0] == alone([*PROMPT, *first, 4], beams)


def test_a_call_may_be_taken_up_with_another_choice() -> None:
    bench = Bench()

    with bench.talk() as talk:
        bench.lose_all_servers_after(4)
        with pytest.raises(RecoveryFailed):
            talk.say([PROMPT], LONG)
        bench.revive()
        (drawn,) = talk.resume(DRAWN)

    assert drawn == alone([*PROMPT, *alone(PROMPT, LONG)[:4]], DRAWN)


def test_tokens_to_skip_that_a_failed_call_of_petals_left_behind_are_not_skipped() -> None:
    token = _skipped_tokens.set(2)
    try:
        with Bench().talk() as talk:
            (new,) = talk.say([PROMPT], LONG)
        left = _skipped_tokens.get()
    finally:
        _skipped_tokens.reset(token)

    assert new == alone(PROMPT, LONG)
    assert left == 2, "petals' variable is the program's own"


def test_leaving_a_conversation_ends_its_streams_also_by_an_error() -> None:
    bench = Bench()

    with bench.talk() as talk:
        talk.say([PROMPT], LONG)
        assert bench.a.open_streams
    assert not bench.a.open_streams
    assert talk.tokens[0][:3] == tuple(PROMPT), "what is there can still be read"

    with suppress(ZeroDivisionError), bench.talk() as talk:
        talk.say([PROMPT], LONG)
        assert bench.a.open_streams
        raise ZeroDivisionError
    assert not bench.a.open_streams
