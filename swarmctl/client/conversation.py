"""A session over several calls: what was said and what came out stand, token by token, whatever ends a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from swarmctl.client.answer import Answer, Column
from swarmctl.client.request import Generation, Listener, Sampling
from swarmctl.client.text import Chat, Vocabulary, decode
from swarmctl.errors import RequestInvalid, SwarmctlError
from swarmctl.events import Event

if TYPE_CHECKING:
    from swarmctl.upstream.model import ClientModel

Ids = tuple[tuple[int, ...], ...]
"""Token ids, one tuple a sequence of the batch."""


class Conversation:
    """Calls that each continue what is there; make it with `Client.conversation`. One call at a time.

    A call that is refused (`RequestInvalid`) adds nothing. One that fails in the middle, by whatever exception, has
    said what it said, and the tokens that had come out stand: `resume` goes on from there, and so does the next `say`.
    Tokens that are drawn are then those of an undisturbed run too: the random numbers go on where they were.

    The sequences of a batch have one length: what ends earlier than the others is filled with the model's padding,
    which the next call continues like any other token. Another batch size needs another conversation.
    """

    def __init__(
        self,
        opened: ClientModel,
        vocabulary: Vocabulary,
        *,
        session: Mapping[str, Any],
        max_length: int,
        listener: Listener,
        members: Sequence[int] | None = None,
        chat: bool = False,
    ) -> None:
        """`session`: arguments of `RecoverableSession`; `members`: the listener's numbers of the sequences."""
        from swarmctl.upstream.generation import TokenSession

        self._vocabulary = vocabulary
        self._max_length = max_length
        self._listener = listener
        self._members = members
        self._chat = Chat(vocabulary) if chat else None
        self._tokens = TokenSession(opened, max_length, {**session, "sink": self._note, "hooks": listener.hooks()})
        self._answer = self._new_answer(Sampling(), begin=0, batch=0)
        self._at_s = 0.0
        self._busy = threading.Lock()

    # --- what is there --------------------------------------------------------------------------------------

    @property
    def tokens(self) -> Ids:
        """All that was said and answered, also by a call that failed; with the padding of what ended early."""
        return tuple(zip(*self._tokens.columns, strict=True))

    @property
    def answer(self) -> Ids:
        """What has come out since the last `say`, each sequence up to its stop; also of a call that failed."""
        came = self._came()
        return tuple(
            self._vocabulary.until_stop([column[row] for column in came])
            for row in range(len(self._tokens.columns[0]) if self._tokens.columns else 0)
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of `answer`."""
        return tuple(decode(self._vocabulary.tokenizer, ids) for ids in self.answer)

    def accepted(self) -> list[dict[str, Any]]:
        """`answer` and `texts` as an error's context has them: `index`, `ids`, `text` of each; none before a `say`."""
        if not self._tokens.columns:
            return []
        members = range(len(self.answer)) if self._members is None else self._members
        rows = zip(members, self.answer, self.texts, strict=True)
        return [{"index": index, "ids": list(ids), "text": text} for index, ids, text in rows]

    # --- calls ----------------------------------------------------------------------------------------------

    def say(self, ids: Sequence[Sequence[int]], sampling: Sampling) -> list[tuple[int, ...]]:
        """Append `ids: [batch][tokens]`, all of one length, and generate; the new tokens, up to each one's stop.

        A seed starts the random numbers anew; without one they go on. Beam search sees all that is there, but the
        servers compute it again for the search, and once more for the call after it.

        Raises:
            RequestInvalid: another batch size, or longer than the conversation may get; nothing was added.
            RecoveryFailed: no server took a lost span over in time; `context["accepted"]` has what came out.
        """
        with self._calling():
            columns = self._columns_of(ids)
            self._check_room(len(columns), sampling)
            self._say(columns, sampling)
            return list(self.answer)

    def ask(self, prompt: str, sampling: Sampling) -> Generation:
        """As `say`, with text, for a batch of one; in a chat, as the user's next message.

        Raises:
            RequestInvalid: also for an empty prompt.
        """
        there, answered = len(self._tokens.columns), next(iter(self.answer), ())
        if self._chat is None:
            ids = self._vocabulary.encode(prompt, special=there == 0)
        else:
            ids = self._chat.encode(prompt, answered)
        try:
            (new,) = self.say([ids], sampling)
        finally:
            if self._chat is not None and len(self._tokens.columns) > there:
                self._chat.note(prompt, answered)
        return generation_of(self._vocabulary, prompt, len(ids), new, sampling)

    def resume(self, sampling: Sampling | None = None) -> list[tuple[int, ...]]:
        """Go on without saying anything: the tokens that are new, while `answer` has those before them too.

        Without `sampling`: what the last call still owes after it failed; nothing, if it did not. Random numbers go
        on where they were; a seed counts only if nothing was drawn before. Sequences that have ended get nothing.

        Raises:
            RequestInvalid, RecoveryFailed: see `say`.
        """
        with self._calling():
            if not self._tokens.columns:
                raise RequestInvalid("nothing was said yet, so there is nothing to go on from")
            before = [len(ids) for ids in self.answer]
            if sampling is not None:
                self._check_room(0, sampling)
                self._answer.sampling = sampling
                self._answer.wanted = len(self._came()) + sampling.max_new_tokens
            self._complete()
            return [ids[begin:] for ids, begin in zip(self.answer, before, strict=True)]

    def close(self) -> None:
        """End the session; waits for no server. What is there can still be read."""
        self._tokens.close()

    # --- one call -------------------------------------------------------------------------------------------

    @contextmanager
    def _calling(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RequestInvalid("the conversation is in the middle of another call")
        try:
            yield
        finally:
            self._busy.release()

    def _columns_of(self, ids: Sequence[Sequence[int]]) -> list[Column]:
        lengths = sorted({len(row) for row in ids})
        if len(lengths) != 1 or lengths == [0]:
            raise RequestInvalid(
                f"the sequences of one session take one length, of a token at least; got {lengths}",
                reasons=["servers take no attention mask"],
            )
        batch = len(self._tokens.columns[0]) if self._tokens.columns else len(ids)
        if len(ids) != batch:
            raise RequestInvalid(
                f"the conversation has a batch of {batch}, this call has {len(ids)}",
                reasons=["servers size a session's attention cache at its first step"],
                hints=["open another conversation for another batch size"],
                context={"opened_with": batch, "got": len(ids)},
            )
        return [tuple(map(int, column)) for column in zip(*ids, strict=True)]

    def _check_room(self, said: int, sampling: Sampling) -> None:
        there, new = len(self._tokens.columns), sampling.max_new_tokens
        if there + said + new > self._max_length:
            raise RequestInvalid(
                f"the conversation was opened for {self._max_length} tokens; "
                f"{there} are there, and {said} more with {new} new ones do not fit",
                hints=["ask for fewer new tokens", "open the conversation with a larger max_length"],
                context={"max_length": self._max_length, "tokens": there, "said": said, "max_new_tokens": new},
            )

    def _say(self, columns: Sequence[Column], sampling: Sampling) -> None:
        begin, last = len(self._tokens.columns), self._answer
        end = begin + len(columns)
        if sampling.samples:
            self._tokens.roll(sampling.seed)
        try:
            self._answer = self._new_answer(sampling, begin=end, batch=len(columns[0]))
            self._tokens.columns.extend(columns)
            self._complete()
        except BaseException as error:
            at_once = len(self._tokens.columns) == end and self._tokens.computed <= begin
            if isinstance(error, RequestInvalid) and at_once:
                del self._tokens.columns[begin:]
            if len(self._tokens.columns) == begin:
                self._answer = last
            raise

    def _new_answer(self, sampling: Sampling, *, begin: int, batch: int) -> Answer:
        members = range(batch) if self._members is None else self._members
        texts = [_bound(self._listener.text, member) for member in members]
        return Answer(self._vocabulary, sampling, begin=begin, sink=self._listener.sink, texts=texts)

    def _complete(self) -> None:
        """Generate what the answer lacks."""
        answer, sampling = self._answer, self._answer.sampling
        try:
            self._tell()
            ended = answer.ended(self._came())
            lacks = answer.wanted - len(self._came())
            if lacks > 0 and not all(ended):
                self._generate(sampling, lacks, ended)
        except SwarmctlError as error:
            _tell_how_far(error, self.accepted())
            raise
        answer.end()

    def _generate(self, sampling: Sampling, tokens: int, ended: tuple[bool, ...]) -> None:
        from swarmctl.upstream.generation import Call

        call = Call(
            max_new_tokens=tokens,
            stops=self._vocabulary.stops,
            pad=self._vocabulary.pad,
            choosing=sampling.choosing or None,
            ended=ended,
            accepted=self._tell,
        )
        if sampling.num_beams == 1:
            if sampling.samples and not self._tokens.has_dice:
                self._tokens.roll(sampling.seed)
            self._tokens.generate(call)
        elif any(ended):
            raise RequestInvalid("beam search goes on with all sequences or none, and some of these have ended")
        else:
            self._tokens.search(call, num_beams=sampling.num_beams)
            self._answer.show(self._came())

    # --- what has come --------------------------------------------------------------------------------------

    def _came(self) -> Sequence[Column]:
        return self._tokens.columns[self._answer.begin :]

    def _tell(self) -> None:
        if self._answer.sampling.num_beams == 1:
            self._answer.tell(self._came(), self._at_s)

    def _note(self, event: Event) -> None:
        # Its time is that of the tokens that follow it.
        self._at_s = event.at_s
        self._listener.sink(event)


def generation_of(
    vocabulary: Vocabulary, prompt: str, prompt_tokens: int, ids: tuple[int, ...], sampling: Sampling
) -> Generation:
    """What a caller gets for the new tokens of one prompt."""
    ended = "stop" if len(ids) < sampling.max_new_tokens or ids[-1] in vocabulary.stops else "length"
    text = decode(vocabulary.tokenizer, ids)
    return Generation(prompt=prompt, prompt_tokens=prompt_tokens, ids=ids, text=text, ended=ended)


def how_far(accepted: Sequence[Mapping[str, Any]]) -> str | None:
    """What `Conversation.accepted` returned, as a sentence about a call that ended early; None if nothing came out."""
    came = sum(len(one["ids"]) for one in accepted)
    if not came:
        return None
    of = "" if len(accepted) == 1 else f" of {len(accepted)} sequences"
    return f"{came} token{'s' if came > 1 else ''}{of} came out before"


def _tell_how_far(error: SwarmctlError, accepted: Sequence[Mapping[str, Any]]) -> None:
    came = how_far(accepted)
    if came or not isinstance(error, RequestInvalid):
        error.context["accepted"] = list(accepted)
    if came:
        error.reasons = (*error.reasons, came)


def _bound(text: Callable[[int, str], None], member: int) -> Callable[[str], None]:
    return lambda piece: text(member, piece)
