"""`swarmctl lock status` and `swarmctl lock break`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from swarmctl.errors import Refused
from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of

group = typer.Typer(help="See who changes the swarm now, or end that.")


@group.command("status")
def status(ctx: typer.Context, config: options.Config = None, output: options.Output = None) -> None:
    """Show who holds the operator lock, since when, for what, and when they were last heard of.

    The lock is kept on the first bootstrap peer's host and ends with its holder's connection, so there is seldom
    anything to break.

    \b
    Examples:
      swarmctl lock status
      swarmctl lock status -o json | jq .data.holder
    """
    run = run_of(ctx, Given(config=config, output=output))
    from rich.text import Text

    from swarmctl.operations.locking import read_lock

    found = read_lock(run.site())
    words = f"{found.holder_in_words} (kept on {found.host})" if found.holder else f"nobody (kept on {found.host})"
    data = {"host": str(found.host), "holder": None if found.holder is None else asdict(found.holder)}
    run.out.emit(data, human=lambda: Text(words))


@group.command("break")
def break_(
    ctx: typer.Context,
    why: options.Why = None,
    yes: options.Yes = False,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Take the operator lock away from its holder, who stops before the next thing it would have done.

    Asks first on a terminal; elsewhere it wants --yes. It is written into the log of events.

    \b
    Examples:
      swarmctl lock break -m "their laptop was stolen"
    """
    run = run_of(ctx, Given(config=config, output=output, yes=yes, why=why))
    from rich.text import Text

    from swarmctl.operations.locking import break_lock, read_lock

    site = run.site()
    found = read_lock(site)
    if found.holder is not None and not run.yes:
        question = f"take the lock away from {found.holder_in_words}?"
        if not (run.out.stderr.isatty() and typer.confirm(question, err=True)):
            again = run.command("lock", "break", "-y")
            raise Refused(
                "the lock was not broken, because nobody said yes", reasons=[found.holder_in_words], hints=[again]
            )
    broken = break_lock(site)
    words = "nobody had the lock" if broken.holder is None else f"the lock is free; it was {broken.holder_in_words}"
    data = {"host": str(broken.host), "broken": None if broken.holder is None else asdict(broken.holder)}
    run.out.emit(data, human=lambda: Text(words))
