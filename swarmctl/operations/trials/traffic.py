"""What clients say in a cell: each kind of traffic as scripts, one a session. Pure; the same for every client.

The prompts are cut from one text, so that prompts of any length and number are made of any tokenizer's tokens, and
sequences of a batch are equally long (petals takes no attention mask).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import assert_never

from swarmctl.client.generate import Sampling
from swarmctl.matrix import Traffic
from swarmctl.trial import Tokens

_TEXT = (
    "Each machine of the swarm holds a few of the blocks, and no machine holds all of them. A client walks from one "
    "to the next with the hidden states of its text, and comes back with another word. If a machine is gone when the "
    "client calls, the walk must go on over others, which have never heard of the text; so it is told to them from "
    "its beginning, and they shall say just what the lost one would have said. Nobody who reads along should notice. "
)

_PROMPT = 12
_NEW = 20
_BATCHES = (1, 2, 10)
# Ten of these fit into one request to a server that is made to take few, and their history does not.
_BATCH_PROMPT = 6
_BEAMS = 4
_PIECE = 3
_CHAT_TURNS = 5
_DEEP = 4
_CROWD = 8
_LONG_BATCH = 2
# A history is long when no server would take it in one request; half as much again makes it so in mid-run, too.
_LONG_TIMES = 1.5


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One `generate` call: `ids` are added to each sequence of the batch, then new tokens are chosen."""

    ids: Tokens
    sampling: Sampling


@dataclass(frozen=True, kw_only=True)
class Script:
    """One session. `deep`: how many positions of deep prompts it begins with."""

    turns: tuple[Turn, ...]
    deep: int = 0

    @property
    def batch(self) -> int:
        """Sequences side by side."""
        return len(self.turns[0].ids)

    @property
    def max_length(self) -> int:
        """The tokens that the session holds at its end."""
        return sum(len(turn.ids[0]) + turn.sampling.max_new_tokens for turn in self.turns)

    @property
    def has_margins(self) -> bool:
        """True if each step takes the likeliest token, so that one can say how clearly."""
        return not any(turn.sampling.samples or turn.sampling.num_beams > 1 for turn in self.turns)

    @property
    def has_local(self) -> bool:
        """True if transformers alone can do the same: it knows no deep prompts, and its dice fall otherwise."""
        return self.deep == 0 and not any(turn.sampling.samples for turn in self.turns)


def scripts(traffic: Traffic, encode: Callable[[str], Sequence[int]], *, max_batch_tokens: int) -> tuple[Script, ...]:
    """The sessions of a traffic, one after the other but for a crowd's.

    `max_batch_tokens`: what a server takes in one request, the tokens of all sequences counted. The faults are meant
    for the last session, when the others have left their traces on the servers.
    """
    words = _Words(encode)
    match traffic:
        case Traffic.GREEDY:
            return (_one(words.batch(1, _PROMPT), Sampling(max_new_tokens=_NEW)),)
        case Traffic.BATCHES:
            return tuple(
                _one(words.batch(size, _BATCH_PROMPT), Sampling(max_new_tokens=_NEW // 2)) for size in _BATCHES
            )
        case Traffic.BEAMS:
            return (_one(words.batch(1, _PROMPT), Sampling(max_new_tokens=_NEW, num_beams=_BEAMS)),)
        case Traffic.SEVERAL:
            return (_pieces(words),)
        case Traffic.SAMPLING:
            chosen = Sampling(max_new_tokens=_NEW, temperature=0.8, top_p=0.9, seed=7)
            return (_one(words.batch(1, _PROMPT), chosen),)
        case Traffic.CHAT:
            said = [words.batch(1, _PROMPT // 2, start=turn * _PROMPT) for turn in range(_CHAT_TURNS)]
            return (Script(turns=tuple(Turn(ids=ids, sampling=Sampling(max_new_tokens=4)) for ids in said)),)
        case Traffic.PROMPTS:
            return (_one(words.batch(1, _PROMPT), Sampling(max_new_tokens=_NEW), deep=_DEEP),)
        case Traffic.LONG:
            prompt = int(_LONG_TIMES * max_batch_tokens / _LONG_BATCH) + 1
            return (_one(words.batch(_LONG_BATCH, prompt), Sampling(max_new_tokens=_NEW // 2)),)
        case Traffic.CROWD:
            prompts = words.batch(_CROWD, _PROMPT)
            return tuple(_one((prompt,), Sampling(max_new_tokens=_NEW)) for prompt in prompts)
        case _:
            assert_never(traffic)


def _one(ids: Tokens, sampling: Sampling, *, deep: int = 0) -> Script:
    return Script(turns=(Turn(ids=ids, sampling=sampling),), deep=deep)


def _pieces(words: _Words) -> Script:
    """A prompt, a continuation that is given piece by piece with a token chosen after each, and a free end."""
    given = [words.batch(1, _PIECE, start=_PROMPT + at * _PIECE) for at in range(6)]
    turns = [Turn(ids=ids, sampling=Sampling(max_new_tokens=1)) for ids in (words.batch(1, _PROMPT), *given)]
    return Script(turns=(*turns, Turn(ids=words.batch(1, _PIECE), sampling=Sampling(max_new_tokens=_NEW // 2))))


class _Words:
    """Tokens of the text, as many as are asked for."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._ids = tuple(encode(_TEXT))

    def batch(self, size: int, tokens: int, *, start: int = 0) -> Tokens:
        """`size` different sequences of so many tokens."""
        firsts = [start + 7 * index for index in range(size)]
        return tuple(tuple(self._ids[(first + at) % len(self._ids)] for at in range(tokens)) for first in firsts)
