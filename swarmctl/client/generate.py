"""Generates text through a swarm: prompts in, tokens out as they come, every failover an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmctl.blocks import NodeName, PeerId
from swarmctl.client.conversation import Conversation, generation_of
from swarmctl.client.request import Generation, GenerationInterrupted, Listener, Sampling
from swarmctl.client.text import Chat, Vocabulary
from swarmctl.errors import RequestInvalid, SwarmctlError

if TYPE_CHECKING:
    from swarmctl.upstream.model import ClientModel

__all__ = ["Client", "Connection", "Generation", "GenerationInterrupted", "Listener", "Sampling"]


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach a swarm. `names` gives the declared peers their names and, unless `allow_strangers`, is the roster.

    `initial_peers` are the multiaddrs of bootstrap peers; `sockets` a short folder for libp2p's unix sockets.
    `max_length`: the longest session in tokens, prompt included; None: what prompt and new tokens need.
    """

    source: str
    dht_prefix: str
    initial_peers: tuple[str, ...]
    sockets: Path
    names: Mapping[PeerId, NodeName]
    revision: str | None = None
    allow_strangers: bool = False
    connect_timeout_s: float = 3.0
    step_timeout_s: float = 15.0
    recover_timeout_s: float = 60.0
    alloc_timeout_s: float = 2.0
    suspect_after_s: float = 0.5
    update_period_s: float = 5.0
    replay_chunk_tokens: int = 512
    max_length: int | None = None
    torch_dtype: str = "float32"


class Client:
    """A connected client; make it with `connect`. Threads may share one: each generation has a session of its own."""

    def __init__(self, opened: ClientModel, connection: Connection) -> None:
        self._opened = opened
        self._connection = connection

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        """Token ids of a prompt; with `chat`, of the model's chat template around it.

        Raises:
            RequestInvalid: for an empty prompt, or a chat with a model that has no chat template.
        """
        return Chat(self._vocabulary).encode(prompt) if chat else self._vocabulary.encode(prompt, special=True)

    @contextmanager
    def conversation(
        self, *, max_length: int, listener: Listener | None = None, chat: bool = False
    ) -> Iterator[Conversation]:
        """One session for several calls, of `max_length` tokens at most; on leaving, its servers have let go of it.

        With `chat`, what is asked goes into the model's chat template.

        Raises:
            RequestInvalid: longer than the swarm file allows, or a chat with a model that has no chat template.
        """
        limit = self._connection.max_length
        if limit is not None and max_length > limit:
            raise RequestInvalid(
                f"a conversation of {max_length} tokens is more than the {limit} that a session may have",
                hints=["open it for fewer", "raise client.max_length in the swarm file"],
                context={"asked_for": max_length, "max_length": limit},
            )
        with self._talk(max_length, listener or Listener(), chat=chat) as talk:
            yield talk

    @contextmanager
    def _talk(
        self, max_length: int, listener: Listener, *, chat: bool = False, members: Sequence[int] | None = None
    ) -> Iterator[Conversation]:
        session = {"settings": self._settings(), "names": self._connection.names}
        talk = Conversation(
            self._opened,
            self._vocabulary,
            session=session,
            max_length=max_length,
            listener=listener,
            members=members,
            chat=chat,
        )
        try:
            yield talk
        finally:
            talk.close()

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, *, chat: bool = False, listener: Listener | None = None
    ) -> tuple[Generation, ...]:
        """Continue each prompt; those of equal length share a session (petals takes no attention mask).

        Raises:
            RequestInvalid: the request itself is wrong. RecoveryFailed: no server took a lost span over in time; its
                `context["accepted"]` has what came out before, for each prompt that was begun.
            GenerationInterrupted: a KeyboardInterrupt, with the same.
        """
        encoded = [self.encode(prompt, chat=chat) for prompt in prompts]
        self._check_length(max(len(ids) for ids in encoded), sampling.max_new_tokens)
        groups: dict[int, list[int]] = {}
        for index, ids in enumerate(encoded):
            groups.setdefault(len(ids), []).append(index)
        done: dict[int, Generation] = {}
        talk: Conversation | None = None
        try:
            for length, members in groups.items():
                with self._talk(length + sampling.max_new_tokens, listener or Listener(), members=members) as talk:
                    outputs = talk.say([encoded[index] for index in members], sampling)
                for index, new in zip(members, outputs, strict=True):
                    done[index] = generation_of(self._vocabulary, prompts[index], length, new, sampling)
        except SwarmctlError as error:
            begun = error.context.get("accepted")
            if isinstance(begun, list):
                error.context["accepted"] = _with_those_done(begun, done)
            raise
        except KeyboardInterrupt as error:
            begun = [] if talk is None else talk.accepted()
            raise GenerationInterrupted(_with_those_done(begun, done)) from error
        return tuple(done[index] for index in range(len(prompts)))

    def _check_length(self, prompt: int, new: int) -> None:
        limit = self._connection.max_length
        if limit is not None and prompt + new > limit:
            raise RequestInvalid(
                f"{prompt} tokens of prompt and {new} new ones are more than the {limit} that a session may have",
                hints=["ask for fewer new tokens", "raise client.max_length in the swarm file"],
                context={"prompt_tokens": prompt, "max_new_tokens": new, "max_length": limit},
            )

    def _settings(self) -> Any:
        from swarmctl.upstream.legs import SessionSettings

        return SessionSettings(
            connect_timeout_s=self._connection.connect_timeout_s,
            step_timeout_s=self._connection.step_timeout_s,
            recover_timeout_s=self._connection.recover_timeout_s,
            alloc_timeout_s=self._connection.alloc_timeout_s,
            suspect_after_s=self._connection.suspect_after_s,
            replay_chunk_tokens=self._connection.replay_chunk_tokens,
        )

    def generate_locally(self, batch: Sequence[Sequence[int]], sampling: Sampling) -> list[tuple[int, ...]]:
        """The same prompts by transformers alone, from the same checkpoint: the reference for greedy output."""
        from swarmctl.upstream.reference import generate_locally

        stops, pad = sorted(self._vocabulary.stops), self._vocabulary.pad
        outputs = generate_locally(self._connection.source, batch, pad=pad, stops=stops, **sampling.arguments())
        return [self._vocabulary.until_stop(ids) for ids in outputs]

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        model, tokenizer = self._opened.model, self._opened.tokenizer
        given = getattr(model.generation_config, "eos_token_id", None)
        if given is None:
            given = model.config.eos_token_id
        stops = frozenset([given] if isinstance(given, int) else given or [])
        pad = tokenizer.pad_token_id
        return Vocabulary(
            tokenizer=tokenizer,
            stops=stops,
            pad=int(pad if pad is not None else next(iter(stops), 0)),
            source=self._connection.source,
        )


def _with_those_done(begun: Sequence[Mapping[str, Any]], done: Mapping[int, Generation]) -> list[Mapping[str, Any]]:
    """What came out in one session, which ended early, and the prompts of the sessions before it, which are done."""
    whole = [{"index": index, "ids": list(one.ids), "text": one.text} for index, one in done.items()]
    others = [one for one in begun if one["index"] not in done]
    return sorted([*whole, *others], key=lambda one: int(one["index"]))
