"""Facts that happened, for operators, live views and tests: past tense, ids and numbers, no sentences.

A sink is any callable that takes one event. It is called in order, from one thread at a time, and must not block:
whoever needs to draw or write does it elsewhere. `encode` and `decode` are the JSON-lines form, and round trip.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from swarmctl.blocks import BlockRange, NodeName, PeerId


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One span of a route. `node` is the declared name of the peer, None for one that is not in the file."""

    blocks: BlockRange
    peer: PeerId
    node: NodeName | None = None

    @property
    def label(self) -> str:
        """The node's name where it is known, else the last six characters of the peer id."""
        return str(self.node) if self.node else f"…{self.peer[-6:]}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all facts. `at_s`: seconds since the run began, on a monotonic clock."""

    at_s: float = 0.0


# --- a client's session -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RouteChosen(Event):
    """A session found servers for all its blocks; the first route of the session."""

    route: tuple[Hop, ...]
    took_ms: float


@dataclass(frozen=True, kw_only=True)
class StepDone(Event):
    """One forward through all blocks was committed on all spans. `position`: tokens cached after it."""

    step: int
    position: int
    tokens: int
    batch: int
    took_ms: float


@dataclass(frozen=True, kw_only=True)
class TokensEmitted(Event):
    """New token ids were handed to the user; one tuple a sequence of the batch."""

    index: int
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PeerSuspected(Event):
    """A server took longer than expected; nothing is decided yet."""

    hop: Hop
    silent_ms: float


@dataclass(frozen=True, kw_only=True)
class HedgeStarted(Event):
    """While `hop` is late, `now` are fed the same history beside it; the first complete answer wins."""

    hop: Hop
    now: tuple[Hop, ...]


@dataclass(frozen=True, kw_only=True)
class HedgeDropped(Event):
    """The late server answered first, after `waited_ms`; the others are let go, and nothing is held against it."""

    hop: Hop
    dropped: tuple[Hop, ...]
    waited_ms: float


@dataclass(frozen=True, kw_only=True)
class PeerOvertaken(Event):
    """Another way had the answer while this server was silent for `silent_ms`; whether it is well, nobody knows yet."""

    hop: Hop
    position: int
    silent_ms: float


@dataclass(frozen=True, kw_only=True)
class PeerFailed(Event):
    """A span's server is given up. `kind`: a `recovery.FailureKind`; `detect_ms`: since the request."""

    hop: Hop
    kind: str
    reason: str
    position: int
    in_flight: bool
    detect_ms: float


@dataclass(frozen=True, kw_only=True)
class RouteChanged(Event):
    """A failed span `was` is taken over by one or several servers."""

    was: Hop
    now: tuple[Hop, ...]
    route: tuple[Hop, ...]
    took_ms: float


@dataclass(frozen=True, kw_only=True)
class WaitingForPeers(Event):
    """No server is left for some blocks; the session waits for one until the deadline."""

    blocks: BlockRange
    remaining_s: float


@dataclass(frozen=True, kw_only=True)
class ReplayStarted(Event):
    """A new server is being fed the history of its span."""

    hop: Hop
    tokens: int
    chunks: int


@dataclass(frozen=True, kw_only=True)
class ReplayDone(Event):
    """The new server's cache holds what the lost one held."""

    hop: Hop
    tokens: int
    took_ms: float


@dataclass(frozen=True, kw_only=True)
class RecoveryDone(Event):
    """The step that met the failure is complete. `pause_ms`: from the failure's detection to the step's end.

    `failed`: the servers that were replaced, also one that was only overtaken.
    """

    position: int
    failed: tuple[PeerId, ...]
    replayed_tokens: int
    pause_ms: float
    step_ms: float


@dataclass(frozen=True, kw_only=True)
class RecoveryGivenUp(Event):
    """No server took the span over in time."""

    blocks: BlockRange
    position: int
    tried: tuple[PeerId, ...]
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class FaultInjected(Event):
    """A drill: a fault was injected on purpose (`kill`, …) at this token."""

    fault: str
    node: NodeName
    token: int
    in_flight: bool


# --- nodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeStarted(Event):
    """A node's runner was started."""

    node: NodeName
    pid: int
    peer: PeerId
    port: int


@dataclass(frozen=True, kw_only=True)
class NodePhase(Event):
    """A starting node moved on. `phase`: starting, loading, joining, online; `done` of `total` blocks loaded."""

    node: NodeName
    phase: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeReady(Event):
    """A node is ONLINE in the DHT and answered a one-token forward."""

    node: NodeName
    took_s: float
    probe_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class NodeLost(Event):
    """A node did not come up, or ended. `log_tail`: its last log lines."""

    node: NodeName
    reason: str
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeStopped(Event):
    """A node is gone: process group, port, sockets and record were checked. `how`: stopped, killed, already."""

    node: NodeName
    how: str
    took_s: float


EventSink = Callable[[Event], None]
"""Takes events in order, from one thread at a time; must not block."""

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def encode(event: Event) -> str:
    """One JSON line: `{"event": "StepDone", "at_s": …, …}`; block ranges become `"0:8"`."""
    return json.dumps({"event": type(event).__name__, **_plain(event)}, ensure_ascii=False)


def decode(line: str) -> Event:
    """The event of one JSON line.

    Raises:
        ValueError: when the line names no event of this version or lacks a field.
    """
    raw = json.loads(line)
    name = raw.pop("event", None) if isinstance(raw, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"not an event of this version: {line[:80]}")
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _typed(hints[name], value) for name, value in raw.items()})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{kind.__name__} does not fit: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, BlockRange):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _typed(hint: Any, value: Any) -> Any:
    if hint is BlockRange:
        start, end = value.split(":")
        return BlockRange(int(start), int(end))
    if hint is Hop:
        types = get_type_hints(Hop)
        return Hop(**{name: _typed(types[name], item) for name, item in value.items()})
    if isinstance(value, list):
        inner = hint.__args__[0]
        return tuple(_typed(inner, item) for item in value)
    return value
