"""`swarmctl doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from swarmctl.errors import CheckFailed
from swarmctl_cli import options
from swarmctl_cli.completion import config_file
from swarmctl_cli.context import Given, run_of


def doctor(
    ctx: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Import petals too (some seconds) and compare what is patched.")
    ] = False,
    config: options.Config = None,
    output: options.Output = None,
) -> None:
    """Check whether this machine can run a swarm, and say what to type where it cannot.

    Looks at Python, the packages and their versions, the folders, the swarm file and, if its swarm is up, at
    which servers run without the patches; asks nothing outside this machine. Exit code 4 if something will not
    work.

    \b
    Examples:
      swarmctl doctor
      swarmctl doctor --deep -o json
    """
    run = run_of(ctx, Given(config=config, output=output))
    from swarmctl.operations.doctor import Level, examine
    from swarmctl_cli.views import diagnosis, symbols

    path = config_file(run.config, run.env, run.cwd)
    found = examine(state=run.state_folder, run=run.run_folder, config=path, deep=deep, open_site=run.open_site)
    rows = [(check.name, check.level.value, check.found, check.hint) for check in found.checks]
    failed = [check for check in found.checks if check.level is Level.FAILED]
    error = CheckFailed(
        f"not fit for a swarm: {', '.join(check.name for check in failed)}",
        reasons=[f"{check.name}: {check.found}" for check in failed],
        hints=[check.hint for check in failed if check.hint],
    )
    run.out.emit(
        {"fit": found.fit, "checks": [asdict(c) for c in found.checks], "patches": [asdict(p) for p in found.patches]},
        human=lambda: diagnosis.render(
            rows, [(p.name, p.target, p.why) for p in found.patches], symbols.choose(run.out.ascii_only)
        ),
        rows=[asdict(check) for check in found.checks],
        error=None if found.fit else error,
    )
    if not found.fit:
        raise typer.Exit(error.exit_code)
