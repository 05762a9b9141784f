"""An argument list as the one line of text that sshd hands to the login shell of the far side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def shell_line(argv: Sequence[str]) -> str:
    """A command line that a POSIX shell splits into exactly `argv`.

    Only a program that begins with `~/` is not taken literally: it is looked up in the home folder of the far side,
    which nobody knows here.

    Raises:
        ValueError: for an empty list, or a NUL, which no argument can have.
    """
    if not argv:
        raise ValueError("a command has at least its program")
    if any("\0" in word for word in argv):
        raise ValueError("an argument cannot have a NUL in it")
    program, *arguments = argv
    first = f"~/{shlex.quote(program[2:])}" if program.startswith("~/") and len(program) > 2 else shlex.quote(program)
    return " ".join((first, *map(shlex.quote, arguments)))
