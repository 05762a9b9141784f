"""`swarmctl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmctl.errors import Refused, UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of

group = typer.Typer(help="Write what other programs need to run nodes.", rich_markup_mode=None)


@group.command("systemd", short_help="Write systemd units that start nodes at boot.")
def systemd(
    ctx: typer.Context,
    nodes: options.Nodes = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", show_default=False, help="Write a file a unit into this folder."),
    ] = None,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Print a systemd user unit for each node that has been started before, or write them to files.

    A unit starts what `swarmctl up` started last, at boot and whenever the node's runner dies, until
    `swarmctl down` stops it. Units are for the host that they name.

    \b
    Examples:
      swarmctl export systemd
      swarmctl export systemd left-a
      swarmctl export systemd @here --dir ~/.config/systemd/user
    """
    run = run_of(ctx, Given(config=config, output=output), has_names=True)
    from rich.text import Text

    from swarmctl.operations.systemd import read_facts, units

    site = run.site()
    hosted = site.survey(run.select(site, nodes or ()) or None)
    for host, reason in hosted.unreachable.items():
        run.out.warn(f"host {host} is left out: {reason}")
    facts = read_facts(site, hosted)
    if not facts:
        raise Refused(
            "none of these nodes has ever been started, so there is nothing that a unit could start",
            hints=["swarmctl up"],
        )
    written = units(facts)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in written.items():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write units to {folder}", reasons=[str(error)]) from error
    data = [
        {"unit": name, "node": str(each.node), "host": str(each.host), "text": text}
        for each, (name, text) in zip(facts, written.items(), strict=True)
    ]
    told = [f"wrote {folder / name}" for name in written] if folder is not None else [*written.values()]
    run.out.emit(data, human=lambda: Text("\n".join(told)), names=[*written], rows=data)
