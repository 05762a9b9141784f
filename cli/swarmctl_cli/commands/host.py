"""`swarmctl host check`, `host setup` and `host wheelhouse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import ConfigError, UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of

if TYPE_CHECKING:
    from swarmctl.blocks import HostName
    from swarmctl.operations.hosts.check import HostCheck
    from swarmctl.operations.hosts.setup import HostSetup
    from swarmctl.operations.site import Site
    from swarmctl.spec import SwarmSpec
    from swarmctl.transport.reach import Reach

group = typer.Typer(help="Look whether machines are fit for the swarm, and make them so.", rich_markup_mode=None)

Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="HOST", show_default=False, help="Names of the file; all without one.")
]


@group.command("check", short_help="Whether the hosts are fit for their nodes.")
def check(
    ctx: typer.Context,
    hosts: Hosts = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Look at the hosts of the file: ssh, swarmctl, cards, memory, disk, model, ports, clock, and who reaches whom.

    Hosts are looked at together, so it takes about as long as the slowest. Nothing is changed; for nodes that do not
    run, their ports are opened for a moment, to see whether the other hosts reach them. Exit code 0 if all are fit, 4
    if something is wrong, 7 if nothing is but that hosts do not answer.

    \b
    Examples:
      swarmctl host check
      swarmctl host check gpu-a gpu-b -o json | jq '.data.findings[] | select(.level != "ok")'
    """
    run = run_of(ctx, Given(config=config, output=output, quiet=quiet))
    from swarmctl.operations.hosts.cards import write_cards
    from swarmctl_cli.live import progress_bar

    site = _site(run)
    wanted = _named(site.spec, hosts or ())
    done: list[HostName] = []
    total = len(wanted or site.spec.hosts)
    with progress_bar(run.out, "hosts looked at") as bar:
        from swarmctl.operations.hosts.check import check as look

        def tell(host: HostName) -> None:
            done.append(host)
            bar(len(done), total)

        found = look(site, wanted, progress=tell)
    write_cards(run.state_folder, site.spec.name, found.cards)
    _show(run, found)
    if found.error is not None:
        raise typer.Exit(found.error.exit_code)


def _site(run: Run) -> Site:
    """The file's swarm; its hosts alone where nodes want cards that nobody has looked at yet."""
    from swarmctl import config

    try:
        return run.site()
    except ConfigError:
        spec = config.load_hosts(run.config_path())
        if not any(host.all_gpus for host in spec.hosts.values()):
            raise
        run.out.note("the cards of hosts with `gpus: all` were not known, so that only the hosts were looked at")
        return run.site_of(spec)


def _named(spec: SwarmSpec, words: Sequence[str]) -> tuple[HostName, ...]:
    unknown = [word for word in words if word not in spec.hosts]
    if unknown:
        known = ", ".join(spec.hosts)
        raise UsageError(f"the file has no host {', '.join(unknown)}", reasons=[f"its hosts: {known}"])
    return tuple(host for host in spec.hosts if host in words)


def _show(run: Run, found: HostCheck) -> None:
    from swarmctl.operations.hosts.findings import Topic
    from swarmctl_cli.views import hosts as view
    from swarmctl_cli.views import symbols

    rows = [
        view.Row(
            host=one.host,
            topic=one.topic.value,
            level=one.level.value,
            found=one.found,
            sentence=one.sentence,
            hint=None if one.hint is None else run.personal(one.hint),
        )
        for one in found.findings
    ]
    calls = [
        {
            "from": one.source,
            "to": one.target.host,
            "node": one.target.node,
            "address": f"{one.target.call.ip}:{one.target.call.port}",
            "fault": one.words,
        }
        for one in found.dials.calls
    ]
    data = {"fit": found.error is None, "hosts": list(found.hosts), "findings": [asdict(row) for row in rows]}
    run.out.emit(
        data | {"dials": calls, "cards": {host: list(cards) for host, cards in found.cards.items()}},
        human=lambda: view.render(
            rows,
            hosts=found.hosts,
            topics=[topic.value for topic in Topic],
            reaches=found.dials.between,
            width=run.out.width,
            symbols=symbols.choose(run.out.ascii_only),
        ),
        rows=[asdict(row) for row in rows],
        error=found.error,
    )


