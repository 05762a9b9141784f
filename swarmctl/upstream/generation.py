"""Calls of transformers' `generate` over one session: what was accepted stands, whatever ends a call.

petals keeps the ids of a session (`output_ids`) only when a call succeeds, and the number of those that need not be
computed again in a context variable that a failed call leaves set; the next call then feeds a token that is not the
last one, or skips tokens of another session. Here the ids are kept token by token as they are accepted, and both of
petals' notes are written from them, and from the session's position, before each call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from petals.client.remote_generation import _skipped_tokens
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from swarmctl.upstream.model import ClientModel
from swarmctl.upstream.session import RecoverableSession


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call. `choosing`: temperature, top_k and top_p where they are given; None takes the likeliest token.

    `stops` end a sequence, `pad` fills what comes after its end. `ended`: the sequences that had ended before the call.
    `accepted` is called whenever another column stands; what it raises ends the call.
    """

    max_new_tokens: int
    stops: frozenset[int]
    pad: int
    choosing: Mapping[str, float] | None = None
    ended: tuple[bool, ...] = ()
    accepted: Callable[[], None] = lambda: None


class TokenSession:
    """The ids of one batch, and a session whose servers have most of them cached. Not for several threads at once.

    `columns` holds one token a sequence for each place, oldest first. A prefix of them is cached on the servers;
    which one is asked of the session when a call begins, so nothing has to be put right when a call fails.
    """

    def __init__(self, opened: ClientModel, max_length: int, session: Mapping[str, Any]) -> None:
        """`session` are keyword arguments of `RecoverableSession`."""
        self.columns: list[tuple[int, ...]] = []
        self._opened = opened
        self._prefix = _prompt_tuning_length(opened.model.config)
        self._max_length = max_length + self._prefix
        self._arguments = dict(session)
        self._session: RecoverableSession | None = None
        self._dice: Dice | None = None

    @property
    def computed(self) -> int:
        """How many columns are cached on the servers."""
        position = 0 if self._session is None else self._session.position
        return max(0, position - self._prefix)

    @property
    def has_dice(self) -> bool:
        """True once `roll` was called."""
        return self._dice is not None

    def roll(self, seed: int | None) -> None:
        """Start the random numbers at `seed`; None lets them go on, or start anywhere."""
        if seed is not None or self._dice is None:
            self._dice = Dice(seed)
        else:
            self._dice.return_to(len(self.columns))

    def generate(self, call: Call) -> None:
        """Extend the columns by up to `max_new_tokens`; fewer when all sequences have ended.

        Raises:
            RequestInvalid, RecoveryFailed: see `RecoverableSession.step`. Whatever is raised, what was accepted stands.
        """
        whole, dice = self._whole(), self._dice
        if self._session is None:
            self._session = RecoverableSession(self._opened.router, self._max_length, **self._arguments)
        processors: list[LogitsProcessor] = []
        if call.choosing is not None:
            if dice is None:
                raise ValueError("a call that draws needs `roll` first")
            dice.return_to(len(self.columns))
            processors.append(_Draw(dice, self._opened.model.generation_config, call.choosing))
        stopping: list[StoppingCriteria] = []
        if any(call.ended):
            processors.append(_Padded(call))
            stopping.append(_AllEnded(call, begin=len(self.columns)))
        self._run(
            self._session,
            whole,
            call,
            streamer=_Columns(self.columns, call.accepted),
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList(stopping),
        )

    def search(self, call: Call, *, num_beams: int) -> None:
        """As `generate`, by beam search; nothing is accepted before its end.

        It holds other sequences in the servers' caches than the ids do, so it gets a session of its own, to which all
        ids are fed; the next call begins with a new one too.
        """
        self.close()
        whole = self._whole()
        with RecoverableSession(self._opened.router, self._max_length, **self._arguments) as session:
            output = self._run(session, whole, call, num_beams=num_beams)
        self.columns += [tuple(column) for column in output[:, whole.shape[1] :].T.tolist()]

    def close(self) -> None:
        """End the session, if there is one; the ids stay. Waits for no server."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _whole(self) -> torch.Tensor:
        return torch.tensor(self.columns, dtype=torch.int64).T

    def _run(self, session: RecoverableSession, whole: torch.Tensor, call: Call, **arguments: Any) -> torch.Tensor:
        inputs = self._align(session, whole)

        def run() -> torch.Tensor:
            _skipped_tokens.set(0)
            with torch.inference_mode():
                return self._opened.model.generate(
                    inputs,
                    session=session,
                    # petals takes no other mask; left out, transformers makes a hole of a token like `pad`.
                    attention_mask=torch.ones_like(whole),
                    max_new_tokens=call.max_new_tokens,
                    do_sample=False,
                    eos_token_id=sorted(call.stops) or None,
                    pad_token_id=call.pad,
                    **arguments,
                )

        # petals' context variables are for this call alone: the session in use, and what to skip.
        return contextvars.copy_context().run(run)

    def _align(self, session: RecoverableSession, whole: torch.Tensor) -> torch.Tensor | None:
        """Write petals' notes; returns what it shall add to those ids: None if they are all of `whole`."""
        length = whole.shape[1]
        if session.position - self._prefix >= length:
            # A step was committed and its token was not accepted. The last place has to be computed again.
            session.position = self._prefix + length - 1 if length > 1 else 0
        cached = max(0, session.position - self._prefix)
        if cached == 0:
            session.output_ids = None
            return whole
        session.output_ids = whole[:, : cached + 1]
        return whole[:, cached + 1 :] if cached + 1 < length else None


