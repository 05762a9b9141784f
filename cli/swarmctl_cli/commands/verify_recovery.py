"""`swarmctl verify recovery`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from swarmctl.errors import UsageError
from swarmctl.matrix import Cover, Fault, Moment, Traffic, Victim
from swarmctl.trial import Subject
from swarmctl_cli import completion, options
from swarmctl_cli.context import Given, Run, run_of
from swarmctl_cli.views.measure import count


class Client(str, Enum):
    """Whose client is tried."""

    SWARMCTL = "swarmctl"
    STOCK = "stock"
    BOTH = "both"


_SUBJECTS = {
    Client.SWARMCTL: (Subject.SWARMCTL,),
    Client.STOCK: (Subject.STOCK,),
    Client.BOTH: (Subject.SWARMCTL, Subject.STOCK),
}


_FULL = "The wide selection: every fault at each of its moments and with each victim; or about ten in four minutes."


def _words(kind: type[Enum]) -> str:
    return ", ".join(str(member.value) for member in kind)


def recovery(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CELL",
            show_default=False,
            autocompletion=completion.cells,
            help="Exactly these, each by its name: FAMILY/FAULT/MOMENT/VICTIM/COVER/TRAFFIC.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help=_FULL)] = False,
    families: Annotated[
        list[str] | None, typer.Option("--family", metavar="NAME", show_default=False, help="llama, bloom.")
    ] = None,
    faults: Annotated[
        list[Fault] | None, typer.Option("--fault", metavar="WORD", show_default=False, help=f"{_words(Fault)}.")
    ] = None,
    moments: Annotated[
        list[Moment] | None, typer.Option("--moment", metavar="WORD", show_default=False, help=f"{_words(Moment)}.")
    ] = None,
    victims: Annotated[
        list[Victim] | None, typer.Option("--victim", metavar="WORD", show_default=False, help=f"{_words(Victim)}.")
    ] = None,
    covers: Annotated[
        list[Cover] | None, typer.Option("--cover", metavar="WORD", show_default=False, help=f"{_words(Cover)}.")
    ] = None,
    traffics: Annotated[
        list[Traffic] | None, typer.Option("--traffic", metavar="WORD", show_default=False, help=f"{_words(Traffic)}.")
    ] = None,
    client: Annotated[
        Client | None,
        typer.Option(
            "--client",
            show_default=False,
            help="Whose: swarmctl's (if none is named), petals' own as a control, or both side by side.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", show_default=False, help="Keep the history of each cell there."),
    ] = None,
    recheck: Annotated[
        Path | None,
        typer.Option("--recheck", metavar="DIR", show_default=False, help="Judge saved histories again; runs nothing."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", show_default=False, help="Write JUnit XML too.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", show_default=False, help="Write one page with each failover's time line."
        ),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", show_default=False, help="Show the cells, run nothing.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            show_default=False,
            help="Your own running swarm. Only if named here: otherwise swarms are made for the run, and removed.",
        ),
    ] = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Prove that generation survives what can happen to a server: strike one, and compare every token.

    Each cell of the matrix is one experiment: a fault, a moment, a victim, who can take over, and what the client does
    meanwhile. Its tokens must be those of an undisturbed run. Without -c it runs on swarms of tiny models, made on
    this machine for it. With -c it strikes nodes of your own swarm, if the rest can spare them, and starts them again.
    Exit code 0 if all is proved, 4 if a cell is not recovered, 12 if a fault did not bite, 5 if nothing may be struck.
    --list needs no running swarm; --dry-run ends as the run would that it shows, where that would be refused.

    \b
    Examples:
      swarmctl verify recovery
      swarmctl verify recovery --fault kill --fault pause --family llama --client both
      swarmctl verify recovery --full --save histories --html recovery.html
      swarmctl verify recovery llama/kill/mid-step/first/same/greedy
      swarmctl verify recovery -c swarm.yaml --yes
      swarmctl verify recovery --recheck histories -o json | jq .data.summary
    """
    given = Given(config=config, output=output, quiet=quiet, verbose=verbose, yes=yes, dry_run=dry_run)
    run = run_of(ctx, given, has_names=True)
    from swarmctl_cli import trying
    from swarmctl_cli.attempt import Attempt, Wanted
    from swarmctl_cli.reports import Files, check_folder, conclude

    wanted = Wanted(
        names=tuple(names or ()),
        full=full,
        families=tuple(families or ()),
        faults=tuple(faults or ()),
        moments=tuple(moments or ()),
        victims=tuple(victims or ()),
        covers=tuple(covers or ()),
        traffics=tuple(traffics or ()),
    )
    files = Files(junit=junit, html=html)
    files.check()
    if recheck is not None:
        _alone(run, save)
        outcomes, partly = trying.judge_again(run, recheck, wanted, _SUBJECTS[client or Client.BOTH])
        conclude(run, outcomes, files, partly=partly)
        return
    if save is not None:
        check_folder(save)
    site = run.site() if run.config is not None else None
    foreseen = None if site is None else trying.foresee(run, site, wanted)
    cells = wanted.cells() if foreseen is None else foreseen.cells
    made = wanted.made(cells, own=None if foreseen is None else foreseen.family)
    if made:
        run.out.say(f"{count(len(made), 'cell')} made for these filters")
    if list_only or run.dry_run:
        trying.show(run, cells, foreseen)
        return
    if foreseen is not None:
        trying.confirm(run, foreseen.agreed())
    subjects = _SUBJECTS[client or Client.SWARMCTL]
    outcomes = trying.carry_out(run, Attempt(cells=cells, subjects=subjects, site=site, save=save), files)
    conclude(run, outcomes, files)


def _alone(run: Run, save: Path | None) -> None:
    if save is not None:
        raise UsageError(
            "--recheck runs nothing, so there is nothing to save", hints=["leave away --save, or --recheck"]
        )
    if run.config is not None:
        raise UsageError("--recheck needs no swarm, so a swarm file means nothing", hints=["leave away -c"])
