"""`swarmctl logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmctl.errors import UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of
from swarmctl_cli.output import Format


def logs(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    tail: Annotated[int, typer.Option("-n", "--tail", min=0, help="Lines a node, from the end; 0 for all.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")] = False,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", show_default=False, help="Only lines with a match.")
    ] = None,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Print what nodes have written, also those that have ended; without NODE, all of them.

    \b
    Examples:
      swarmctl logs left-a
      swarmctl logs --grep 'ERROR|Traceback' -n 0
      swarmctl logs right-a -f
    """
    run = run_of(ctx, Given(config=config, output=output))
    from swarmctl.operations.logs import read
    from swarmctl.operations.selection import candidates

    if follow and run.out.format in (Format.JSON, Format.YAML):
        raise UsageError("a log that is followed has no end and makes no document", hints=["-o jsonl"])
    site = run.site()
    chosen = run.select(site, nodes or ()) or tuple(candidate.name for candidate in candidates(site))
    gutter = max((len(name) for name in chosen), default=0) if len(chosen) > 1 else 0
    lines = read(site, chosen, tail=tail or None, follow=follow, grep=grep)
    if run.out.format in (Format.JSON, Format.YAML):
        run.out.emit([{"node": str(name), "line": line} for name, line in lines], human=lambda: "")
        return
    try:
        for name, line in lines:
            if run.out.format is Format.JSONL:
                run.out.line({"node": str(name), "line": line})
            else:
                run.out.text(f"{name.ljust(gutter)} | {line}\n" if gutter else f"{line}\n")
    except KeyboardInterrupt:
        if not follow:
            raise
