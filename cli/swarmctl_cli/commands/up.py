"""`swarmctl up` and its dry run, `swarmctl plan`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from swarmctl.errors import HostUnreachable
from swarmctl_cli import completion, options
from swarmctl_cli.context import Given, Run, run_of


class Unreachable(str, Enum):
    """`operations.up.OnUnreachable`, here because typer needs it before anything of the library is imported."""

    FAIL = "fail"
    SKIP = "skip"


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NODE",
        show_default=False,
        autocompletion=completion.nodes,
        help="Just this node, and the bootstrap peers it needs; may be repeated.",
    ),
]


def up(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    only: Only = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    on_unreachable: Annotated[
        Unreachable,
        typer.Option("--on-unreachable", help="When hosts do not answer: change nothing, or do the others."),
    ] = Unreachable.FAIL,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary/--no-canary", help="With several hosts: the first server must serve before the others start."
        ),
    ] = True,
    why: options.Why = None,
    lock_wait: options.LockWait = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Make what runs equal to the swarm file, and wait until it serves.

    Bootstrap peers start first, then, if there are several hosts, one server as a canary, then all the others at once.
    A node is ready when the DHT shows it ONLINE for its blocks and a token went through it. What is as it should be
    stays alone: a second `up` has nothing to do. After Ctrl-C or a crash, `up` goes on from what is there. Exit code 6
    if --timeout (10m) passes, 1 if a node fails and 8 if several do (the others go on), 7 if hosts do not answer.

    \b
    Examples:
      swarmctl up
      swarmctl up --only left-a --only right-b
      swarmctl up --on-unreachable skip -m "gpu-b is being repaired"
      swarmctl up --dry-run
    """
    given = Given(
        config=config,
        output=output,
        quiet=quiet,
        verbose=verbose,
        dry_run=dry_run,
        timeout=timeout,
        why=why,
        lock_wait=lock_wait,
    )
    run = run_of(ctx, given, has_names=True)
    _up(run, [*(nodes or ()), *(only or ())], on_unreachable, canary=canary)


def plan(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    only: Only = None,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Show what `up` would start, replace or stop, and why; changes nothing.

    \b
    Examples:
      swarmctl plan
      swarmctl plan -o json | jq .data.changes
    """
    run = run_of(ctx, Given(config=config, output=output, dry_run=True), has_names=True)
    _up(run, [*(nodes or ()), *(only or ())])


def _up(run: Run, patterns: list[str], on_unreachable: Unreachable = Unreachable.FAIL, *, canary: bool = True) -> None:
    from rich.text import Text

    from swarmctl.operations import up as operation
    from swarmctl_cli.live import follow_rollout
    from swarmctl_cli.views import measure, symbols
    from swarmctl_cli.views import plan as view

    site = run.site()
    chosen = symbols.choose(run.out.ascii_only)
    only = run.select(site, patterns)
    if not run.dry_run:
        run.interrupt_note = (
            f"what was started keeps running; go on with: {run.command('up')}, or {run.command('down')}"
        )
    with follow_rollout(run.out) as sink:
        done = operation.up(
            site,
            only=only,
            sink=sink,
            deadline_s=run.timeout_s or operation.UP_S,
            dry_run=run.dry_run,
            on_unreachable=operation.OnUnreachable(on_unreachable.value),
            canary=canary,
        )
    away = {str(host): error.message for host, error in done.unreachable.items()}
    data = {**view.document(done.plan), "dry_run": done.dry_run, "took_s": round(done.took_s, 3), "unreachable": away}

    def human() -> Text:
        if done.dry_run or not (done.plan.awaited or away):
            return view.render(done.plan, chosen)
        count = measure.count(len(done.plan.awaited), "node")
        return Text(f"{site.spec.name} is up: {count} ready after {measure.age(done.took_s)}")

    names = [str(action.node) for action in done.plan.changes]
    error = None
    if away:
        error = HostUnreachable(
            f"left out, because their hosts do not answer: {', '.join(action.node for action in done.plan.skipped)}",
            reasons=list(away.values()),
            hints=[run.command("up") if run.dry_run else f"when they answer again: {run.command('up')}"],
            context={"hosts": list(away)},
        )
    run.out.emit(data, human=human, names=names, rows=data["actions"], error=error)
    if error is not None:
        raise error
