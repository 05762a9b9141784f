"""The reports of `verify recovery`: what stdout gets, and the files that were asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from swarmctl.errors import CheckFailed, ExitCode, SwarmctlError, UsageError
from swarmctl.trial import Result, Verdict, summarise
from swarmctl_cli.context import Run
from swarmctl_cli.errors import VerdictUnknown
from swarmctl_cli.views import recovery
from swarmctl_cli.views.measure import count
from swarmctl_cli.views.recovery import Outcome

_WORDS = ("verify", "recovery")


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where reports go besides stdout."""

    junit: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Find out before minutes of trials, and not after, that a file cannot be written.

        Raises:
            UsageError: names the file.
        """
        if self.junit is not None and self.html is not None and self.junit.resolve() == self.html.resolve():
            raise UsageError("--junit and --html name the same file", reasons=[str(self.junit)])
        for path in (self.junit, self.html):
            folder = None if path is None else path.absolute().parent
            if folder is None or path is None:
                continue
            if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
                why = "it is a folder" if path.is_dir() else f"{folder} is no folder that can be written to"
                raise UsageError(f"cannot write the report {path}", reasons=[why])


def check_folder(folder: Path) -> None:
    """Find out before minutes of trials that histories cannot be kept in `folder`; makes nothing.

    Raises:
        UsageError: it is, or would have to be in, something that is no folder or cannot be written to.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = f"{there} is a file" if not there.is_dir() else f"{there} cannot be written to"
        raise UsageError(f"cannot keep histories in {folder}", reasons=[why])


def conclude(run: Run, outcomes: Sequence[Outcome], files: Files, *, partly: SwarmctlError | None = None) -> None:
    """Publish the outcomes and end the command with their answer, or with `partly` where that is yes.

    Raises:
        typer.Exit: with the exit code of an answer that is not yes.
        SwarmctlError: as `publish`.
    """
    error = negative(run, [outcome.result for outcome in outcomes]) or partly
    publish(run, outcomes, files, cause=error)
    if error is not None:
        raise typer.Exit(error.exit_code)


def publish(run: Run, outcomes: Sequence[Outcome], files: Files, *, cause: SwarmctlError | None) -> None:
    """Write the results to stdout in the format asked for, and the files. `cause`: what the document says went wrong.

    Raises:
        SwarmctlError: when a file cannot be written; stdout has everything by then.
    """
    from swarmctl_cli.views import junit, recovery_html, symbols

    results = [outcome.result for outcome in outcomes]
    command = run.command(*_WORDS)
    chosen = symbols.choose(run.out.ascii_only)
    run.out.emit(
        recovery.document(results),
        human=lambda: recovery.render(outcomes, command=command, width=run.out.width, symbols=chosen),
        names=list(dict.fromkeys(str(result.cell) for result in results)),
        rows=[recovery.fields(result) for result in results],
        error=cause,
    )
    if files.junit is not None:
        _write(run, files.junit, junit.render(outcomes))
    if files.html is not None:
        _write(run, files.html, recovery_html.render(outcomes, command=command, about=_about(run)))


def negative(run: Run, results: Sequence[Result]) -> SwarmctlError | None:
    """The answer if it is not yes: something differs or failed, or else, is not known. Only our client counts."""
    code = summarise(results).exit_code
    if code is ExitCode.OK:
        return None
    lost = code is ExitCode.CHECK_NEGATIVE
    told = [one for one in recovery.unproved(results) if lost is not (one.verdict is Verdict.NOT_HIT)]
    kind = CheckFailed if lost else VerdictUnknown
    what = "not recovered" if lost else "not known: the fault did not bite"
    return kind(
        f"{count(len(told), 'cell')} {what}",
        reasons=[f"{one.cell}: {one.verdict.value}: {recovery.reason_of(one)}" for one in told],
        hints=[run.command(*_WORDS, str(one.cell)) for one in told],
    )


def _about(run: Run) -> tuple[str, ...]:
    from datetime import datetime, timezone
    from importlib import metadata

    versions = []
    for name in ("swarmctl", "petals", "hivemind"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    where = f"swarm {run.out.swarm}" if run.out.swarm else "tiny models on this machine"
    return (f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", where, *versions)


def _write(run: Run, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SwarmctlError(f"cannot write the report {path}", reasons=[str(error)]) from error
    run.out.say(f"wrote {path}")
