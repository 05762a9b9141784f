"""Everything swarmctl raises on purpose, and the exit code of each.

SwarmctlError                       1   something failed
├── UsageError                      2   the command line makes no sense
├── ConfigError                     3   the swarm file is invalid; carries every finding, not the first
├── CheckFailed                     4   a question was answered "no": unhealthy, not redundant, not recovered
│   ├── CoverageError               4   blocks without a replica
│   └── RecoveryFailed              4   no server could take a failed span over
├── Refused                         5   a safety rule said no and nothing was changed
├── DeadlineExceeded                6   a wait ended without what it waited for
├── HostUnreachable                 7   a host did not answer; the others are done
│   └── HostNotSetUp                7   it answers, and swarmctl is not there, or another one than here
├── PartialFailure                  8   some nodes are done, some are not
├── Locked                          9   another operator holds the swarm
├── UpstreamMissing                 1   petals, hivemind or torch is not installed
├── UpstreamDrift                   1   the installed petals is not one this version was verified with
├── RequestInvalid                  2   the client's own mistake: too long, wrong batch, unknown model
└── NodeFailed                      1   a node did not start, or died; carries its last log lines

This module imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command returns to the shell; the meaning of each is part of the contract."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIG_INVALID = 3
    CHECK_NEGATIVE = 4
    REFUSED = 5
    DEADLINE = 6
    UNREACHABLE = 7
    PARTIAL = 8
    LOCKED = 9
    UNKNOWN_VERDICT = 12
    INTERRUPTED = 130


class SwarmctlError(Exception):
    """A known failure: what failed (`message`), why (`reasons`, with numbers), what to type next (`hints`).

    Texts are lower case without a full stop; a hint is a command that can be pasted, or a short instruction.
    `context` holds ids and numbers for machines and goes into the JSON output.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        reasons: Sequence[str] = (),
        hints: Sequence[str] = (),
        context: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reasons = tuple(reasons)
        self.hints = tuple(hints)
        self.context = dict(context or {})

    def __str__(self) -> str:
        return "\n  ".join((self.message, *self.reasons))


class UsageError(SwarmctlError):
    """The command line names something that does not exist, or contradicts itself."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a swarm file. `line` and `column` count from 1; `path` reads like `nodes.a0.blocks`."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str | None = None
    source_line: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: "
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class ConfigError(SwarmctlError, ValueError):
    """The swarm file is invalid; `findings` holds every fault in the order of the file."""

    exit_code = ExitCode.CONFIG_INVALID

    def __init__(self, message: str, *, findings: Sequence[Finding] = (), hints: Sequence[str] = ()) -> None:
        super().__init__(message, reasons=[str(f) for f in findings], hints=hints)
        self.findings = tuple(findings)


class CheckFailed(SwarmctlError):
    """A question was answered "no"."""

    exit_code = ExitCode.CHECK_NEGATIVE


class CoverageError(CheckFailed):
    """Blocks lack the replicas that were asked for."""


class RecoveryFailed(CheckFailed):
    """No server could take a failed span over in time; the context names blocks, peers tried and position."""


class Refused(SwarmctlError):
    """A safety rule said no, nothing was changed; each reason names its override where there is one."""

    exit_code = ExitCode.REFUSED


class DeadlineExceeded(SwarmctlError, TimeoutError):
    """A wait ended without what it waited for; reasons hold the last observation."""

    exit_code = ExitCode.DEADLINE


class HostUnreachable(SwarmctlError):
    """A host did not answer; what could be done on the others is done."""

    exit_code = ExitCode.UNREACHABLE


class HostNotSetUp(HostUnreachable):
    """A host can be logged in to, and has no swarmctl that this one can talk to."""


class PartialFailure(SwarmctlError):
    """Some nodes are done, some are not; reasons hold one line a failed node."""

    exit_code = ExitCode.PARTIAL


class Locked(SwarmctlError):
    """Another operator holds the swarm; reasons say who, since when and why."""

    exit_code = ExitCode.LOCKED


class UpstreamMissing(SwarmctlError, ImportError):
    """petals, hivemind, torch or transformers cannot be imported."""


class UpstreamDrift(SwarmctlError):
    """An upstream function that a patch relies on is not one this version was verified with."""


class RequestInvalid(SwarmctlError, ValueError):
    """The client's own mistake; retrying elsewhere cannot help, so nothing is retried."""

    exit_code = ExitCode.USAGE


class NodeFailed(SwarmctlError):
    """A node did not start or died; reasons end with its last log lines."""
