"""Histories of trials in a folder: one file a trial, to be judged again later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarmctl.errors import SwarmctlError, UsageError
from swarmctl.trial import Trial, decode_trial

SUFFIX = ".jsonl"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a folder holds: of each cell and client the newest trial, in the order of the files' names.

    `damaged`: one line a file that cannot be read, with the line of it that is wrong. `replaced`: one line a file that
    is left aside for a newer one.
    """

    trials: tuple[Trial, ...]
    damaged: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def read_saved(folder: Path) -> Saved:
    """The trials of a folder and the folders in it.

    Raises:
        UsageError: it is no folder, or no history is in it.
        SwarmctlError: every history in it is damaged; each is named with the line that is wrong.
    """
    files = _files(folder)
    read: dict[Path, Trial] = {}
    changed_ns: dict[Path, int] = {}
    damaged: list[str] = []
    for file in files:
        try:
            changed_ns[file] = file.stat().st_mtime_ns
            read[file] = decode_trial(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            damaged.append(f"{file}: {error}")
    if not read:
        raise SwarmctlError(
            f"no history in {folder} can be read",
            reasons=damaged,
            hints=["record them again: swarmctl verify recovery --save DIR"],
        )
    newest = {(read[file].cell, read[file].subject): file for file in sorted(read, key=lambda one: changed_ns[one])}
    kept = {file: newest[trial.cell, trial.subject] for file, trial in read.items()}
    return Saved(
        trials=tuple(read[file] for file, other in kept.items() if other == file),
        damaged=tuple(damaged),
        replaced=tuple(
            f"{file} does not count: {other} is newer, of the same cell and client"
            for file, other in kept.items()
            if other != file
        ),
    )


def _files(folder: Path) -> list[Path]:
    if not folder.exists():
        raise UsageError(
            f"{folder} holds no histories",
            reasons=["there is no such folder"],
            hints=["name the folder that was given to --save"],
        )
    if not folder.is_dir():
        raise UsageError(
            f"{folder} holds no histories", reasons=[f"that is a file; name its folder: {folder.absolute().parent}"]
        )
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    if not files:
        raise UsageError(
            f"{folder} holds no histories",
            reasons=[f"no {SUFFIX} file is in it"],
            hints=[f"swarmctl verify recovery --save {folder}"],
        )
    return files
