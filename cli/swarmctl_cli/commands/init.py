"""`swarmctl init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmctl.errors import Refused, UsageError
from swarmctl_cli import completion
from swarmctl_cli.completion import CONFIG_NAME
from swarmctl_cli.context import Given, run_of

DEFAULT_PRESET = "local-demo"


def init(
    ctx: typer.Context,
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", autocompletion=completion.presets, help="A ready configuration.")
    ] = DEFAULT_PRESET,
    file: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="Where to write it; - writes to stdout.")
    ] = Path(CONFIG_NAME),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the presets instead.")] = False,
) -> None:
    """Write a swarm file to start from.

    \b
    Examples:
      swarmctl init
      swarmctl init --list
      swarmctl init stable-beluga2 -o beluga.yaml
    """
    run = run_of(ctx, Given(), kind="Init", has_names=True)
    from rich.text import Text

    from swarmctl import config
    from swarmctl_cli.views import columns

    presets = config.presets()
    if listing:
        rows = [{"preset": name, "about": about} for name, about in presets.items()]
        run.out.emit(
            rows, human=lambda: columns.render(("PRESET", "ABOUT"), [*presets.items()]), names=[*presets], rows=rows
        )
        return
    text = config.preset_text(preset)
    if str(file) == "-":
        run.out.text(text)
        return
    if file.exists() and not force:
        again = f"swarmctl init {preset} -o OTHER.yaml"
        raise Refused(
            f"{file} exists and was left as it is", hints=[f"swarmctl init {preset} -o {file} --force", again]
        )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}", reasons=[str(error)]) from error
    named = "" if file.name == CONFIG_NAME else f" -c {file}"
    run.out.emit(
        {"file": str(file), "preset": preset},
        human=lambda: Text(f"wrote {file} from the preset {preset}"),
        names=[str(file)],
    )
    run.out.say(f"next: look through it, then swarmctl{named} config validate and swarmctl{named} up")
