"""`swarmctl verify redundancy`, and the group that `verify recovery` is in too."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import CoverageError
from swarmctl.spec import Domain
from swarmctl_cli import options
from swarmctl_cli.commands import verify_recovery
from swarmctl_cli.context import Given, Run, run_of

if TYPE_CHECKING:
    from swarmctl.snapshot import Snapshot

group = typer.Typer(help="Prove what the swarm can lose, and that it recovers.", rich_markup_mode=None)
group.command("recovery", short_help="Whether generation survives what can happen.")(verify_recovery.recovery)


class Source(str, Enum):
    """What is judged: the servers that are up now, or those that the file declares."""

    LIVE = "live"
    CONFIG = "config"


@group.command(short_help="Which nodes and hosts may be lost.")
def redundancy(
    ctx: typer.Context,
    minimum: Annotated[
        int | None, typer.Option("--min", min=1, show_default=False, help="Replicas a block needs; else the file's.")
    ] = None,
    by: Annotated[
        Domain | None, typer.Option("--by", show_default=False, help="What fails together; else the file's.")
    ] = None,
    source: Annotated[Source, typer.Option("--source", help="Servers that are up, or declared.")] = Source.LIVE,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Say which node or host the swarm can lose, and what would repair it where it is thin.

    Replicas are counted over distinct failure domains. Exit code 0 if every block has enough, 4 if not.

    \b
    Examples:
      swarmctl verify redundancy
      swarmctl verify redundancy --min 2 --by host --source config
      swarmctl verify redundancy -o json | jq .data.repairs
    """
    run = run_of(ctx, Given(config=config, output=output))
    from swarmctl import coverage
    from swarmctl_cli.views import redundancy as view
    from swarmctl_cli.views import symbols
    from swarmctl_cli.views.measure import age, count
    from swarmctl_cli.views.verdict import coverage as coverage_of

    spec = run.spec()
    holders = coverage.holders_declared(spec)
    judged = f"the file, as if all of its {count(len(holders), 'node')} were ONLINE"
    report = coverage.analyse(spec, holders, minimum=minimum, by=by)
    remedy = view.Remedy(repairs=report.repairs)
    if source is Source.LIVE:
        snapshot = _snapshot(run)
        holders = coverage.holders_of(snapshot)
        judged = f"{count(len(holders), 'node')} ONLINE of {len(spec.nodes)}, seen {age(snapshot.age_s)} ago"
        declared, report = report, coverage.analyse(spec, holders, minimum=minimum, by=by)
        remedy = view.remedy(snapshot, report, declared, command=run.command())
    error = None
    if report.verdict is not coverage.Verdict.REDUNDANT:
        error = CoverageError(coverage_of(report), reasons=[str(short) for short in report.thin], hints=remedy.hints)
    chosen = symbols.choose(run.out.ascii_only)
    run.out.emit(
        view.document(report, source=source.value),
        human=lambda: view.render(report, holders, source=judged, remedy=remedy, width=run.out.width, symbols=chosen),
        error=error,
    )
    if error is not None:
        raise typer.Exit(error.exit_code)


def _snapshot(run: Run) -> Snapshot:
    from swarmctl.operations.status import read_snapshot

    snapshot = read_snapshot(run.site())
    for warning in snapshot.warnings:
        run.out.warn(warning)
    return snapshot
