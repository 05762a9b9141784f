"""`swarmctl init`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from swarmctl.errors import Refused, UsageError
from swarmctl_cli import completion
from swarmctl_cli.completion import CONFIG_NAME
from swarmctl_cli.context import Given, run_of
from swarmctl_cli.output import Format

DEFAULT_PRESET = "tiny-llama"

# How a preset says where its model comes from; the rest of the line is a command.
_MODEL_COMMENT = "# The model: "


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
    run = run_of(ctx, Given(), has_names=True)
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
    if str(file) in {one.value for one in Format}:
        raise UsageError(
            f"-o {file} names a format, and for init -o is the file to write",
            hints=[f"swarmctl -o {file} init {preset}", f"swarmctl init {preset} -o {file}.yaml"],
        )
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
    for line in _next(text, file, f"swarmctl{named}"):
        run.out.say(line)


def _next(text: str, file: Path, command: str) -> Iterator[str]:
    import yaml

    written = yaml.safe_load(text)
    if any("ssh" in (host or {}) for host in (written.get("hosts") or {}).values()):
        yield f"next: edit it, then {command} config validate"
        yield f"then: {command} host setup, {command} host check and {command} up"
        return
    source = str(written["model"]["source"])
    folder = file.parent / Path(source).expanduser()
    made_by = next((line for line in text.splitlines() if line.startswith(_MODEL_COMMENT)), None)
    if made_by is not None and not folder.exists():
        # The file's model is beside the file, which need not be here.
        make = made_by.removeprefix(_MODEL_COMMENT).replace(f"-o {source}", f"-o {_as_written(source, folder)}")
        yield f"next: {make}"
        yield f"then: look through {file}, {command} config validate, {command} up"
        return
    yield f"next: look through {file}, then {command} config validate and {command} up"


def _as_written(source: str, folder: Path) -> str:
    beside = source.startswith("./") and folder == Path(source)
    return source if beside or source.startswith("~") else shlex.quote(str(folder))
