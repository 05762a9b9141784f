"""`swarmctl status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import CheckFailed
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of

if TYPE_CHECKING:
    from swarmctl.operations.site import Site
    from swarmctl_cli.views.status import StatusView


def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Look again and again until Ctrl-C.")] = False,
    every: options.Every = 2.0,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Show the swarm on one screen: the verdict, the replicas of each block, and three facts about each node.

    PROCESS: does it run? RECORD: what does it say of itself in the DHT, and how old is that? PROBE: did it compute?
    Where they disagree, STATE says which to distrust. Exit code 0 if healthy, 4 if not.

    \b
    Examples:
      swarmctl status
      swarmctl status --watch --every 5s
      swarmctl status -o json | jq -r .data.verdict
    """
    run = run_of(ctx, Given(config=config, output=output), has_names=True)
    site = run.site()
    if watch:
        _watch(run, site, every)
        return
    seen = look(run, site)
    error = emit(run, seen)
    if error is not None:
        raise typer.Exit(error.exit_code)


def look(run: Run, site: Site) -> StatusView:
    """One picture of the swarm, now."""
    from swarmctl.coverage import analyse, holders_of
    from swarmctl.operations.status import read_snapshot
    from swarmctl_cli.views.status import StatusView
    from swarmctl_cli.views.verdict import judge

    snapshot = read_snapshot(site)
    report = analyse(site.spec, holders_of(snapshot))
    return StatusView(snapshot=snapshot, report=report, verdict=judge(snapshot, report, command=run.command()))


def emit(run: Run, seen: StatusView) -> CheckFailed | None:
    """Write the picture; the error is the negative answer it stands for."""
    from swarmctl_cli.views import status as view
    from swarmctl_cli.views import symbols, verdict

    answer = seen.verdict
    error = None
    if answer.health is not verdict.Health.HEALTHY:
        error = CheckFailed(f"{seen.snapshot.swarm} is {answer.health.value}: {answer.sentence}", hints=answer.hints)
    data = view.document(seen)
    for warning in seen.snapshot.warnings:
        run.out.note(warning)
    run.out.emit(
        data,
        human=lambda: view.render(seen, run.out.width, symbols.choose(run.out.ascii_only)),
        names=[str(node.name) for node in seen.snapshot.nodes],
        rows=data["nodes"],
        error=error,
    )
    return error


def _watch(run: Run, site: Site, every_s: float) -> None:
    """Ends with 0: whoever presses Ctrl-C asked for the end."""
    from swarmctl_cli.live import repeat
    from swarmctl_cli.views import status as view
    from swarmctl_cli.views import symbols

    chosen = symbols.choose(run.out.ascii_only)

    def redraw(state: StatusView | None) -> StatusView:
        return view.reduce(state, look(run, site))

    try:
        repeat(
            run.out,
            redraw,
            render=lambda state, width: view.render(state, width, chosen),
            document=view.document,
            pause=lambda: time.sleep(every_s),
        )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
