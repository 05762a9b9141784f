"""What one host said when it was looked at; the input of `judging`."""

from __future__ import annotations

from dataclasses import dataclass

from swarmctl.blocks import HostName
from swarmctl.errors import HostUnreachable
from swarmctl.node.checkup import Checkup
from swarmctl.transport.base import AgentFacts, HostedNode


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How far a host's clock is ahead of this machine's, and by how much that may be wrong; seconds."""

    ahead_s: float
    error_s: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One host. `failure`: it does not answer, and nothing else is known. `broken`: why there is no `checkup`."""

    host: HostName
    failure: HostUnreachable | None = None
    facts: AgentFacts | None = None
    round_trip_s: float = 0.0
    clock: Clock | None = None
    nodes: tuple[HostedNode, ...] = ()
    checkup: Checkup | None = None
    broken: str | None = None
