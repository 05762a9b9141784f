"""What is asked of a client, what its caller hears meanwhile, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarmctl.errors import RequestInvalid
from swarmctl.events import EventSink, Hop


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. Greedy unless a temperature, `top_p` or `top_k` is given.

    `seed`: where the random numbers start; without one they follow from torch's own.
    """

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
        return bool(self.choosing)

    @property
    def choosing(self) -> dict[str, float]:
        """Those of temperature, `top_p` and `top_k` that are given."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in given.items() if value is not None}

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of transformers' `generate`."""
        chosen: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": self.samples, **self.choosing}
        if self.num_beams > 1:
            chosen["num_beams"] = self.num_beams
        return chosen


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


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of `Client.generate`.

    `accepted`: `index`, `ids` and `text` of each prompt that was begun, as far as it came.
    """

    def __init__(self, accepted: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.accepted = tuple(accepted)


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
