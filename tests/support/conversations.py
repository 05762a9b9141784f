"""Conversations over two fake servers, and beside them what transformers alone makes of the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from support.clients import a_client
from support.fakeswarm import Die, FakeRouter, servers_of
from support.toymodel import LocalModel, RemoteModel

from swarmctl.client.conversation import Conversation
from swarmctl.client.generate import Listener, Sampling
from swarmctl.events import Event, TokensEmitted

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
        self.client = a_client(self.router, self.model, recover_timeout_s=0.1, **limits)

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
