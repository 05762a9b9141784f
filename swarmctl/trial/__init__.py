"""What a cell of `verify recovery` left behind, and the judgement of it: made afterwards, and again from the file."""

from swarmctl.trial.judging import judge
from swarmctl.trial.saving import decode_trial, encode_trial
from swarmctl.trial.summing import Summary, Tally, summarise
from swarmctl.trial.values import (
    CellDone,
    CellStarting,
    Progress,
    Result,
    Run,
    StageStarting,
    Subject,
    Tokens,
    Trial,
    Verdict,
)

__all__ = [
    "CellDone",
    "CellStarting",
    "Progress",
    "Result",
    "Run",
    "StageStarting",
    "Subject",
    "Summary",
    "Tally",
    "Tokens",
    "Trial",
    "Verdict",
    "decode_trial",
    "encode_trial",
    "judge",
    "summarise",
]
