"""`swarmctl restart`."""

from __future__ import annotations

import typer

from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of


def restart(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    allow_gap: options.AllowGap = False,
    why: options.Why = None,
    lock_wait: options.LockWait = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Restart nodes one after the other, each ready again before the next; without NODE, all block servers.

    A node that does not run is started. A restart that would leave blocks without a server meanwhile is refused
    (exit code 5) without --allow-gap.

    \b
    Examples:
      swarmctl restart left-a
      swarmctl restart '@gpu-a'
      swarmctl restart --timeout 30m
    """
    given = Given(
        config=config, output=output, quiet=quiet, dry_run=dry_run, timeout=timeout, why=why, lock_wait=lock_wait
    )
    run = run_of(ctx, given, has_names=True)
    from rich.text import Text

    from swarmctl.operations import restart as operation
    from swarmctl.operations.removal import judge_removal, refuse_new_gaps
    from swarmctl.operations.up import UP_S
    from swarmctl_cli.live import follow_rollout
    from swarmctl_cli.views.measure import count

    site = run.site()
    chosen = run.select(site, nodes or ()) or tuple(site.spec.nodes)
    if not allow_gap:
        # One at a time, so each is judged with the others in their places.
        removals = [judge_removal(site, [node]) for node in chosen]
        refuse_new_gaps(removals, verb="restarting", override=run.command("restart", *(nodes or ()), "--allow-gap"))
    names = [str(node) for node in chosen]
    if run.dry_run:
        words = f"would restart, in this order: {', '.join(names)}"
        run.out.emit({"dry_run": True, "nodes": names}, human=lambda: Text(words), names=names)
        return
    run.interrupt_note = f"a node may be down; settle it with: {run.command('up')}"
    with follow_rollout(run.out) as sink:
        operation.restart(site, chosen, sink=sink, deadline_s=run.timeout_s or UP_S)
    words = f"{count(len(names), 'node')} restarted and ready"
    run.out.emit({"dry_run": False, "nodes": names}, human=lambda: Text(words), names=names)
