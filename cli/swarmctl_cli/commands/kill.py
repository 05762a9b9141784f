"""`swarmctl kill`."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmctl.errors import UsageError
from swarmctl_cli import completion, options
from swarmctl_cli.context import Given, run_of


def kill(
    ctx: typer.Context,
    node: Annotated[
        str, typer.Argument(metavar="NODE", autocompletion=completion.nodes, help="One node, as for `restart`.")
    ],
    allow_gap: options.AllowGap = False,
    why: options.Why = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    dry_run: options.DryRun = False,
) -> None:
    """Crash a node on purpose: SIGKILL for everything it started, at once, without a word to anybody.

    For drills. Clients must notice and move on; the DHT goes on saying ONLINE until the record expires, and `status`
    shows the node as STALE, then CRASHED. Refused (exit code 5) without --allow-gap if it is the last server of a
    block. `swarmctl up` brings it back.

    \b
    Examples:
      swarmctl kill left-a
      swarmctl kill left-a --dry-run
    """
    run = run_of(ctx, Given(config=config, output=output, quiet=quiet, dry_run=dry_run, why=why), has_names=True)
    from rich.text import Text

    from swarmctl.operations import kill as operation
    from swarmctl.operations.removal import judge_removal, refuse_new_gaps

    site = run.site()
    chosen = run.select(site, [node])
    if len(chosen) != 1:
        raise UsageError(f"{node} means {len(chosen)} nodes", reasons=[", ".join(chosen)], hints=["kill one at a time"])
    (name,) = chosen
    removal = judge_removal(site, [name])
    if not allow_gap:
        refuse_new_gaps([removal], verb="killing", override=run.command("kill", name, "--allow-gap"))
    for reason in removal.assessment.reasons:
        run.out.warn(reason)
    if not run.dry_run:
        operation.kill(site, name, sink=lambda _event: None)
    words = f"would kill {name}" if run.dry_run else f"{name} killed; bring it back with: {run.command('up')}"
    data = {"dry_run": run.dry_run, "node": str(name), "harms": list(removal.assessment.reasons)}
    run.out.emit(data, human=lambda: Text(words), names=[str(name)])
