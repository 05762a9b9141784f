"""What a cell of `verify recovery` leaves behind, and what is told of it on the way: values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarmctl.events import Event
from swarmctl.matrix import Cell

Tokens = tuple[tuple[int, ...], ...]
"""New token ids, one tuple a sequence of the batch."""


class Subject(str, Enum):
    """Whose client was tried: ours, or petals' own as it is installed."""

    SWARMCTL = "swarmctl"
    STOCK = "stock"


class Verdict(str, Enum):
    """IDENTICAL: the tokens of the undisturbed run. WITHIN: others, from the first tie on that arithmetic decides.

    DIFFERENT: other tokens, or some lost or doubled. FAILED: no answer, or a checker objects. NOT_HIT: the fault did
    not bite, so nothing is known.
    """

    IDENTICAL = "identical"
    WITHIN = "within-tolerance"
    DIFFERENT = "different"
    FAILED = "failed"
    NOT_HIT = "not-hit"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One session of a trial.

    `expected`: the undisturbed run's tokens; `local`: those of transformers alone, None where it has no equal. `ids`
    is None if the session ended with `error`.

    `distances`: for each step, the largest difference of a final hidden state to the undisturbed run's, relative to
    that run's largest value; empty where they were not compared. `margins`: for each step of the undisturbed run, how
    far its best logit was above the second, relative to the same; empty where there are none (sampling, beams).
    """

    events: tuple[Event, ...]
    expected: Tokens
    local: Tokens | None = None
    ids: Tokens | None = None
    error: str | None = None
    distances: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One cell, tried once. `missed`: why the fault did not bite; None if it did. `budget_s`: for each recovery."""

    cell: Cell
    subject: Subject
    num_blocks: int
    runs: tuple[Run, ...]
    took_s: float
    missed: str | None = None
    budget_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """The judgement of a trial; times in ms, None where there was nothing to measure.

    `detect_ms`: from the victim's request to the client's giving it up. `replay_ms`: rebuilding caches. `pause_ms`:
    the longest step with a failover, what a reader waited between two tokens. `tokens_lost`: of the undisturbed run.
    """

    cell: Cell
    subject: Subject
    verdict: Verdict
    detect_ms: float | None = None
    replay_ms: float | None = None
    pause_ms: float | None = None
    step_ms_median: float | None = None
    replayed_tokens: int = 0
    tokens_lost: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StageStarting:
    """A swarm for the next cells is being started."""

    family: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CellStarting:
    """A cell begins; `index` from 0 of `total` trials."""

    cell: Cell
    subject: Subject
    index: int
    total: int


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """A cell was judged. `trial`: what it was judged by; None where the cell came to no trial."""

    result: Result
    index: int
    total: int
    trial: Trial | None = None


Progress = StageStarting | CellStarting | CellDone
