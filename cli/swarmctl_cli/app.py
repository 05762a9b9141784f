"""The command tree, and the one place where an error becomes an exit code."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence

import typer

from swarmctl.errors import ExitCode, SwarmctlError, UsageError
from swarmctl_cli import options, streams
from swarmctl_cli.commands import config as config_commands
from swarmctl_cli.commands import (
    demo,
    doctor,
    down,
    events,
    export,
    generate,
    host,
    init,
    kill,
    lock,
    logs,
    model,
    ps,
    restart,
    status,
    up,
    verify,
    version,
)
from swarmctl_cli.context import Given, Run, absorb, kind_of
from swarmctl_cli.errors import InternalError, Interrupted
from swarmctl_cli.output import Format

_NAMES_A_PATH = ("init", "model")
"""Commands whose own `-o` is a file or a folder."""

_PLAIN_WORDS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\bValue error, ", ""),
        (r"\bInput should be greater than or equal to ", "must be at least "),
        (r"\bInput should be less than or equal to ", "must be at most "),
        (r"\bInput should be greater than ", "must be greater than "),
        (r"\bInput should be less than ", "must be less than "),
        (r"\bInput should be a valid integer\b.*", "must be a whole number"),
        (r"\bInput should be a valid number\b.*", "must be a number"),
        (r"\bInput should be ", "must be "),
    )
)

_CHOICE = re.compile(r"'([^']*)' is not one of (.*)")
_WORD = re.compile(r"'([^']*)'")

_EPILOG = """
\b
A first swarm, on this machine:
  swarmctl demo                      the whole path, with a killed server
or step by step:
  swarmctl init                      write swarm.yaml
  swarmctl up                        start it
  swarmctl status                    see it
  swarmctl generate "Once upon"      use it
  swarmctl down                      stop it

\b
Exit codes: 0 done, healthy, yes · 1 failed · 2 usage · 3 swarm file invalid · 4 the answer is no ·
5 refused by a safety rule · 6 deadline passed · 7 some hosts unreachable · 8 partly done ·
9 locked by somebody else · 12 verdict unknown · 130 interrupted.
"""

app = typer.Typer(
    name="swarmctl",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
)


@app.callback()
def root(  # noqa: PLR0913  # typer reads one parameter an option
    ctx: typer.Context,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
) -> None:
    """Operate private Petals swarms: start block servers, see what they can lose, generate through their failures."""
    given = Given(config=config, output=output, quiet=quiet, verbose=verbose, yes=yes, dry_run=dry_run, timeout=timeout)
    absorb(ctx.obj, given)
    show_help(ctx)


def show_help(ctx: typer.Context) -> None:
    """Print the help of a group that is called without a verb."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.command("init", short_help="Write a swarm file to start from.")(init.init)
app.command("plan", short_help="Show what `up` would do, and why.")(up.plan)
app.command("up", short_help="Start what the file declares; wait until it serves.")(up.up)
app.command("down", short_help="Stop the swarm, or nodes of it, and leave nothing.")(down.down)
app.command("restart", short_help="Restart nodes one after the other.")(restart.restart)
app.command("status", short_help="Show what serves what, and how sure that is.")(status.status)
app.command("ps", short_help="List the processes on the hosts.")(ps.ps)
app.command("logs", short_help="Print what nodes have written.")(logs.logs)
app.command("events", short_help="Show what was done to the swarm, by whom and why.")(events.events)
app.command("kill", short_help="Crash a node on purpose, for drills.")(kill.kill)
app.command("generate", short_help="Generate text, through the death of servers.")(generate.generate)
app.command("demo", short_help="Watch a generation survive a killed server.")(demo.demo)
app.command("doctor", short_help="Check whether this machine can run a swarm.")(doctor.doctor)
app.command("version", short_help="Print versions.")(version.version)
for _name, _group in (
    ("config", config_commands.group),
    ("verify", verify.group),
    ("model", model.group),
    ("lock", lock.group),
    ("export", export.group),
    ("host", host.group),
):
    app.add_typer(_group, name=_name, callback=show_help, invoke_without_command=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The program. Ends the process with the exit code of `swarmctl.errors.ExitCode`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    streams.take_over()
    sys.exit(execute(words, Run.of_process()))


def execute(arguments: list[str], run: Run) -> int:
    """Run one command line; every failure is told in `run.out`, and its exit code returned."""
    try:
        code = app(args=arguments, prog_name="swarmctl", standalone_mode=False, obj=run)
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except SwarmctlError as error:
        error.hints = tuple(run.personal(hint) for hint in error.hints)
        return _fail(run, error)
    except Exception as error:  # noqa: BLE001  # the last place that can still say something useful
        usage = _usage_error(error)
        if usage is None:
            return _fail(run, InternalError(error))
        _remember_format(arguments, run)
        run.out.kind = kind_of(_path(error))
        return _fail(run, usage)
    if code == ExitCode.INTERRUPTED:
        return _fail(run, Interrupted("interrupted", reasons=[run.interrupt_note] if run.interrupt_note else []))
    return code if isinstance(code, int) else 0


def _fail(run: Run, error: SwarmctlError) -> int:
    try:
        return run.out.fail(error)
    except streams.StdoutLost as lost:
        # The words are out; what is lost is the document.
        return run.out.fail(lost)
    except BrokenPipeError:
        return ExitCode.FAILED


def _usage_error(error: Exception) -> UsageError | None:
    """A complaint of typer itself about the command line, or None; its classes have no lasting public name."""
    describe = getattr(error, "format_message", None)
    if not callable(describe) or getattr(error, "exit_code", None) != ExitCode.USAGE:
        return None
    message = _in_plain_words(str(describe()).strip().rstrip("."))
    hints = [*_meant(message), f"{_path(error)} --help"]
    return UsageError(message[:1].lower() + message[1:], hints=hints)


def _path(error: Exception) -> str:
    """The words of the command that typer complains about, as far as it has read them."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "swarmctl"


def _meant(message: str) -> list[str]:
    """For a word that is none of some known ones: the one that it looks like."""
    found = _CHOICE.search(message)
    near = difflib.get_close_matches(found[1], _WORD.findall(found[2]), n=1) if found else []
    return [f"did you mean {word}?" for word in near]


def _in_plain_words(message: str) -> str:
    """typer's complaint without the phrases of the library that it lets judge values."""
    for pattern, plain in _PLAIN_WORDS:
        message = pattern.sub(plain, message)
    return message


def _remember_format(arguments: Sequence[str], run: Run) -> None:
    """The format of a command line that could not be parsed as a whole, so that the failure is a document too."""
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if word in _NAMES_A_PATH:
            return
        name, _, attached = word.partition("=")
        asked = attached or value if name in ("-o", "--output") else word[2:] if word.startswith("-o") else ""
        if asked in {one.value for one in Format}:
            run.out.format = Format(asked)
