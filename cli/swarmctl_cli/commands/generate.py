"""`swarmctl generate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmctl.errors import SwarmctlError, UsageError
from swarmctl.events import Event, EventSink, encode
from swarmctl_cli import completion, options
from swarmctl_cli.context import Given, Run, run_of
from swarmctl_cli.errors import FaultMissed, Interrupted, plain
from swarmctl_cli.output import Format

if TYPE_CHECKING:
    from rich.text import Text

    from swarmctl.operations.generate import GenerateRequest, GenerateResult
    from swarmctl.operations.site import Site


def generate(
    ctx: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", show_default=False, help="Text to continue; - reads it from stdin."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", show_default=False, help="The prompt is in a file.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("-n", "--max-new-tokens", min=1, help="Where to stop.")] = 64,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    temperature: Annotated[float | None, typer.Option("--temperature", show_default=False, help="Sample.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", show_default=False, help="Sample from the likeliest.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", show_default=False, help="Sample from so many.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", show_default=False, help="Makes sampling repeatable.")] = None,
    num_beams: Annotated[int, typer.Option("--num-beams", min=1, help="Beam search.")] = 1,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            "--kill",
            metavar="NODE@TOKEN",
            show_default=False,
            autocompletion=completion.nodes,
            help="A drill: SIGKILL this node while the step after this token is in flight; first, middle and last "
            "mean the server of that place in the route. May be repeated.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="FILE", show_default=False, help="Write each event to a file, as JSON lines."),
    ] = None,
    recover_timeout: Annotated[
        float | None,
        typer.Option(
            "--recover-timeout",
            parser=options.parse_duration,
            metavar="TIME",
            show_default=False,
            help="How long to wait for a server of a lost span; else the file's.",
        ),
    ] = None,
    config: options.Config = None,
    output: options.Output = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
) -> None:
    """Generate text through the swarm; when a server dies, another takes over and the text goes on.

    The text goes to stdout as it comes, the failover log to stderr. Without --temperature, --top-p or --top-k the
    likeliest token is taken. Several prompts run in as few sessions as their lengths allow. Exit code 4 if no server
    took a lost span over in time, 12 if a drill's moment never came. After a failure or Ctrl-C, the document has the
    tokens and texts that came out before, as error.context.accepted.

    \b
    Examples:
      swarmctl generate "Once upon a time"
      swarmctl generate --chat "What is the capital of France?" -n 32
      swarmctl generate "The swarm" -n 60 --kill left-a@20 --events drill.jsonl
      cat prompt.txt | swarmctl generate - -o json | jq -r '.data.generations[0].text'
    """
    given = Given(config=config, output=output, quiet=quiet, verbose=verbose)
    run = run_of(ctx, given)
    from swarmctl.client.generate import Sampling
    from swarmctl.operations import generate as operation
    from swarmctl.operations.drill import parse_kill

    sampling = Sampling(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        num_beams=num_beams,
    )
    site = run.site()
    if recover_timeout is not None:
        site = replace(
            site, spec=replace(site.spec, client=replace(site.spec.client, recover_timeout_s=recover_timeout))
        )
    request = operation.GenerateRequest(
        prompts=operation.split_prompts(*_given(prompts or [], prompt_file)),
        sampling=sampling,
        chat=chat,
        kills=tuple(parse_kill(text, tuple(site.spec.nodes)) for text in kill or ()),
    )
    _generate(run, site, request, events)


def _generate(run: Run, site: Site, request: GenerateRequest, events: Path | None) -> None:
    from rich.text import Text

    streams = run.out.format is Format.TABLE and len(request.prompts) == 1
    # Importing torch and finding the servers takes seconds in which nothing else is shown.
    run.out.say(f"connecting to swarm {site.spec.name} ...")
    try:
        done = _carry_out(run, site, request, events, streams=streams)
    except SwarmctlError as failure:
        if run.out.format is Format.TABLE and not streams:
            _show_accepted(run, request, failure.context.get("accepted"))
        raise
    missed = [f"{kill.node}@{kill.token}" for kill in done.missed]
    error = FaultMissed(missed) if missed else None
    rows = [asdict(one) for one in done.generations]
    if streams:
        if error is not None:
            raise error
        return
    data = {"model": site.spec.model.source, "generations": rows, "story": plain(done.story), "missed": missed}
    texts = [_whole(one.prompt, one.text) for one in done.generations]
    run.out.emit(data, human=lambda: Text("\n\n").join(texts), rows=rows, error=error)
    if error is not None and run.out.format is Format.TABLE:
        raise error
    if error is not None:
        raise typer.Exit(error.exit_code)


def _carry_out(run: Run, site: Site, request: GenerateRequest, events: Path | None, *, streams: bool) -> GenerateResult:
    """Connect and generate; every failure in the middle, Ctrl-C too, has what was accepted in its context.

    Raises:
        SwarmctlError: as the operation. Interrupted: Ctrl-C while tokens came.
    """
    from swarmctl.client.request import GenerationInterrupted
    from swarmctl.operations import generate as operation
    from swarmctl_cli.live import transcript

    with ExitStack() as stack:
        record = _recorder(stack, events)
        shown = stack.enter_context(transcript(run.out, stream_text=streams))

        def sink(event: Event) -> None:
            record(event)
            shown.event(event)

        done: GenerateResult | None = None
        try:
            with (run.open_client or operation.connected)(site) as client:
                done = operation.generate(
                    site, client, request, sink=sink, text=lambda _index, piece: shown.text(piece)
                )
        except GenerationInterrupted as interrupt:
            raise _interrupted(interrupt.accepted) from interrupt
        except KeyboardInterrupt as interrupt:
            if done is None:
                raise
            # All had come, and the client was leaving the swarm.
            rows = enumerate(done.generations)
            whole = [{"index": index, "ids": list(one.ids), "text": one.text} for index, one in rows]
            raise _interrupted(whole) from interrupt
    return done


def _interrupted(accepted: Sequence[Mapping[str, Any]]) -> Interrupted:
    from swarmctl.client.conversation import how_far

    came = how_far(accepted)
    return Interrupted("interrupted", reasons=[came] if came else [], context={"accepted": accepted})


def _show_accepted(run: Run, request: GenerateRequest, accepted: object) -> None:
    """What came out before the failure of several prompts, whose texts are not shown as they come."""
    from rich.text import Text

    rows = accepted if isinstance(accepted, (list, tuple)) else ()
    texts = [_whole(request.prompts[one["index"]], one["text"]) for one in rows if one["ids"]]
    if texts:
        run.out.console.print(Text("\n\n").join(texts))


def _whole(prompt: str, text: str) -> Text:
    from rich.text import Text

    return Text.assemble((prompt, "bold"), text)


def _given(prompts: list[str], prompt_file: Path | None) -> tuple[list[str], str | None]:
    """The words of the command line and, where they ask for it, what came in on standard input."""
    if prompt_file is not None:
        try:
            prompts = [*prompts, prompt_file.read_text(encoding="utf-8").rstrip("\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the prompt file {prompt_file}", reasons=[str(error)]) from error
    piped = not prompts and not sys.stdin.isatty()
    return prompts, sys.stdin.read() if "-" in prompts or piped else None


def _recorder(stack: ExitStack, path: Path | None) -> EventSink:
    if path is None:
        return lambda _event: None
    try:
        file = stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot write the events to {path}", reasons=[str(error)]) from error

    def record(event: Event) -> None:
        file.write(encode(event) + "\n")
        file.flush()

    return record
