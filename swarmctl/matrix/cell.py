"""The axes of the matrix, a cell of it, and which combinations make sense."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from swarmctl.errors import UsageError


class Fault(str, Enum):
    """What happens to a server.

    KILL: SIGKILL of its process group. KILL_MAIN: of its main process only. STOP: SIGTERM. PAUSE: SIGSTOP of the
    group; PAUSE_MAIN: of the process that computes, behind living handlers. PARTITION: its packets are dropped,
    nothing is reset. SLOW: it answers after the suspicion time, then is well. LATE: it has computed, and dies before
    its answer arrives. FORGET: its announcement is gone while it serves. FULL: it is killed, and the server that would
    replace it has no room. RESTART: killed, and back with the same identity and empty caches. EXPIRE: nothing
    happens to it; it ends a stream that was idle or open too long for its own limits.
    """

    KILL = "kill"
    KILL_MAIN = "kill-main"
    STOP = "stop"
    PAUSE = "pause"
    PAUSE_MAIN = "pause-main"
    PARTITION = "partition"
    SLOW = "slow"
    LATE = "late"
    FORGET = "forget"
    FULL = "full"
    RESTART = "restart"
    EXPIRE = "expire"


class Moment(str, Enum):
    """When it happens.

    PREFILL: during the first request. CHUNK: in a later chunk of a long prefill. MID_STEP: a one-token request has
    left and is not answered. BETWEEN: between two steps. REPLAY: while a replacement is fed its history, which is then
    the victim. LAST: in the last step. IDLE: between two `generate` calls of one session (with EXPIRE: longer than
    the server's step_timeout). AGED: after a life beyond the server's session_timeout.
    """

    PREFILL = "prefill"
    CHUNK = "chunk"
    MID_STEP = "mid-step"
    BETWEEN = "between"
    REPLAY = "replay"
    LAST = "last"
    IDLE = "idle"
    AGED = "aged"


class Victim(str, Enum):
    """Whom it happens to: a span of the route by its place, or more.

    TWO: two spans in one step. HEIR: the replacement, too. ALL: every replica of a block, which ends in
    `RecoveryFailed` unless one comes back in time.
    """

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    TWO = "two"
    HEIR = "heir"
    ALL = "all"


class Cover(str, Enum):
    """Who can take over: a server of the SAME span, two shorter ones (SPLIT), or a LONGER one that starts earlier."""

    SAME = "same"
    SPLIT = "split"
    LONGER = "longer"


class Traffic(str, Enum):
    """What the client does meanwhile.

    GREEDY: one prompt. BATCHES: 1, 2 and 10 prompts, one after another on the same servers. BEAMS: beam search.
    SEVERAL: several new tokens a step. SAMPLING: with a seed. CHAT: one session over several `generate` calls.
    PROMPTS: deep prompt tuning. LONG: a history with more batch x tokens than a server takes in one request. CROWD:
    eight sessions at once that all lose the same server.
    """

    GREEDY = "greedy"
    BATCHES = "batches"
    BEAMS = "beams"
    SEVERAL = "several"
    SAMPLING = "sampling"
    CHAT = "chat"
    PROMPTS = "prompts"
    LONG = "long"
    CROWD = "crowd"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One experiment. `family`: `llama`, `bloom`, or what the operator's own model calls itself."""

    family: str
    fault: Fault = Fault.KILL
    moment: Moment = Moment.MID_STEP
    victim: Victim = Victim.FIRST
    cover: Cover = Cover.SAME
    traffic: Traffic = Traffic.GREEDY

    def __str__(self) -> str:
        parts = (self.fault, self.moment, self.victim, self.cover, self.traffic)
        return "/".join((self.family, *(part.value for part in parts)))


AXES: tuple[type[Enum], ...] = (Fault, Moment, Victim, Cover, Traffic)
"""The parts of a cell after its family, in the order of its name; the field of each is its name in lower case."""

_FORM = "/".join(("FAMILY", *(kind.__name__.upper() for kind in AXES)))


def parse_cell(text: str) -> Cell:
    """The cell of this name: the inverse of `str`. It need not be possible.

    Raises:
        UsageError: when there are not six parts, or some are no words of their axes; each of these is named.
    """
    family, *words = text.split("/")
    if not family or len(words) != len(AXES):
        raise UsageError(
            f"{text!r} is no cell",
            reasons=[f"a cell is {_FORM}, for example {Cell(family='llama')}"],
            hints=["swarmctl verify recovery --list"],
            context={"cell": text},
        )
    wrong, nearest = [], []
    for kind, word in zip(AXES, words, strict=True):
        known = [str(member.value) for member in kind]
        if word not in known:
            wrong.append(f"{word!r} is no {kind.__name__.lower()}; there are {', '.join(known)}")
        nearest += difflib.get_close_matches(word, known, n=1)
    if wrong:
        hints = [f"did you mean {'/'.join((family, *nearest))}?"] if len(nearest) == len(AXES) else []
        raise UsageError(f"{text!r} is no cell", reasons=wrong, hints=hints, context={"cell": text})
    fault, moment, victim, cover, traffic = words
    return Cell(
        family=family,
        fault=Fault(fault),
        moment=Moment(moment),
        victim=Victim(victim),
        cover=Cover(cover),
        traffic=Traffic(traffic),
    )


def impossible(cell: Cell) -> str | None:
    """Why this combination makes no sense, or shows nothing that a simpler one does not; None for a good cell."""
    found = objection(cell)
    return None if found is None else found[1]


def objection(cell: Cell) -> tuple[int, str] | None:
    """As `impossible`, with the number of the rule: of two cells the one with the higher number is less wrong."""
    rules = enumerate(_rules(cell))
    return next(((number, why) for number, (applies, why) in rules if applies), None)


# These faults leave the server where it is and well, so that nobody takes over from it for good.
_TAKES_NOBODY = (Fault.SLOW, Fault.FORGET, Fault.EXPIRE)
_WITHOUT_HEIR = {
    Fault.FORGET: "the server stays, so nobody takes over",
    Fault.EXPIRE: "the server stays, so nobody takes over",
    Fault.RESTART: "the server comes back in its own place, so nobody takes over",
    Fault.FULL: "a replacement without room is never fed",
}
_BETWEEN_CALLS = (Moment.IDLE, Moment.AGED)


def _rules(cell: Cell) -> Iterator[tuple[bool, str]]:
    """Each says when it objects, and why. Those about traffic are last: it is the easiest to change."""
    fault, moment, victim, cover, traffic = cell.fault, cell.moment, cell.victim, cell.cover, cell.traffic
    heir = victim is Victim.HEIR or moment is Moment.REPLAY
    yield fault is Fault.EXPIRE and moment not in _BETWEEN_CALLS, "a server ends a stream that is idle or old, no other"
    yield moment is Moment.AGED and fault is not Fault.EXPIRE, "age by itself is expire; idle is a moment for a blow"
    yield fault is Fault.LATE and moment in (Moment.BETWEEN, Moment.IDLE), "no answer is on its way then"
    yield fault is Fault.SLOW and moment is Moment.IDLE, "it would be slow while nobody asks it"
    yield fault is Fault.STOP and moment is Moment.LAST, "a server that is told to stop answers what it has begun"
    yield (
        fault is Fault.FORGET and moment in (Moment.PREFILL, Moment.CHUNK, Moment.LAST),
        "an announcement matters to later steps only; mid-step, between and idle have some",
    )
    yield heir and fault in _WITHOUT_HEIR, _WITHOUT_HEIR.get(fault, "")
    yield victim is Victim.HEIR and fault is Fault.SLOW, "a slow server may answer first, and then nobody takes over"
    yield victim is Victim.ALL and fault in _TAKES_NOBODY, "the servers are all still there"
    yield victim is Victim.ALL and fault is Fault.FULL, "nobody is left who could lack room"
    yield victim is Victim.ALL and moment is Moment.REPLAY, "nobody is left who could be fed"
    yield victim is Victim.TWO and moment is Moment.REPLAY, "one replacement is fed after the other, so one is struck"
    yield (
        fault is Fault.EXPIRE and victim is not Victim.FIRST,
        "nobody is struck: the servers' own limits end their streams; write first",
    )
    yield cover is not Cover.SAME and victim is Victim.ALL, "nobody is left to take over; write same"
    yield (
        cover is not Cover.SAME and fault in (Fault.FORGET, Fault.EXPIRE, Fault.RESTART),
        "nobody takes over from a server that stays or comes back; write same",
    )
    yield (
        cover is Cover.LONGER and victim in (Victim.FIRST, Victim.TWO),
        "no server starts before the first block",
    )
    yield traffic is not Traffic.LONG and moment is Moment.CHUNK, "only long traffic is sent in chunks"
    yield traffic is not Traffic.CHAT and moment in _BETWEEN_CALLS, "only a chat has a time between two calls"
    yield (
        traffic is Traffic.CROWD and moment in (Moment.PREFILL, Moment.LAST),
        "eight sessions have no first or last step in common",
    )
