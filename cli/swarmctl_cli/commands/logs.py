"""`swarmctl logs`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import HostUnreachable, UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of
from swarmctl_cli.output import Format

if TYPE_CHECKING:
    from collections.abc import Iterable

    from swarmctl.blocks import HostName, NodeName
    from swarmctl.operations.logs import NodeLine


def logs(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    tail: Annotated[int, typer.Option("-n", "--tail", min=0, help="Lines a node, from the end; 0 for all.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", show_default=False, help="Only this far back, 10m, or from a moment in UTC on."
        ),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", show_default=False, help="Only lines with a match.")
    ] = None,
    timestamps: Annotated[bool, typer.Option("-t", "--timestamps", help="Show when each line came, in UTC.")] = False,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Print what nodes have written, also those that have ended; without NODE, all of them, in the order of time.

    \b
    Examples:
      swarmctl logs left-a
      swarmctl logs --grep 'ERROR|Traceback' -n 0
      swarmctl logs @gpu-a --since 10m -t
      swarmctl logs --since 2026-12-07T08:00 -n 0
      swarmctl logs right-a right-b -f
    """
    run = run_of(ctx, Given(config=config, output=output))
    from swarmctl.operations.logs import read
    from swarmctl.operations.selection import candidates

    if follow and run.out.format in (Format.JSON, Format.YAML):
        raise UsageError("a log that is followed has no end and makes no document", hints=["-o jsonl"])
    site = run.site()
    chosen = run.select(site, nodes or ()) or tuple(candidate.name for candidate in candidates(site))

    def heard(host: HostName, failure: HostUnreachable | None) -> None:
        if failure is None:
            run.out.say(f"host {host} answers again")
        else:
            run.out.warn(f"{failure.message}; going on without it until it answers")

    begin = None if since is None else moment_of(since, site.clock.now())
    lines = read(site, chosen, tail=tail or None, since=begin, follow=follow, grep=grep, heard=heard)
    if run.out.format in (Format.JSON, Format.YAML):
        _document(run, lines)
        return
    try:
        _print(run, lines, chosen, timestamps=timestamps)
    except KeyboardInterrupt:
        if not follow:
            raise


def moment_of(written: str, now: datetime) -> float:
    """Epoch seconds of `10m` (before `now`) or of an ISO moment, which is UTC unless it says otherwise.

    Raises:
        UsageError: when the text is neither.
    """
    try:
        return now.timestamp() - options.parse_duration(written)
    except typer.BadParameter:
        pass
    try:
        moment = datetime.fromisoformat(written.strip().replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f"--since {written!r} is neither a duration nor a moment",
            hints=["a duration: --since 10m", "a moment in UTC: --since 2026-12-07T08:00"],
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()


def _row(line: NodeLine) -> dict[str, object]:
    return {"node": str(line.node), "host": str(line.host), "at": line.at, "line": line.text}


def _document(run: Run, lines: Iterable[NodeLine]) -> None:
    rows: list[dict[str, object]] = []
    failure: HostUnreachable | None = None
    try:
        for line in lines:
            rows.append(_row(line))
    except HostUnreachable as error:
        failure = error
    run.out.emit(rows, human=lambda: "", error=failure)
    if failure is not None:
        raise failure


def _print(run: Run, lines: Iterable[NodeLine], names: tuple[NodeName, ...], *, timestamps: bool) -> None:
    from swarmctl_cli.views.loglines import LogLines

    view = LogLines(names, timestamps=timestamps)
    for line in lines:
        if run.out.format is Format.JSONL:
            run.out.line(_row(line))
        elif run.out.screen:
            run.out.console.print(view.line(line.node, line.at, line.text))
        else:
            run.out.text(f"{view.plain(line.node, line.at, line.text)}\n")
