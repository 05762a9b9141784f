"""What an observer has seen of one server, and what that amounts to: does it compute?

A look (`liveness.look`) comes every second and costs nothing; it tells who is gone, or stopped. A one-token forward
comes now and then, and is the proof that requests reach the process that computes. Each excuses the other: a forward
that waits behind a long task is no bad sign while the heartbeat says that the server is at work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarmctl.upstream.liveness import LifeSign, Liveness

STUCK_S = 60.0
"""One task that takes longer than this is taken for one that never ends: four times what clients wait for a step."""

# Two looks, and what may be between them: between two tasks of a busy server a look may find it idle.
_AT_WORK_S = 2.5


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A one-token forward that has ended, at `at` (UTC epoch seconds). `reason` says why it failed, None if it did not.

    `took_ms` is None when there was no answer.
    """

    at: float
    took_ms: float | None = None
    reason: str | None = None
    late: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Does it compute, by what was seen at `at` (UTC epoch seconds)? `took_ms`: None if no token tells."""

    ok: bool
    at: float
    took_ms: float | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """The newest look and the newest forward. Times are UTC epoch seconds.

    `ours`, `graphs`: what the last heartbeat said; a server that falls silent is still the one that it was.
    `busy_at`: when a look last found it at work.
    """

    life: Liveness | None = None
    looked_at: float = 0.0
    busy_at: float | None = None
    ours: bool | None = None
    graphs: str | None = None
    computed: Computed | None = None

    def after_look(self, life: Liveness, at: float) -> Sighting:
        """With a look more."""
        seen = replace(self, life=life, looked_at=at, busy_at=at if life.busy_s > 0 else self.busy_at)
        if life.ours is None:
            return seen
        return replace(seen, ours=life.ours, graphs=None if life.beat is None else life.beat.graphs)

    def after_forward(self, computed: Computed) -> Sighting:
        """With a forward more; one that was late behind other tasks is held against nobody."""
        busy = self.busy_at is not None and computed.at - self.busy_at <= _AT_WORK_S
        if computed.late and busy:
            computed = Computed(at=computed.at)
        return replace(self, computed=computed)

    @property
    def finding(self) -> Finding | None:
        """None until there is something to tell: a server that was looked at and has not computed yet is unknown."""
        life = self.life
        if life is not None and not life.is_there:
            return Finding(ok=False, at=self.looked_at, reason=life.reason)
        if life is not None and life.busy_s > STUCK_S:
            reason = f"it has been computing one task for {life.busy_s:.0f} s"
            return Finding(ok=False, at=self.looked_at, reason=reason)
        if self.computed is None:
            return None
        done = self.computed
        return Finding(ok=done.reason is None, at=done.at, took_ms=done.took_ms, reason=done.reason)

    @property
    def busy_s(self) -> float | None:
        """For how long it has been computing one task, 0 if it is idle; None if it does not say."""
        if self.life is None or self.life.beat is None or self.life.sign is not LifeSign.ALIVE:
            return None
        return self.life.busy_s
