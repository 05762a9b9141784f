"""What reaches the user: data on stdout in the format that was asked for, words on stderr.

With `-o json` or `-o yaml` stdout holds exactly one document, also when the command fails:

    {"apiVersion": "swarmctl/v1", "kind": …, "swarm": …, "generatedAt": …, "data": …, "warnings": […], "error": …}

`kind` is that of the command, the same on success and on failure, also where its options make no sense; it is `Error`
only where what is wrong stands before the command's name, or is that name. `error` is null exactly when the exit code
is 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from swarmctl.errors import SwarmctlError
from swarmctl_cli import errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

API_VERSION = "swarmctl/v1"
NO_COMMAND = "Error"
"""The kind of a document about a command line of which no command is known."""
_DUMB = ("dumb", "unknown")
"""Terminals that take no escape sequences, as they call themselves in TERM."""


class Format(str, Enum):
    """How data is written to stdout. `NAME`: the bare names, one a line, for pipes."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"


class Output:
    """The two streams of one run of the command, and what is known of it so far.

    `kind` and `swarm` go into every document; a command sets them as soon as it knows them, so that a failure
    half-way is labelled like a success.
    """

    def __init__(self, *, stdout: TextIO, stderr: TextIO, env: Mapping[str, str]) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.format = Format.TABLE
        self.quiet = False
        self.kind = NO_COMMAND
        self.swarm: str | None = None
        self._env = env
        self._warnings: list[str] = []
        self._documented = False

    @cached_property
    def console(self) -> Console:
        """Where human-readable data goes; lines are never wrapped or cut here."""
        return self._console(self.stdout)

    @cached_property
    def words(self) -> Console:
        """Where progress, warnings and errors go."""
        return self._console(self.stderr)

    @property
    def ascii_only(self) -> bool:
        """True if stdout cannot show line-drawing characters, or `SWARMCTL_ASCII` is set."""
        encoding = (getattr(self.stdout, "encoding", None) or "ascii").lower()
        return bool(self._env.get("SWARMCTL_ASCII")) or not encoding.startswith("utf")

    @property
    def width(self) -> int:
        """Columns a view may plan with: the terminal's, or 120 where there is none."""
        if self.stdout.isatty() or "COLUMNS" in self._env:
            return self.console.width
        return 120

    @property
    def live(self) -> bool:
        """True if a live display may be drawn on stderr."""
        return not self.quiet and self._draws_on(self.stderr)

    @property
    def screen(self) -> bool:
        """True if stdout is a terminal on which a picture can be redrawn in place."""
        return self._draws_on(self.stdout)

    def emit(
        self,
        data: Any,
        *,
        human: Callable[[], RenderableType],
        names: Sequence[str] | None = None,
        rows: Sequence[Any] | None = None,
        error: SwarmctlError | None = None,
    ) -> None:
        """Write the command's result, once.

        Args:
            data: plain values (dicts, lists, strings, numbers), the contract of the machine formats.
            human: draws the result for `-o table`.
            names: what `-o name` lists, one a line; None where the result has no names.
            rows: what `-o jsonl` writes, one object a line; None writes the whole document in one line.
            error: the negative answer that this result is, for the document; the exit code stays the caller's.
        """
        if self.format is Format.TABLE:
            self.console.print(human())
        elif self.format is Format.NAME:
            self._lines(names or ())
        elif self.format is Format.JSONL and rows is not None:
            self._lines(json.dumps(row, ensure_ascii=self.ascii_only) for row in rows)
        else:
            self._document(data, error)

    def line(self, data: Any) -> None:
        """Write one JSON object on a line of its own, for `-o jsonl` and endless output."""
        self._lines([json.dumps(data, ensure_ascii=self.ascii_only)])

    def text(self, piece: str) -> None:
        """Write a piece of text to stdout at once."""
        self.stdout.write(piece)
        self.stdout.flush()

    def say(self, text: RenderableType) -> None:
        """Tell the user something on stderr, unless `-q`."""
        if not self.quiet:
            self.words.print(text)

    def note(self, warning: str) -> None:
        """Keep a warning for the document; for warnings that the view shows itself."""
        self._warnings.append(warning)

    def warn(self, text: str) -> None:
        """Keep a warning for the document, and say it on stderr where there is none."""
        self.note(text)
        if self.format not in (Format.JSON, Format.YAML):
            self.words.print(errors.label("warning", text))

    def fail(self, error: BaseException) -> int:
        """Say what went wrong, in words and, where a document is due, as a document; returns the exit code."""
        self.words.print(errors.render(error))
        if self.format is not Format.TABLE and self.format is not Format.NAME:
            self._document(None, error)
        return errors.exit_code(error)

    def _document(self, data: Any, error: BaseException | None) -> None:
        if self._documented:
            return
        self._documented = True
        document = {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "swarm": self.swarm,
            "generatedAt": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "data": data,
            "warnings": list(self._warnings),
            "error": None if error is None else errors.fields_of(error),
        }
        if self.format is Format.YAML:
            import yaml

            self.text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
        else:
            indent = None if self.format is Format.JSONL else 2
            self.text(json.dumps(document, indent=indent, ensure_ascii=self.ascii_only) + "\n")

    def _lines(self, lines: Any) -> None:
        for line in lines:
            self.stdout.write(f"{line}\n")
        self.stdout.flush()

    def _draws_on(self, stream: TextIO) -> bool:
        return stream.isatty() and self._env.get("TERM") not in _DUMB

    def _console(self, stream: TextIO) -> Console:
        from rich.console import Console

        # With NO_COLOR rich leaves colours out and keeps bold and dim, which are escape sequences as well.
        plain = bool(self._env.get("NO_COLOR")) or self._env.get("TERM") in _DUMB
        columns = self._env.get("COLUMNS", "")
        return Console(
            file=stream,
            color_system=None if plain else "auto",
            width=int(columns) if columns.isdigit() and int(columns) else None,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
