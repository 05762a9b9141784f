"""`swarmctl version`."""

from __future__ import annotations

import typer

from swarmctl_cli import options
from swarmctl_cli.context import Given, run_of


def version(ctx: typer.Context, output: options.Output = None) -> None:
    """Print the versions of swarmctl and of what it stands on.

    \b
    Examples:
      swarmctl version
      swarmctl version -o json
    """
    run = run_of(ctx, Given(output=output), has_names=True)
    import platform
    from importlib import metadata

    from rich.text import Text

    from swarmctl import __version__

    versions: dict[str, str | None] = {"swarmctl": __version__, "python": platform.python_version()}
    for name in ("petals", "hivemind", "torch", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    lines = [f"{name} {number or '(not installed)'}" for name, number in versions.items()]
    run.out.emit(versions, human=lambda: Text("\n".join(lines)), names=[__version__])
