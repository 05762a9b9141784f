"""A conversation over fake servers, with petals' and transformers' own `generate`: what is accepted stands."""

from __future__ import annotations

import pytest
import torch
from support.conversations import LONG, PROMPT, Bench, alone
from support.toymodel import PAD, STOP, Digits

from swarmctl.client.generate import Sampling
from swarmctl.errors import RequestInvalid

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
