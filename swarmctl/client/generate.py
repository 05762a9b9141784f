"""Generates text through a swarm: prompts in, tokens out as they come, every failover an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmctl.blocks import NodeName, PeerId
from swarmctl.client.text import TextStream, decode
from swarmctl.errors import RequestInvalid
from swarmctl.events import Event, EventSink, Hop, TokensEmitted

if TYPE_CHECKING:
    from swarmctl.upstream.model import ClientModel


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. Greedy unless a temperature, `top_p` or `top_k` is given."""

    max_new_tokens: int = 64
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    num_beams: int = 1

    def __post_init__(self) -> None:
        """Refuse what no model can do, before anything is connected."""
        checks = (
            (self.max_new_tokens >= 1, f"max_new_tokens is {self.max_new_tokens}; it must be at least 1"),
            (self.temperature is None or self.temperature > 0, "temperature must be above 0; leave it out for greedy"),
            (self.top_p is None or 0 < self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (self.top_k is None or self.top_k >= 1, "top_k must be at least 1"),
            (self.num_beams >= 1, "num_beams must be at least 1"),
            (self.num_beams == 1 or not self.samples, "beam search is greedy; leave temperature, top_p and top_k out"),
        )
        for holds, message in checks:
            if not holds:
                raise RequestInvalid(message)

    @property
    def samples(self) -> bool:
        """True if tokens are drawn instead of taken greedily."""
        return any(value is not None for value in (self.temperature, self.top_p, self.top_k))

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of transformers' `generate`."""
        chosen: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.samples}
        optional = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        if self.samples:
            chosen |= {name: value for name, value in optional.items() if value is not None}
        if self.num_beams > 1:
            chosen["num_beams"] = self.num_beams
        return chosen


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
    suspect_after_s: float = 1.0
    update_period_s: float = 5.0
    replay_chunk_tokens: int = 512
    max_length: int | None = None
    torch_dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came out for one prompt. `ids` are the new tokens; `text` is their decoded form.

    `ended`: `stop` when the model said so, `length` when `max_new_tokens` were out.
    """

    prompt: str
    prompt_tokens: int
    ids: tuple[int, ...]
    text: str
    ended: str


@dataclass
class Listener:
    """What the caller wants to hear, one call at a time.

    `sink` takes every event; `text(prompt index, piece)` the text as it comes; `request(hop, position, replay)` is
    called when a request has left for a server and before its answer, from a thread of hivemind's; `answer` likewise
    when an answer has come, and a `ConnectionError` that it raises stands for one that was lost on its way; `output`
    gets the hidden states after the last block, `[batch, tokens, hidden_size]`, of each committed step.
    """

    sink: EventSink = field(default=lambda _event: None)
    text: Callable[[int, str], None] = field(default=lambda _index, _piece: None)
    request: Callable[[Hop, int, bool], None] | None = None
    answer: Callable[[Hop, int, bool], None] | None = None
    output: Callable[[Any], None] | None = None

    def hooks(self) -> Any:
        """As the session takes them: an `upstream.hooks.Hooks`."""
        from swarmctl.upstream.hooks import Hooks

        given: dict[str, Any] = {"request": self.request, "answer": self.answer, "output": self.output}
        return Hooks(**{name: hook for name, hook in given.items() if hook is not None})


class Client:
    """A connected client; make it with `connect`. One generation at a time."""

    def __init__(self, opened: ClientModel, connection: Connection) -> None:
        self._opened = opened
        self._connection = connection

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        """Token ids of a prompt; with `chat`, of the model's chat template around it.

        Raises:
            RequestInvalid: for an empty prompt, or a chat with a model that has no chat template.
        """
        tokenizer = self._opened.tokenizer
        if chat:
            if not tokenizer.chat_template:
                raise RequestInvalid(
                    f"{self._connection.source} has no chat template", hints=["leave --chat out to continue plain text"]
                )
            messages = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # A chat template writes the special tokens itself.
        ids = [int(token) for token in tokenizer(prompt, add_special_tokens=not chat).input_ids]
        if not ids:
            raise RequestInvalid("the prompt is empty", hints=["give at least one character"])
        return ids

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, *, chat: bool = False, listener: Listener | None = None
    ) -> tuple[Generation, ...]:
        """Continue each prompt; those of equal length share a session (petals takes no attention mask).

        Raises:
            RequestInvalid: the request itself is wrong. RecoveryFailed: no server took a lost span over in time.
        """
        encoded = [self.encode(prompt, chat=chat) for prompt in prompts]
        self._check_length(max(len(ids) for ids in encoded), sampling.max_new_tokens)
        groups: dict[int, list[int]] = {}
        for index, ids in enumerate(encoded):
            groups.setdefault(len(ids), []).append(index)
        done: dict[int, Generation] = {}
        for members in groups.values():
            outputs = self.generate_ids([encoded[i] for i in members], sampling, members, listener or Listener())
            for index, new in zip(members, outputs, strict=True):
                done[index] = self._generation(prompts[index], len(encoded[index]), new, sampling)
        return tuple(done[index] for index in range(len(prompts)))

    def _check_length(self, prompt: int, new: int) -> None:
        limit = self._connection.max_length
        if limit is not None and prompt + new > limit:
            raise RequestInvalid(
                f"{prompt} tokens of prompt and {new} new ones are more than the {limit} that a session may have",
                hints=["ask for fewer new tokens", "raise client.max_length in the swarm file"],
                context={"prompt_tokens": prompt, "max_new_tokens": new, "max_length": limit},
            )

    def generate_ids(
        self, batch: Sequence[Sequence[int]], sampling: Sampling, members: Sequence[int], listener: Listener
    ) -> list[tuple[int, ...]]:
        """New token ids for prompts of one length, in one session; `members` numbers them for the listener."""
        from swarmctl.upstream.generation import generate_ids

        texts = {member: TextStream(self._opened.tokenizer, _bound(listener.text, member)) for member in members}
        streamer = _Streamer(listener.sink, [texts[member] for member in members], self._stops())
        output = generate_ids(
            self._opened,
            batch,
            session={
                "settings": self._settings(),
                "sink": streamer.note,
                "names": self._connection.names,
                "hooks": listener.hooks(),
            },
            arguments={
                **sampling.arguments(),
                "pad_token_id": self._pad(),
                "eos_token_id": sorted(self._stops()) or None,
            },
            seed=sampling.seed,
            streamer=streamer if sampling.num_beams == 1 else None,
        )
        new = [self._until_stop(row) for row in output]
        if sampling.num_beams > 1:
            for text, ids in zip(texts.values(), new, strict=True):
                text.put(ids)
        for text in texts.values():
            text.end()
        return new

    def _generation(self, prompt: str, prompt_tokens: int, ids: tuple[int, ...], sampling: Sampling) -> Generation:
        text = decode(self._opened.tokenizer, ids)
        ended = "stop" if len(ids) < sampling.max_new_tokens or ids[-1] in self._stops() else "length"
        return Generation(prompt=prompt, prompt_tokens=prompt_tokens, ids=ids, text=text, ended=ended)

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

        outputs = generate_locally(
            self._connection.source, batch, pad=self._pad(), stops=sorted(self._stops()), **sampling.arguments()
        )
        return [self._until_stop(ids) for ids in outputs]

    def _stops(self) -> frozenset[int]:
        stops = getattr(self._opened.model.generation_config, "eos_token_id", None)
        if stops is None:
            stops = self._opened.model.config.eos_token_id
        return frozenset([stops] if isinstance(stops, int) else stops or [])

    def _pad(self) -> int:
        pad = self._opened.tokenizer.pad_token_id
        return int(pad if pad is not None else next(iter(self._stops()), 0))

    def _until_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        kept: list[int] = []
        for token in ids:
            kept.append(token)
            if token in self._stops():
                break
        return tuple(kept)


class _Streamer:
    """transformers' streamer: the prompt first, then one token a sequence and step."""

    def __init__(self, sink: EventSink, texts: Sequence[TextStream], stops: frozenset[int]) -> None:
        self._sink = sink
        self._texts = texts
        self._stops = stops
        self._ended = [False] * len(texts)
        self._count = -1  # the first call carries the prompt
        self._at_s = 0.0

    def note(self, event: Event) -> None:
        """Pass a session's event on, and remember its time for the tokens that follow it."""
        self._at_s = event.at_s
        self._sink(event)

    def put(self, value: Any) -> None:
        """Called by transformers: `[batch, prompt]` once, then `[batch]` a step."""
        self._count += 1
        if self._count == 0:
            return
        ids = tuple(int(token) for token in value.reshape(-1))
        self._sink(TokensEmitted(at_s=self._at_s, index=self._count - 1, ids=ids))
        for index, token in enumerate(ids):
            if not self._ended[index]:
                self._ended[index] = token in self._stops
                self._texts[index].put([token])

    def end(self) -> None:
        """Called by transformers when the generation is over."""


def _bound(text: Callable[[int, str], None], member: int) -> Callable[[str], None]:
    return lambda piece: text(member, piece)
