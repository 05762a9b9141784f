"""What clients say in a cell of `verify recovery`."""

from __future__ import annotations

import pytest

from swarmctl.matrix import Traffic
from swarmctl.operations.trials.traffic import Script, scripts

LIMIT = 64


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def said(traffic: Traffic) -> tuple[Script, ...]:
    return scripts(traffic, encode, max_batch_tokens=LIMIT)


@pytest.mark.parametrize("traffic", Traffic)
def test_sequences_of_a_turn_have_one_length_and_differ(traffic: Traffic):
    for script in said(traffic):
        for turn in script.turns:
            assert len(turn.ids) == script.batch
            assert len({len(ids) for ids in turn.ids}) == 1
            assert len(set(turn.ids)) == len(turn.ids)


@pytest.mark.parametrize("traffic", Traffic)
def test_session_has_room_for_all_that_is_said_and_chosen(traffic: Traffic):
    for script in said(traffic):
        said_tokens = sum(len(turn.ids[0]) for turn in script.turns)
        assert script.max_length == said_tokens + sum(turn.sampling.max_new_tokens for turn in script.turns)


@pytest.mark.parametrize("traffic", Traffic)
def test_same_words_make_the_same_scripts(traffic: Traffic):
    assert said(traffic) == said(traffic)


def test_a_tokenizer_that_makes_few_tokens_of_the_text_is_enough():
    (script,) = scripts(Traffic.LONG, lambda _text: [1, 2, 3, 4, 5], max_batch_tokens=LIMIT)

    assert len(script.turns[0].ids[0]) * script.batch > LIMIT
    assert len(set(script.turns[0].ids)) == script.batch


def test_batches_of_one_two_and_ten_follow_each_other():
    assert [script.batch for script in said(Traffic.BATCHES)] == [1, 2, 10]


def test_long_history_is_more_than_a_server_takes_at_once_before_the_first_new_token():
    (script,) = said(Traffic.LONG)

    assert script.batch > 1
    assert script.batch * len(script.turns[0].ids[0]) > LIMIT


def test_pieces_are_of_several_tokens_and_a_free_end_follows():
    (script,) = said(Traffic.SEVERAL)
    _prompt, *pieces, end = script.turns

    assert {len(turn.ids[0]) for turn in pieces} == {3}
    assert {turn.sampling.max_new_tokens for turn in pieces} == {1}
    assert end.sampling.max_new_tokens > 1


def test_chat_says_something_else_in_each_call():
    (script,) = said(Traffic.CHAT)

    assert len(script.turns) > 2
    assert len({turn.ids for turn in script.turns}) == len(script.turns)


def test_crowd_is_eight_sessions_with_prompts_of_their_own():
    crowd = said(Traffic.CROWD)

    assert len(crowd) == 8
    assert len({script.turns[0].ids for script in crowd}) == 8


def test_only_what_transformers_can_do_alone_is_compared_with_it():
    without = {traffic for traffic in Traffic if not all(script.has_local for script in said(traffic))}

    assert without == {Traffic.PROMPTS, Traffic.SAMPLING}


def test_only_the_likeliest_token_has_a_margin():
    without = {traffic for traffic in Traffic if not all(script.has_margins for script in said(traffic))}

    assert without == {Traffic.BEAMS, Traffic.SAMPLING}
