"""`swarmctl ps`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of


def ps(
    ctx: typer.Context,
    wide: Annotated[bool, typer.Option("--all", "-a", help="Show each process of each node.")] = False,
    swarm: options.Swarm = None,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """List the processes of the swarm on its hosts, also of nodes that are no longer in the file.

    \b
    Examples:
      swarmctl ps
      swarmctl ps --all
      swarmctl ps --swarm lab
      swarmctl ps -o name
    """
    run = run_of(ctx, Given(config=config, output=output), has_names=True)
    from swarmctl.operations.status import list_processes
    from swarmctl_cli.views import processes as view

    rows = list_processes(run.site_named(swarm))
    lines = []
    for row in rows:
        lines.append(
            view.ProcessLine(
                name=row.node,
                host=row.host,
                kind=row.kind,
                pid=row.pid,
                processes=len(row.processes),
                rss_bytes=row.rss_bytes,
                cpu_s=row.cpu_s,
                port=row.port,
                started_at=row.started_at,
            )
        )
        lines += [
            view.ProcessLine(
                name=f"  {one.role}",
                host=one.host,
                kind="",
                pid=one.pid,
                processes=None,
                rss_bytes=one.rss_bytes,
                cpu_s=one.cpu_s,
                command=one.command,
            )
            for one in (row.processes if wide else ())
        ]
    data = [asdict(row) for row in rows]
    run.out.emit(data, human=lambda: view.render(lines), names=[str(row.node) for row in rows], rows=data)
