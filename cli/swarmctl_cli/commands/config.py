"""`swarmctl config validate | show | schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of
from swarmctl_cli.output import Format

group = typer.Typer(help="Check and show the swarm file.", rich_markup_mode=None)

File = Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False, help="Instead of -c FILE.")]


@group.command(short_help="Check the swarm file; every fault at once.")
def validate(
    ctx: typer.Context, file: File = None, config: options.Config = None, output: options.Output = None
) -> None:
    """Check the swarm file: every fault at once, each with its line and a hint.

    Exit code 0 if it is valid, 3 if not. Reads nothing but the file and, if the model is a folder, its config.json.

    \b
    Examples:
      swarmctl config validate
      swarmctl config validate configs/stable-beluga2.yaml -o json
    """
    run = run_of(ctx, Given(config=file or config, output=output))
    from rich.text import Text

    from swarmctl_cli.views.measure import count

    spec = run.spec()
    blocks, nodes, hosts = spec.model.num_blocks, len(spec.nodes), len(spec.hosts)
    summary = f"swarm {spec.name}, {count(blocks, 'block')}, {count(nodes, 'node')} on {count(hosts, 'host')}"
    data = {"file": str(run.config_path()), "swarm": spec.name, "blocks": blocks, "nodes": nodes, "hosts": hosts}
    run.out.emit(data, human=lambda: Text(f"{run.config_path()} is valid: {summary}"))


@group.command(short_help="Print it with every default filled in.")
def show(ctx: typer.Context, file: File = None, config: options.Config = None, output: options.Output = None) -> None:
    """Print the swarm file with every default filled in; the output is a valid swarm file.

    \b
    Examples:
      swarmctl config show
      swarmctl config show -o json | jq .data.nodes
    """
    run = run_of(ctx, Given(config=file or config, output=output), has_names=True)
    import yaml

    from swarmctl import config as files

    spec = run.spec()
    text = files.render(spec)
    if run.out.format is Format.TABLE:
        run.out.text(text)
        return
    from rich.text import Text

    run.out.emit(yaml.safe_load(text), human=Text, names=[*spec.nodes])


@group.command(short_help="Print its JSON schema.")
def schema(ctx: typer.Context) -> None:
    """Print the JSON schema of the swarm file, for editors that complete and check YAML.

    \b
    Example:
      swarmctl config schema > swarm.schema.json
    """
    run = run_of(ctx, Given())
    import json

    from swarmctl import config as files

    run.out.text(json.dumps(files.json_schema(), indent=2) + "\n")
