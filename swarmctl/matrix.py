"""The cells of `verify recovery`: which fault, when, to whom, with which cover, under which traffic. Pure values.

A cell is one experiment. Its name, `llama/kill/mid-step/first/same/greedy`, is what people type and files are called
by. Not every combination is possible; `impossible` says why one is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
