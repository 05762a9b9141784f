"""`swarmctl down`."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmctl.errors import Refused
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of


def down(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    allow_gap: options.AllowGap = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove keys and logs too; the next start is a new peer.")
    ] = False,
    swarm: options.Swarm = None,
    why: options.Why = None,
    lock_wait: options.LockWait = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Stop the whole swarm, or the nodes named, and verify that nothing of them is left.

    Servers leave first, then bootstrap peers. Also finds nodes that are no longer in the file. No process, port,
    socket or record stays; keys and logs do, unless --purge. Naming nodes that blocks depend on is refused (exit
    code 5) without --allow-gap.

    \b
    Examples:
      swarmctl down
      swarmctl down left-a
      swarmctl down --purge -y
      swarmctl down --swarm lab
    """
    given = Given(
        config=config,
        output=output,
        quiet=quiet,
        yes=yes,
        dry_run=dry_run,
        timeout=timeout,
        why=why,
        lock_wait=lock_wait,
    )
    run = run_of(ctx, given, has_names=True)
    from dataclasses import asdict

    from rich.text import Text

    from swarmctl.operations import down as operation
    from swarmctl.operations.removal import judge_removal, refuse_new_gaps
    from swarmctl.operations.status import list_processes
    from swarmctl_cli.live import follow_rollout
    from swarmctl_cli.views.measure import count

    site = run.site_named(swarm)
    chosen = run.select(site, nodes or ())
    if chosen and not allow_gap and swarm is None:
        override = run.command("down", *chosen, "--allow-gap")
        refuse_new_gaps([judge_removal(site, chosen)], verb="stopping", override=override)
    if run.dry_run:
        running = [str(row.node) for row in list_processes(site) if not chosen or row.node in chosen]
        words = f"would stop {', '.join(running)}" if running else "nothing runs, nothing to stop"
        run.out.emit({"dry_run": True, "nodes": running}, human=lambda: Text(words), names=running)
        return
    if purge:
        _confirm(run, chosen)
    run.interrupt_note = f"some nodes may still run; go on with: {run.command('down')}"
    with follow_rollout(run.out) as sink:
        stopped = operation.down(
            site, nodes=chosen, sink=sink, deadline_s=run.timeout_s or operation.DOWN_S, purge=purge
        )
    rows = [asdict(event) for event in stopped]
    words = f"{count(len(stopped), 'node')} down, nothing left" if stopped else "nothing ran, nothing to do"
    data = {"dry_run": False, "nodes": rows}
    run.out.emit(data, human=lambda: Text(words), names=[str(event.node) for event in stopped], rows=rows)


def _confirm(run: Run, chosen: tuple[str, ...]) -> None:
    if run.yes:
        return
    what = ", ".join(chosen) or "all nodes"
    if not (run.out.stderr.isatty() and typer.confirm(f"remove keys and logs of {what} for good?", err=True)):
        again = run.command("down", *chosen, "--purge", "-y")
        raise Refused(f"the keys and logs of {what} were not removed, because nobody said yes", hints=[again])
