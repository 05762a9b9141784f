"""`swarmctl events`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from swarmctl.errors import UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of
from swarmctl_cli.output import Format


def events(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new ones until Ctrl-C.")] = False,
    since: Annotated[
        float | None,
        typer.Option(
            "--since", parser=options.parse_duration, metavar="TIME", show_default=False, help="Only this far back, 2h."
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", show_default=False, help="Only this type; may be repeated."),
    ] = None,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Show what was done to the swarm: when, by whom, what, to which node, and why (the -m of each command).

    Types are started, stopped, killed, lost and lock-broken. The log is kept on the bootstrap peers' hosts, beside the
    operator lock; nothing removes it but `down --purge` of the whole swarm.

    \b
    Examples:
      swarmctl events --since 24h
      swarmctl events -f --type killed --type lost
      swarmctl events -o jsonl | jq -r 'select(.node == "left-a") | .why'
    """
    run = run_of(ctx, Given(config=config, output=output))
    from swarmctl.operations.history import read
    from swarmctl_cli.views import journal as view

    if follow and run.out.format in (Format.JSON, Format.YAML):
        raise UsageError("a log that is followed has no end and makes no document", hints=["-o jsonl"])
    entries = read(
        run.site(), since=None if since is None else time.time() - since, kinds=frozenset(kinds or ()), follow=follow
    )
    if run.out.format is Format.JSONL or follow:
        try:
            for entry in entries:
                if run.out.format is Format.JSONL:
                    run.out.line(asdict(entry))
                else:
                    run.out.console.print(view.line(asdict(entry)))
        except KeyboardInterrupt:
            if not follow:
                raise
        return
    found = [asdict(entry) for entry in entries]
    run.out.emit(found, human=lambda: view.render(found))
