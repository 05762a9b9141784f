"""What must hold of a session whatever happens to it: checkers that read its events afterwards. Pure.

A checker yields one sentence for each thing that is wrong, and nothing for a good session. Sessions that were
interrupted from outside in the middle of a step, or set back to an earlier position, tell neither, and are not for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from swarmctl.blocks import NodeName, PeerId
from swarmctl.events import (
    Event,
    FaultInjected,
    HedgeStarted,
    Hop,
    PeerFailed,
    PeerOvertaken,
    PeerSuspected,
    RecoveryDone,
    RecoveryGivenUp,
    RouteChanged,
    RouteChosen,
    StepDone,
    TokensEmitted,
    WaitingForPeers,
)

BUDGET_S = 5.0
"""From the moment a failure is noticed to the end of the step that met it; a quiet machine needs 0.1 s."""

NOTICED_WITHIN_S = {"lost": 2.0, "silent": 5.0}
"""How long a failure of this kind may go unnoticed. A closed connection is known at once; silence takes patience."""

Loss = PeerFailed | PeerOvertaken
"""A server leaves the route in the middle of a step."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What happened in one session, or in several one after the other, in the order in which it did.

    `ids`: the new tokens that were returned, a tuple a sequence; None while there is no answer. `error`: how it ended
    instead. `budget_s`: for each recovery that has a server to go to.
    """

    events: tuple[Event, ...]
    num_blocks: int
    ids: tuple[tuple[int, ...], ...] | None = None
    error: str | None = None
    budget_s: float = BUDGET_S


@dataclass
class Step:
    """The events from the end of one step to the end of the next; `done` is None for one that has no answer."""

    events: list[Event] = field(default_factory=list)
    done: StepDone | None = None

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The servers that left the route in it."""
        return tuple(event for event in self.events if isinstance(event, Loss))

    @property
    def waited(self) -> bool:
        """True if for some time nobody served some of its blocks."""
        return any(isinstance(event, WaitingForPeers) for event in self.events)


Checker = Callable[[Account], Iterator[str]]
"""Yields what is wrong, one sentence each."""


def steps_of(events: Sequence[Event]) -> Iterator[Step]:
    """The steps that were done or given up, and what came after the last of them."""
    step = Step()
    for event in events:
        step.events.append(event)
        if isinstance(event, (StepDone, RecoveryGivenUp)):
            step.done = event if isinstance(event, StepDone) else None
            yield step
            step = Step()
    if step.events:
        yield step


