"""A conversation over fake servers, with petals' and transformers' own `generate`: what is accepted stands."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from petals.client.remote_generation import _skipped_tokens
from support.fakeswarm import Die, FakeRouter, Hang, servers_of
from support.toymodel import PAD, STOP, Digits, LocalModel, RemoteModel

from swarmctl.blocks import NodeName
from swarmctl.client.conversation import Conversation
from swarmctl.client.generate import Client, Connection, Listener, Sampling
from swarmctl.errors import RecoveryFailed, RequestInvalid
from swarmctl.events import Event, Hop, TokensEmitted
from swarmctl.upstream.generation import Dice

BLOCKS = 3
PROMPT = [1, 0, 3]  # its answer has 17 tokens, the stop included
LONG = Sampling(max_new_tokens=20)
DRAWN = Sampling(max_new_tokens=12, temperature=1.3, top_p=0.95, seed=4)
LOCAL = LocalModel(BLOCKS)


class Bench:
    """A client of servers a and b, which both have all blocks, and what its listener was told."""

    def __init__(self, **limits: Any) -> None:
        self.a, self.b = self.servers = servers_of(f"a=0:{BLOCKS}", f"b=0:{BLOCKS}")
        self.router = FakeRouter(self.servers, BLOCKS)
        self.model = RemoteModel(self.router)
        self.events: list[Event] = []
        self.pieces: list[str] = []
        self.listener = Listener(sink=self.events.append, text=lambda _index, piece: self.pieces.append(piece))
        connection = Connection(
            source="lab/model",
            dht_prefix="lab",
            initial_peers=("/ip4/127.0.0.1",),
            sockets=Path("/run/x"),
            names={peer: NodeName(server.name) for peer, server in self.router.servers.items()},
            recover_timeout_s=0.1,
            **limits,
        )
        opened = SimpleNamespace(model=self.model, tokenizer=Digits(), router=self.router)
        self.client = Client(opened, connection)  # type: ignore[arg-type]

    def talk(self, *, max_length: int = 100, chat: bool = False) -> Any:
        return self.client.conversation(max_length=max_length, listener=self.listener, chat=chat)

    def lose_all_servers_after(self, requests: int) -> None:
        """Both servers die, at the request after so many."""
        self.a.will(*[None] * requests, Die)
        self.b.will(Die)

    def revive(self) -> None:
        for server in self.servers:
            server.alive = True

    @property
    def emitted(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(event.index, event.ids) for event in self.events if isinstance(event, TokensEmitted)]


def alone(ids: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
    """What transformers makes of one sequence, from the whole model, up to the stop."""
    if sampling.seed is not None:
        torch.manual_seed(sampling.seed)
    (new,) = LOCAL.new_ids([ids], **sampling.arguments())
    return tuple(new)


def undisturbed(*calls: tuple[Sequence[Sequence[int]], Sampling]) -> Conversation:
    """The same calls, with servers that nothing happens to."""
    with Bench().talk() as talk:
        for ids, sampling in calls:
            talk.say(ids, sampling)
    return talk


# --- calls that succeed -----------------------------------------------------------------------------------------


def test_each_call_continues_all_that_was_said_and_answered() -> None:
    bench, whole = Bench(), []

    with bench.talk() as talk:
        for ids in (PROMPT, [4], [1, 1, 5], [2]):
            (new,) = talk.say([ids], Sampling(max_new_tokens=7))
            whole += ids
            assert new == alone(whole, Sampling(max_new_tokens=7))
            assert talk.answer == (new,)
            whole += new
            assert talk.tokens == (tuple(whole),)


def test_only_what_no_server_has_seen_is_computed() -> None:
    bench = Bench()

    with bench.talk() as talk:
        talk.say([PROMPT], Sampling(max_new_tokens=3))
        talk.say([[4, 4]], Sampling(max_new_tokens=2))
        talk.resume(Sampling(max_new_tokens=1))

    fed = [tokens for _, tokens in bench.model.batches]
    assert fed == [3, 1, 1, 3, 1, 1], "the last token of an answer is computed with what follows on it"
    assert bench.a.dials == 1


def test_text_is_asked_and_answered() -> None:
    bench = Bench()

    with bench.talk() as talk:
        first = talk.ask("103", LONG)
        pieces = "".join(bench.pieces)
        second = talk.ask("4", LONG)

    assert first.ids == alone(PROMPT, LONG)
    assert second.ids == alone([*PROMPT, *first.ids, 4], LONG)
    assert (first.prompt, first.prompt_tokens, first.ended) == ("103", 3, "stop")
    assert pieces == first.text
    assert "".join(bench.pieces) == first.text + second.text


def test_a_chat_closes_an_answer_that_the_model_has_not_closed_and_no_other() -> None:
    bench = Bench()

    with bench.talk(chat=True) as talk:
        cut = talk.ask("13", Sampling(max_new_tokens=1))
        after_cut = talk.tokens[0]
        ended = talk.ask("24", Sampling(max_new_tokens=30))
        after_ended = talk.tokens[0]
        talk.ask("5", Sampling(max_new_tokens=1))

    assert (cut.ended, ended.ended) == ("length", "stop")
    assert after_cut[:-1] == (6, 1, 3, STOP, 7)
    assert after_ended[len(after_cut) : -len(ended.ids)] == (STOP, 6, 2, 4, STOP, 7)
    assert talk.tokens[0][len(after_ended) : -1] == (6, 5, STOP, 7), "the model has written the stop itself"


def test_beam_search_sees_all_that_is_there_and_the_next_call_its_result() -> None:
    bench, beams = Bench(), Sampling(max_new_tokens=5, num_beams=3)

    streams: set[int] = set()
    bench.listener.request = lambda _hop, _position, _replay: streams.add(len(bench.a.open_streams))

    with bench.talk() as talk:
        (first,) = talk.say([PROMPT], Sampling(max_new_tokens=4))
        (found,) = talk.say([[4]], beams)
        (last,) = talk.say([[2]], Sampling(max_new_tokens=6))

    assert found == alone([*PROMPT, *first, 4], beams)
    assert last == alone([*PROMPT, *first, 4, *found, 2], Sampling(max_new_tokens=6))
    assert streams == {1}, "a search does not share a server's cache with the session before it"
    assert not any(server.open_streams for server in bench.servers)


def test_a_batch_is_one_session_and_shorter_answers_are_filled() -> None:
    bench, prompts = Bench(), [PROMPT, [1, 1, 2], [1, 3, 9]]

    with bench.talk() as talk:
        answers = talk.say(prompts, LONG)
        tokens = talk.tokens
        again = talk.say([[1], [1], [1]], Sampling(max_new_tokens=3))

    assert answers == [alone(prompt, LONG) for prompt in prompts]
    assert len({len(row) for row in tokens}) == 1
    assert tokens[1] == (1, 1, 2, *answers[1], *[PAD] * (len(answers[0]) - len(answers[1])))
    assert again == [alone([*row, 1], Sampling(max_new_tokens=3)) for row in tokens]


@pytest.mark.parametrize(
    "choice", [{"temperature": 1.3}, {"temperature": 4.0, "top_p": 0.4}, {"top_k": 2}, {"top_p": 0.3}], ids=repr
)
def test_a_seed_draws_what_transformers_draws_and_leaves_torchs_own_numbers_alone(choice: dict[str, float]) -> None:
    choices = [Sampling(max_new_tokens=12, seed=seed, **choice) for seed in range(5)]  # type: ignore[arg-type]
    torch.manual_seed(1)
    before = torch.get_rng_state()

    drawn = []
    for sampling in choices:
        with Bench().talk() as talk:
            drawn += talk.say([PROMPT], sampling)

    assert torch.equal(torch.get_rng_state(), before)
    assert drawn == [alone(PROMPT, sampling) for sampling in choices]
    assert len(set(drawn)) > 1


def test_what_a_model_says_of_itself_holds_where_nothing_else_is_asked_for() -> None:
    bench = Bench()
    bench.model.generation_config.top_k = 1

    with bench.talk() as talk:
        (drawn,) = talk.say([PROMPT], Sampling(max_new_tokens=20, temperature=5.0))

    assert drawn == alone(PROMPT, LONG)


def test_without_a_seed_draws_follow_from_torchs_own_numbers_and_go_on_from_call_to_call() -> None:
    free = Sampling(max_new_tokens=3, temperature=2.0)

    def answers(seed: int) -> list[tuple[int, ...]]:
        torch.manual_seed(seed)
        with Bench().talk() as talk:
            return [talk.say([[2]], free)[0] for _ in range(6)]

    assert answers(3) == answers(3)
    assert answers(3) != answers(4)
    assert len(set(answers(3))) > 1, "each call draws other numbers"


def test_top_k_draws_from_the_likeliest_alone() -> None:
    with Bench().talk() as talk:
        (drawn,) = talk.say([PROMPT], Sampling(max_new_tokens=20, temperature=5.0, top_k=1))

    assert drawn == alone(PROMPT, LONG)


# --- calls that are refused -------------------------------------------------------------------------------------


def test_another_batch_size_is_refused_at_once_with_both_sizes_and_the_conversation_goes_on() -> None:
    bench = Bench()

    with bench.talk() as talk:
        talk.say([PROMPT, PROMPT], Sampling(max_new_tokens=2))
        before, asked = talk.tokens, len(bench.a.received)
        with pytest.raises(RequestInvalid, match="a batch of 2, this call has 3") as caught:
            talk.say([[4], [4], [4]], LONG)
        assert caught.value.context == {"opened_with": 2, "got": 3}
        assert (talk.tokens, len(bench.a.received)) == (before, asked)
        assert talk.say([[4], [4]], Sampling(max_new_tokens=2))[0] == alone([*before[0], 4], Sampling(max_new_tokens=2))

    with bench.talk() as other:
        assert other.say([PROMPT] * 3, LONG) == [alone(PROMPT, LONG)] * 3


@pytest.mark.parametrize("ids", [[], [[]], [[1, 2], [1]]], ids=repr)
def test_sequences_without_a_token_or_of_two_lengths_are_refused(ids: list[list[int]]) -> None:
    with Bench().talk() as talk, pytest.raises(RequestInvalid, match="take one length"):
        talk.say(ids, LONG)


def test_more_than_the_conversation_was_opened_for_is_refused_and_adds_nothing() -> None:
    bench = Bench()

    with bench.talk(max_length=10) as talk:
        talk.say([PROMPT], Sampling(max_new_tokens=2))
        with pytest.raises(RequestInvalid, match="5 are there, and 2 more with 4 new ones do not fit"):
            talk.say([[4, 4]], Sampling(max_new_tokens=4))
        with pytest.raises(RequestInvalid, match="5 are there, and 0 more with 6 new ones do not fit"):
            talk.resume(Sampling(max_new_tokens=6))
        assert len(talk.tokens[0]) == 5
        assert len(talk.say([[4, 4]], Sampling(max_new_tokens=3))[0]) == 3


def test_a_conversation_longer_than_the_file_allows_is_not_opened() -> None:
    with (
        pytest.raises(RequestInvalid, match="of 101 tokens is more than the 100"),
        Bench(max_length=100).talk(max_length=101),
    ):
        pass


def test_a_first_call_that_the_servers_refuse_adds_nothing() -> None:
    bench = Bench()
    for server in bench.servers:
        server.max_length = 50

    with bench.talk(max_length=60) as talk:
        with pytest.raises(RequestInvalid, match="longer than the servers allow") as caught:
            talk.say([PROMPT], LONG)
        assert talk.tokens == ()
        assert "accepted" not in caught.value.context


def test_a_later_call_that_the_servers_refuse_adds_nothing_either() -> None:
    bench = Bench()

    with bench.talk() as talk:
        (first,) = talk.say([PROMPT], LONG)
        bench.a.will(KeyError("adapter lab/other not found"))
        with pytest.raises(RequestInvalid, match="do not have this adapter"):
            talk.say([[4]], LONG)
        assert talk.tokens == ((*PROMPT, *first),)
        assert talk.answer == (first,)
        (second,) = talk.say([[2]], LONG)

    assert second == alone([*PROMPT, *first, 2], LONG)


def test_there_is_nothing_to_resume_before_something_was_said() -> None:
    with Bench().talk() as talk, pytest.raises(RequestInvalid, match="nothing was said yet"):
        talk.resume()


def test_a_call_within_a_call_is_refused() -> None:
    bench = Bench()
    refused: list[str] = []

    def interfere(_index: int, _piece: str) -> None:
        with pytest.raises(RequestInvalid, match="in the middle of another call") as caught:
            talk.say([PROMPT], LONG)
        refused.append(str(caught.value))

    bench.listener.text = interfere
    with bench.talk() as talk:
        talk.say([PROMPT], Sampling(max_new_tokens=1))

    assert len(refused) == 1
    assert len(talk.tokens[0]) == 4


def test_a_chat_with_a_model_that_has_no_template_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digits, "chat_template", None)

    with pytest.raises(RequestInvalid, match="no chat template"), Bench().talk(chat=True):
        pass


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


class PressAt:
    """Ctrl-C at the n-th line that a conversation's own code executes."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, kind: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.endswith(("upstream/generation.py", "client/conversation.py", "client/answer.py")):
            return None
        if kind == "line":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self


def test_ctrl_c_at_any_line_of_a_call_loses_no_token_and_doubles_none() -> None:
    prompts = [PROMPT, [1, 1, 2]]
    wanted = undisturbed(([[3], [3]], LONG), (prompts, DRAWN))
    interrupted = 0
    for line in range(0, 10_000, 29):
        with Bench().talk() as talk:
            talk.say([[3], [3]], LONG)
            there = talk.tokens
            tracing = sys.gettrace()
            sys.settrace(PressAt(line))
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


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Programs that were started in the background of a shell ignore SIGINT, and so would Python in these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_ctrl_c_while_a_server_computes_leaves_what_came_out() -> None:
    bench, wanted = Bench(suspect_after_s=60.0, step_timeout_s=60.0), undisturbed(([PROMPT], DRAWN))
    bench.a.will(None, None, None, Hang)
    pressed: list[threading.Timer] = []

    def press(_hop: Hop, position: int, _replay: bool) -> None:
        if position == len(PROMPT) + 2 and not pressed:
            # Not at once: Python misses a signal that comes just before its thread goes to sleep.
            pressed.append(threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)))
            pressed[0].start()

    bench.listener.request = press
    with bench.talk() as talk:
        with pytest.raises(KeyboardInterrupt):
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
