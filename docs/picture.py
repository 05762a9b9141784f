"""Run a command on a terminal of its own and write its last screen as an SVG: `python docs/picture.py OUT.svg -- CMD…`.

The pictures in the README are made with it, from a running swarm; nothing in them is drawn by hand.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import sys

from rich.console import Console
from rich.text import Text

_WIDTH = 118
_CONTROL = re.compile(r"\x1b\[\?[0-9;]*[a-zA-Z]|\x1b\[[0-9]*[AKJH]|\x1b\]8;[^\x07]*\x07|\r")


def screen_of(argv: list[str]) -> str:
    """What the command leaves on the screen, with its colours."""
    os.environ |= {"COLUMNS": str(_WIDTH), "LINES": "50", "TERM": "xterm-256color"}
    written = bytearray()

    def read(descriptor: int) -> bytes:
        piece = os.read(descriptor, 65536)
        written.extend(piece)
        return piece

    pty.spawn(argv, read)
    text = written.decode("utf-8", errors="replace").replace("\r\n", "\n")
    # A live display moves up and draws again; what came before its last move up is not on the screen any more.
    lines: list[str] = []
    for line in text.split("\n"):
        ups = line.count("\x1b[1A")
        if ups:
            del lines[-ups:]
            line = line.rsplit("\x1b[1A", 1)[1]
        lines.append(_CONTROL.sub("", line))
    return "\n".join(lines).rstrip("\n")


def main(arguments: list[str]) -> None:
    """Entry point."""
    out, _, *argv = arguments
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), shlex.join(["swarmctl", *argv[1:]])))
    console.print(Text.from_ansi(screen_of(argv)), overflow="fold")
    console.save_svg(out, title="swarmctl")


if __name__ == "__main__":
    main(sys.argv[1:])