class Dice:
    """Random numbers that no other draw in the process disturbs, and that a draw which came to nothing has not used."""

    def __init__(self, seed: int | None) -> None:
        # Without a seed they follow from torch's own, so that a program that seeds it is repeatable.
        self._seed = seed if seed is not None else int(torch.randint(2**62, ()))
        self._generator: torch.Generator | None = None
        self._drawn: tuple[int, torch.Tensor] | None = None

    def draw(self, probabilities: torch.Tensor, place: int) -> torch.Tensor:
        """A token for each row of `probabilities: [batch, vocabulary]`, `[batch, 1]`; for the ids' next `place`."""
        if self._generator is None:
            self._generator = torch.Generator(device=probabilities.device).manual_seed(self._seed)
        self._drawn = (place, self._generator.get_state())
        return torch.multinomial(probabilities, num_samples=1, generator=self._generator)

    def return_to(self, place: int) -> None:
        """Take back the last draw if it was for this place, where its token has not come to be."""
        if self._drawn is not None and self._generator is not None and self._drawn[0] == place:
            self._generator.set_state(self._drawn[1])


class _Draw(LogitsProcessor):
    """Leaves one token possible: the one that was drawn, as transformers would with the same random numbers.

    transformers itself draws from torch's one generator, which all threads of the process share.
    """

    def __init__(self, dice: Dice, defaults: Any, choosing: Mapping[str, float]) -> None:
        self._dice = dice
        self._warpers = LogitsProcessorList()
        temperature = choosing.get("temperature", defaults.temperature)
        top_k, top_p = choosing.get("top_k", defaults.top_k), choosing.get("top_p", defaults.top_p)
        if temperature is not None and temperature != 1.0:
            self._warpers.append(TemperatureLogitsWarper(temperature))
        if top_k:
            self._warpers.append(TopKLogitsWarper(int(top_k)))
        if top_p is not None and top_p < 1.0:
            self._warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        probabilities = torch.softmax(self._warpers(input_ids, scores), dim=-1)
        drawn = self._dice.draw(probabilities, place=input_ids.shape[1])
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)


class _Padded(LogitsProcessor):
    """Sequences that had ended before the call get nothing but padding."""

    def __init__(self, call: Call) -> None:
        self._rows = torch.tensor(call.ended)
        self._pad = call.pad

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores = scores.clone()
        scores[self._rows] = -torch.inf
        scores[self._rows, self._pad] = 0.0
        return scores


class _AllEnded(StoppingCriteria):
    """True when each sequence has ended, before the call or in it; transformers knows of its own call only."""

    def __init__(self, call: Call, *, begin: int) -> None:
        self._ended = torch.tensor(call.ended)
        self._stops = torch.tensor(sorted(call.stops), dtype=torch.int64)
        self._begin = begin

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_kwargs: Any) -> bool:
        now = torch.isin(input_ids[:, self._begin :].cpu(), self._stops).any(dim=1)
        return bool((self._ended | now).all())


class _Columns:
    """transformers' streamer: gets the prompt first, then one token a sequence and step."""

    def __init__(self, columns: list[tuple[int, ...]], accepted: Callable[[], None]) -> None:
        self._columns = columns
        self._accepted = accepted
        self._began = False

    def put(self, value: torch.Tensor) -> None:
        """Called by transformers: `[batch, prompt]` once, then `[batch]` a step."""
        if not self._began:
            self._began = True
            return
        self._columns.append(tuple(int(token) for token in value.reshape(-1)))
        self._accepted()

    def end(self) -> None:
        """Called by transformers when the generation is over."""


def _prompt_tuning_length(config: Any) -> int:
    # petals puts so many positions before the first token of a session.
    return int(config.pre_seq_len) if getattr(config, "tuning_mode", None) else 0
