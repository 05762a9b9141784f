"""`swarmctl host check`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import ConfigError, UsageError
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of

if TYPE_CHECKING:
    from swarmctl.blocks import HostName
    from swarmctl.operations.hosts.check import HostCheck
    from swarmctl.operations.site import Site

group = typer.Typer(help="Look whether machines are fit for the swarm.", rich_markup_mode=None)

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
    wanted = _named(site, hosts or ())
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


def _named(site: Site, words: list[str] | tuple[str, ...]) -> tuple[HostName, ...]:
    unknown = [word for word in words if word not in site.spec.hosts]
    if unknown:
        known = ", ".join(site.spec.hosts)
        raise UsageError(f"the file has no host {', '.join(unknown)}", reasons=[f"its hosts: {known}"])
    return tuple(host for host in site.spec.hosts if host in words)


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
