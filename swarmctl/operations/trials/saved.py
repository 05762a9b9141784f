"""Histories of trials in a folder: one file a trial, to be judged again later."""

from __future__ import annotations

from pathlib import Path

from swarmctl.errors import UsageError
from swarmctl.trial import Trial, decode_trial

SUFFIX = ".jsonl"


def read_saved(folder: Path) -> tuple[Trial, ...]:
    """The trials of a folder and the folders in it, in the order of the files' names.

    Raises:
        UsageError: there is no history, or some are damaged; each of these is named with the line that is wrong.
    """
    files = sorted(folder.rglob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not files:
        what = f"no {SUFFIX} file is in it" if folder.is_dir() else "there is no such folder"
        raise UsageError(
            f"{folder} holds no histories",
            reasons=[what],
            hints=[f"swarmctl verify recovery --save {folder}"],
        )
    trials, damaged = [], []
    for file in files:
        try:
            trials.append(decode_trial(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            damaged.append(f"{file}: {error}")
    if damaged:
        raise UsageError(
            f"{len(damaged)} of {len(files)} histories in {folder} cannot be read",
            reasons=damaged,
            hints=["take them away, or record them again with --save"],
        )
    return tuple(trials)