@group.command("setup", short_help="Install this swarmctl, and what it needs, on the hosts.")
def setup(
    ctx: typer.Context,
    hosts: Hosts = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse", metavar="DIR", show_default=False, help="Wheels to install from, without an index."
        ),
    ] = None,
    python: Annotated[
        str, typer.Option("--python", metavar="PYTHON", show_default=False, help="What makes the environment there.")
    ] = "",
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Make an environment on each ssh host and install this very build there; about 1.7 GB the first time.

    It goes where the file's `python` of the host is, else to ~/.local/share/swarmctl/venv, and is made with the host's
    own Python 3.11 or 3.10. What is there already is kept: a second run has nothing to do, an interrupted one goes on.
    Where nodes run from it, nothing is changed without --yes. Packages come from the host's own index, or, where it
    has none, from a folder that `swarmctl host wheelhouse DIR` has filled here.

    \b
    Examples:
      swarmctl host setup
      swarmctl host setup gpu-a --dry-run
      swarmctl host wheelhouse ./wheels && swarmctl host setup --wheelhouse ./wheels
    """
    run = run_of(ctx, Given(config=config, output=output, quiet=quiet, dry_run=dry_run, yes=yes))
    from rich.text import Text

    from swarmctl.operations.hosts.setup import Setup, failure_of, set_up

    run.interrupt_note = f"what was done stays; go on with: {run.command('host', 'setup')}"
    how = Setup(wheelhouse=wheelhouse, python=python, over_running=run.yes, dry_run=run.dry_run)
    results = set_up(_reaches(run, hosts or ()), how, tell=lambda host, line: run.out.say(f"{host}: {line}"))
    error = failure_of(results)
    rows = [_row(one) for one in results]
    words = [": ".join((one.host, ", ".join((one.outcome.value, *one.steps)))) for one in results]
    run.out.emit({"hosts": rows}, human=lambda: Text("\n".join(words)), rows=rows, error=error)
    if error is not None:
        # Its words; the document has been written.
        raise error


def _row(one: HostSetup) -> dict[str, object]:
    return {
        "host": one.host,
        "outcome": one.outcome.value,
        "steps": list(one.steps),
        "error": None if one.error is None else one.error.message,
    }


def _reaches(run: Run, words: Sequence[str]) -> dict[HostName, Reach | None]:
    """The way to each host that is meant; None for this machine. Needs no more of the file than its hosts."""
    from swarmctl import config
    from swarmctl.operations.hosts.setup import reach_to

    spec = config.load_hosts(run.config_path())
    run.out.swarm = spec.name
    asked = _named(spec, words) or tuple(spec.hosts)
    ssh = run.env.get("SWARMCTL_SSH")
    return {host: reach_to(spec.hosts[host], run.run_folder, ssh) for host in asked}


@group.command("wheelhouse", short_help="Fill a folder with wheels, for hosts without a package index.")
def wheelhouse(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="Made if it is not there.")],
    output: options.Output = None,
) -> None:
    """Have pip put all that swarmctl needs into a folder, for `host setup --wheelhouse`; about 1.7 GB.

    The wheels fit hosts with this machine's kind of processor and this Python version.

    \b
    Examples:
      swarmctl host wheelhouse ./wheels
    """
    run = run_of(ctx, Given(output=output))
    from rich.text import Text

    from swarmctl.operations.hosts.wheel import fill_wheelhouse

    count = fill_wheelhouse(folder)
    words = f"{count} wheels in {folder}; next: {run.command('host', 'setup', '--wheelhouse', str(folder))}"
    run.out.emit({"folder": str(folder), "wheels": count}, human=lambda: Text(words))
