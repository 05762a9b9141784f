"""Options that several commands share, so that a letter means the same everywhere.

They are accepted before the verb and after it; after the verb wins. `-o` names a format, except where a command
writes a file or a folder (`init`, `model`): there it names that, and the format goes before the verb.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from swarmctl_cli import completion
from swarmctl_cli.output import Format

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """`"90"`, `"250ms"`, `"10s"`, `"5m"`, `"1h"` → seconds.

    Raises:
        typer.BadParameter: when the text is no duration above zero.
    """
    found = _DURATION.match(str(text).strip())
    if not found or float(found[1]) <= 0:
        raise typer.BadParameter(f"{text!r} is not a duration; write for example 90s, 5m or 1h")
    return float(found[1]) * _SECONDS[found[2] or "s"]


Config = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        show_default=False,
        help="The swarm file. Without it: $SWARMCTL_CONFIG, else swarm.yaml here or in a folder above.",
    ),
]
Output = Annotated[
    Format | None,
    typer.Option("-o", "--output", case_sensitive=False, show_default=False, help="How stdout is written."),
]
Swarm = Annotated[
    str | None,
    typer.Option(
        "--swarm",
        metavar="NAME",
        show_default=False,
        help="What runs of this swarm on this machine, without its file (which may be gone, or broken).",
    ),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", show_default=False, help="Say nothing on stderr but warnings and errors.")
]
Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, metavar="", show_default=False, help="Log to stderr; -vv logs everything."
    ),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", show_default=False, help="Answer every question with yes.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", show_default=False, help="Show what would be done and change nothing.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", parser=parse_duration, metavar="TIME", show_default=False, help="Give up after this long, e.g. 5m."
    ),
]
Why = Annotated[
    str | None,
    typer.Option(
        "-m", "--message", metavar="WHY", show_default=False, help="Why you do it; goes into the log of events."
    ),
]
LockWait = Annotated[
    float | None,
    typer.Option(
        "--lock-wait",
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="Wait this long for another operator to finish, e.g. 5m; else exit code 9 at once.",
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NODE",
        show_default=False,
        autocompletion=completion.nodes,
        help="A name, a glob, @host, a unique prefix, or the end of a peer id.",
    ),
]
Every = Annotated[
    float,
    typer.Option("--every", parser=parse_duration, metavar="TIME", help="How often --watch looks again."),
]
AllowGap = Annotated[
    bool, typer.Option("--allow-gap", show_default=False, help="Do it, though blocks will be without a server.")
]