def sessions_of(events: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """The events of each session. One that has lost all its servers chooses a route again, and counts on."""
    starts = [0]
    for at, event in enumerate(events):
        if isinstance(event, RouteChosen):
            following = next((later.step for later in events[at:] if isinstance(later, StepDone)), None)
            if following == 1:
                starts.append(at)
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        if start < end:
            yield tuple(events[start:end])


def positions_grow_by_the_step(account: Account) -> Iterator[str]:
    """No position is lost and none is computed twice, whatever happened within the step."""
    for session in sessions_of(account.events):
        position = 0
        for step, done in enumerate((event for event in session if isinstance(event, StepDone)), start=1):
            if (done.step, done.position) != (step, position + done.tokens):
                yield f"step {done.step} of {done.tokens} tokens went from position {position} to {done.position}"
            position = done.position


def tokens_come_once_and_in_order(account: Account) -> Iterator[str]:
    """What was streamed is what was returned: nothing lost, nothing doubled. Beam search streams nothing."""
    emitted = [event for event in account.events if isinstance(event, TokensEmitted)]
    numbers = [event.index for event in emitted]
    # Each call may count from 0 again.
    if any(number not in (0, before + 1) for before, number in zip([-1, *numbers], numbers, strict=False)):
        yield f"the streamed tokens were numbered {numbers}"
    if account.ids is None or not emitted:
        return
    # A conversation may have needed a second session, and prompts of several lengths have one each.
    whole = list(_not_returned([emitted], account.ids))
    if whole:
        sessions = [[event for event in one if isinstance(event, TokensEmitted)] for one in sessions_of(account.events)]
        apart = list(_not_returned(sessions, account.ids))
        yield from whole if len(whole) <= len(apart) else apart


def failures_end_in_recovery_or_in_an_error(account: Account) -> Iterator[str]:
    """No step is done over a failure that nobody has recovered, and no failure is forgotten."""
    for step in steps_of(account.events):
        pending: dict[PeerId, Hop] = {}
        for event in step.events:
            if isinstance(event, Loss):
                pending[event.hop.peer] = event.hop
            elif isinstance(event, RecoveryDone):
                # A server that ended an old stream is well, and no recovery calls it failed.
                expired = {loss.hop.peer for loss in step.losses if kind_of(loss) == "expired"}
                pending = {peer: hop for peer, hop in pending.items() if peer not in {*event.failed, *expired}}
        lost = ", ".join(hop.label for hop in pending.values())
        if lost and step.done is not None:
            yield f"step {step.done.step} was done, and {lost} was never recovered"
        elif lost and account.error is None and not isinstance(step.events[-1], RecoveryGivenUp):
            yield f"{lost} was never recovered, and nobody said so"


def recoveries_keep_the_budget(account: Account) -> Iterator[str]:
    """Each recovery that had a server to go to is quick."""
    for step in steps_of(account.events):
        for event in step.events:
            if isinstance(event, RecoveryDone) and not step.waited and not event.pause_ms <= account.budget_s * 1e3:
                yield f"a recovery took {event.pause_ms:.0f} ms of {account.budget_s * 1e3:.0f}"


def failures_are_noticed_in_time(account: Account) -> Iterator[str]:
    """A lost connection and a silent server are each known within `NOTICED_WITHIN_S`."""
    struck: dict[NodeName, float] = {}
    suspected: dict[PeerId, float] = {}
    for event in account.events:
        match event:
            case FaultInjected():
                struck[event.node] = event.at_s
            case PeerSuspected():
                suspected[event.hop.peer] = event.silent_ms
            case PeerFailed():
                # A server that dies late in a long request has not been dead since the request.
                yield from _unnoticed(event, min(event.detect_ms, _since(struck, event)))
            case PeerOvertaken():
                # It was noticed when it became a suspect; then it was its replacement that took time.
                yield from _unnoticed(event, suspected.get(event.hop.peer, event.silent_ms))
            case StepDone():
                suspected.clear()
            case _:
                pass


def waiting_ends_in_time(account: Account) -> Iterator[str]:
    """A step that waits for servers, or gives up, ends by the deadline that it has told, and a little."""
    slack_s = account.budget_s + NOTICED_WITHIN_S["silent"]
    for step in steps_of(account.events):
        ended = step.events[-1]
        waiting = next((event for event in step.events if isinstance(event, WaitingForPeers)), None)
        if waiting is not None:
            deadline_s = waiting.at_s + waiting.remaining_s
        elif isinstance(ended, RecoveryGivenUp):
            deadline_s = next(iter(step.losses), ended).at_s
        else:
            continue
        if not ended.at_s <= deadline_s + slack_s:
            yield f"a step ended {ended.at_s - deadline_s:.1f} s after it had no more time to wait"


def new_routes_leave_the_failed_out(account: Account) -> Iterator[str]:
    """Who failed in a step takes nothing over later in that step, unless nobody else was left to be waited for.

    A server of two spans may have lost one, and keep the other.
    """
    for step in steps_of(account.events):
        out: list[Hop] = []
        for event in step.events:
            match event:
                case PeerFailed() | PeerOvertaken() if kind_of(event) != "expired":
                    out.append(event.hop)
                case RouteChanged(now=now, route=route):
                    yield from _back(out, now, route)
                case HedgeStarted(now=now):
                    yield from _back(out, now, ())
                case WaitingForPeers():
                    break
                case _:
                    pass


def routes_hold_each_block_once(account: Account) -> Iterator[str]:
    """The first route tiles the model; a changed one has no block twice."""
    for event in account.events:
        if isinstance(event, (RouteChosen, RouteChanged)):
            blocks = [block for hop in event.route for block in hop.blocks]
            whole = isinstance(event, RouteChosen)
            if blocks != sorted(set(blocks)) or (whole and blocks != list(range(account.num_blocks))):
                yield f"the route {written(event.route)} serves blocks {blocks}"


def written(route: Sequence[Hop]) -> str:
    """A route in words: `a 0:3, c 3:6`."""
    return ", ".join(f"{hop.label} {hop.blocks}" for hop in route)


def difference(got: Sequence[int], wanted: Sequence[int]) -> str | None:
    """Where the tokens of one sequence stop being those that were wanted; None if they are the same."""
    for place, (token, other) in enumerate(zip(got, wanted, strict=False)):
        if token != other:
            return f"token {place} is {token}, not {other}"
    return f"there are {len(got)} tokens, not {len(wanted)}" if len(got) != len(wanted) else None


def kind_of(loss: Loss) -> str:
    """A `recovery.FailureKind`, or `silent` for a server that was overtaken while it was."""
    return loss.kind if isinstance(loss, PeerFailed) else "silent"


CHECKERS: tuple[Checker, ...] = (
    positions_grow_by_the_step,
    tokens_come_once_and_in_order,
    failures_end_in_recovery_or_in_an_error,
    recoveries_keep_the_budget,
    failures_are_noticed_in_time,
    waiting_ends_in_time,
    new_routes_leave_the_failed_out,
    routes_hold_each_block_once,
)
"""All of them; each sees what no other does."""


def objections(account: Account) -> tuple[str, ...]:
    """Everything that the checkers find, in their order."""
    return tuple(line for checker in CHECKERS for line in checker(account))


def _not_returned(sessions: Sequence[Sequence[TokensEmitted]], ids: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """How the tokens that sessions have streamed differ from those that were returned."""
    returned = list(ids)
    for emitted in sessions:
        if len({len(event.ids) for event in emitted}) > 1:
            yield "the streamed batch changed its size"
            continue
        streamed = list(zip(*(event.ids for event in emitted), strict=True))
        others = []
        for row in streamed:
            if row in returned:
                returned.remove(row)
            else:
                others.append(row)
        for row in others:
            nearest = max(returned, key=lambda ids: _alike(row, ids), default=None)
            if nearest is None:
                yield f"a sequence of {len(row)} tokens was streamed and not returned"
                continue
            returned.remove(nearest)
            # Of a batch, a sequence that stops before the others is streamed with padding, and returned without.
            if len(others) == len(streamed) or row[: len(nearest)] != nearest:
                yield f"what was streamed is not what was returned: {difference(row, nearest)}"
    if returned:
        yield f"{len(returned)} sequences were returned and not streamed"


def _alike(row: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (one, two) in enumerate(zip(row, other, strict=False)) if one != two), len(row))


def _back(out: Sequence[Hop], now: Sequence[Hop], route: Sequence[Hop]) -> Iterator[str]:
    for lost in dict.fromkeys(out):
        same = [hop for hop in (*now, *route) if hop.peer == lost.peer]
        if any(hop in now or hop.blocks.intersection(lost.blocks) is not None for hop in same):
            yield f"{lost.label} had failed on {lost.blocks}, and then it was to serve {written(same[:1])}"


def _since(struck: dict[NodeName, float], loss: PeerFailed) -> float:
    """How long ago its server was struck, in ms; infinity if it was not."""
    at_s = None if loss.hop.node is None else struck.get(loss.hop.node)
    return math.inf if at_s is None or at_s > loss.at_s else (loss.at_s - at_s) * 1e3


def _unnoticed(loss: Loss, took_ms: float) -> Iterator[str]:
    limit_s = NOTICED_WITHIN_S.get(kind_of(loss))
    if limit_s is not None and not took_ms <= limit_s * 1e3:
        yield f"{loss.hop.label} was {kind_of(loss)} for {took_ms:.0f} ms of {limit_s * 1e3:.0f} before it was noticed"
