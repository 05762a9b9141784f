"""`swarmctl demo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl.errors import CheckFailed
from swarmctl_cli import options
from swarmctl_cli.context import Given, Run, run_of
from swarmctl_cli.output import Format

if TYPE_CHECKING:
    from swarmctl.events import EventSink
    from swarmctl.operations.demo import Comparison, Footprint
    from swarmctl.operations.site import Site

_PRESET = "local-demo"
_MODEL = "demo:smollm2"
_PROMPT = "Explain in a few sentences why the sky is blue."


def demo(
    ctx: typer.Context,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What to ask.")] = _PROMPT,
    tokens: Annotated[int, typer.Option("-n", "--max-new-tokens", min=6, help="How long the answer may be.")] = 60,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the swarm up, to look around.")] = False,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
) -> None:
    """Run the main job in the open: a real model on five servers, one of which is killed in mid-step.

    The same prompt is then answered without a fault, and by transformers alone; the token ids must be the same three
    times. Everything runs on this machine and is taken down at the end. Exit code 0 only if nothing was lost and all
    three agree, 4 if not. With -c another swarm file is used, whose model must be there.

    \b
    Examples:
      swarmctl demo
      swarmctl demo -o json | jq .data.pause_ms
    """
    run = run_of(ctx, Given(config=config, output=output, quiet=quiet, verbose=verbose))
    if run.config is None:
        run.config = _import_model(run)
    site = run.site()
    run.interrupt_note = f"the demo's swarm may still run; end it with: {run.command('down')}"
    proof, before = _prove(run, site, prompt, tokens)
    left = () if keep else _take_down(run, site, before)
    _conclude(run, proof, left)


def _import_model(run: Run) -> Path:
    import yaml

    from swarmctl.config import preset_path
    from swarmctl.operations.models import import_model
    from swarmctl_cli.commands.model import told
    from swarmctl_cli.live import progress_bar

    path = preset_path(_PRESET)
    _step(run, f"swarmctl model import {_MODEL}", "a real model: SmolLM2-135M-Instruct, Llama with grouped queries")
    # The file says where the model is; the folder is made where the file expects it.
    folder = Path(yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["source"]).expanduser()
    with progress_bar(run.out, "converting") as progress:
        done = import_model(_MODEL, folder, progress=progress)
    run.out.say(told(done, _MODEL))
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _prove(run: Run, site: Site, prompt: str, tokens: int) -> tuple[Comparison, Footprint]:
    from swarmctl.operations import demo as operation
    from swarmctl.operations.generate import connected, generate

    asked = operation.request(prompt, tokens=tokens)
    _step(run, run.command("up"), "a bootstrap peer and five servers; left-a can only be replaced by two together")
    _up(run, site)
    _step(run, run.command("status"), "who serves what")
    _status(run, site)
    _step(run, run.command("verify", "redundancy"), "what may be lost")
    _redundancy(run, site)
    run.out.say(f"\nconnecting to swarm {site.spec.name} ...")
    with ExitStack() as stack:
        client = stack.enter_context(connected(site))
        kill = f"first@{asked.kills[0].token}"
        shown = f'--chat "{prompt}" -n {tokens}'
        _step(run, run.command("generate", shown, "--kill", kill), "the server of the first span dies in mid-step")
        with _transcript(run) as (sink, text):
            disturbed = generate(site, client, asked, sink=sink, text=text)
        _step(run, run.command("status"), "what is wrong now, and the command that helps")
        _status(run, site)
        _step(run, run.command("up"), "start the killed server again; what runs stays alone")
        _up(run, site)
        _step(run, run.command("generate", shown), "the same prompt without a fault")
        with _transcript(run) as (sink, text):
            calm = operation.undisturbed(site, client, asked, sink=sink, text=text)
        _step(run, None, "the same prompt by transformers alone, on this machine")
        alone = operation.local(client, asked)
        before = operation.footprint(site)
    return operation.compare(site, disturbed, calm, alone), before


def _up(run: Run, site: Site) -> None:
    from swarmctl.operations import up as operation
    from swarmctl_cli.live import follow_rollout

    with follow_rollout(run.out) as sink:
        operation.up(site, only=(), sink=sink, deadline_s=operation.UP_S)


def _status(run: Run, site: Site) -> None:
    from swarmctl_cli.commands.status import look
    from swarmctl_cli.views import status, symbols

    if run.out.format is Format.TABLE:
        chosen = symbols.choose(run.out.ascii_only)
        run.out.console.print(status.render(look(run, site), run.out.width, chosen))


def _redundancy(run: Run, site: Site) -> None:
    from swarmctl.coverage import analyse, holders_declared, holders_of
    from swarmctl.operations.status import read_snapshot
    from swarmctl_cli.views import redundancy, symbols

    if run.out.format is Format.TABLE:
        snapshot = read_snapshot(site)
        holders = holders_of(snapshot)
        report = analyse(site.spec, holders)
        declared = analyse(site.spec, holders_declared(site.spec))
        remedy = redundancy.remedy(snapshot, report, declared, command=run.command())
        chosen = symbols.choose(run.out.ascii_only)
        run.out.console.print(
            redundancy.render(
                report, holders, source="the live swarm", remedy=remedy, width=run.out.width, symbols=chosen
            )
        )


@contextmanager
def _transcript(run: Run) -> Iterator[tuple[EventSink, Callable[[int, str], None]]]:
    from swarmctl_cli.live import transcript

    with transcript(run.out, stream_text=run.out.format is Format.TABLE) as shown:
        yield shown.event, lambda _index, piece: shown.text(piece)


def _take_down(run: Run, site: Site, before: Footprint) -> tuple[str, ...]:
    from swarmctl.operations import demo as operation
    from swarmctl.operations import down
    from swarmctl_cli.live import follow_rollout

    _step(run, run.command("down"), "and nothing is left")
    with follow_rollout(run.out) as sink:
        down.down(site, nodes=(), sink=sink, deadline_s=down.DOWN_S, purge=True)
    return operation.left_running(site, before)


def _conclude(run: Run, proof: Comparison, left: tuple[str, ...]) -> None:
    from swarmctl_cli.views import demo as view

    error = None
    if not proof.proved or left:
        error = CheckFailed("the demo did not prove what it should", reasons=list(left))
    _step(run, None, "what this shows")
    run.out.emit(view.document(proof, left), human=lambda: view.render(proof, left), error=error)
    run.out.say("\nnext, a swarm of your own:")
    for command in view.next_commands(Path(sys.executable).parent, run.cwd, run.env.get("PATH", "")):
        run.out.say(f"  {command}")
    if error is not None:
        raise typer.Exit(error.exit_code)


def _step(run: Run, command: str | None, what: str) -> None:
    from rich.text import Text

    heading = Text.assemble(("\n# ", "dim"), (what, "bold"))
    if command is not None:
        heading.append(f"\n$ {command}", style="cyan")
    run.out.say(heading)
