"""An exception as the user sees it: the three-part human form, the document's fields, the exit code.

error: draining gpu-2 would leave blocks 12:16 without a replica
  12:16  served by gpu-2 only
hint: swarmctl up --only gpu-3
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from swarmctl.blocks import BlockRange
from swarmctl.errors import ConfigError, ExitCode, SwarmctlError

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {"error": "bold red", "warning": "bold yellow", "hint": "cyan"}


class Interrupted(SwarmctlError):
    """The user pressed Ctrl-C; what runs keeps running."""

    exit_code = ExitCode.INTERRUPTED


class FaultMissed(SwarmctlError):
    """A drill was asked for and its moment never came, so the run proves nothing."""

    exit_code = ExitCode.UNKNOWN_VERDICT

    def __init__(self, missed: Sequence[str]) -> None:
        super().__init__(
            f"the drill did not happen: {', '.join(missed)}",
            reasons=["the node was not in the route, or the text ended before its token"],
            hints=["name a place in the route and an early token, for example --kill first@5"],
            context={"missed": list(missed)},
        )


class VerdictUnknown(SwarmctlError):
    """Nothing went wrong, but some faults did not bite, so that it is not known whether anything would have."""

    exit_code = ExitCode.UNKNOWN_VERDICT


class InternalError(SwarmctlError):
    """A fault in swarmctl itself: an exception that nobody planned for."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"unexpected {type(cause).__name__}: {cause}",
            reasons=["this is a fault in swarmctl, not in your swarm; nothing was retried"],
            hints=["report it with the lines above, the command you typed and the output of: swarmctl doctor"],
        )
        self.trace = "".join(traceback.format_exception(cause)).rstrip()


def exit_code(error: BaseException) -> int:
    """What the shell gets for `error`."""
    return int(error.exit_code) if isinstance(error, SwarmctlError) else int(ExitCode.FAILED)


def fields_of(error: BaseException) -> dict[str, Any]:
    """The `error` object of a document. `code` is the name of the class in `swarmctl.errors`."""
    if not isinstance(error, SwarmctlError):
        error = InternalError(error)
    context: dict[str, Any] = {key: plain(value) for key, value in error.context.items()}
    if isinstance(error, ConfigError):
        context["findings"] = [
            {"file": f.file, "line": f.line, "column": f.column, "path": f.path, "message": f.message, "hint": f.hint}
            for f in error.findings
        ]
    return {
        "code": type(error).__name__,
        "message": error.message,
        "reasons": list(error.reasons),
        "hints": list(error.hints),
        "context": context,
    }


def render(error: BaseException) -> Text:
    """What failed, why, and what to type next; a traceback only for what nobody planned for."""
    from rich.text import Text

    if not isinstance(error, SwarmctlError):
        error = InternalError(error)
    parts: list[Text] = []
    if isinstance(error, InternalError):
        parts.append(Text(error.trace, style="dim"))
    parts.append(label("error", error.message))
    if isinstance(error, ConfigError) and error.findings:
        from swarmctl_cli.views import findings

        # Each finding brings its line and its own hint.
        parts.append(findings.render(error.findings))
    else:
        parts.extend(Text(_indented(reason)) for reason in error.reasons)
    parts.extend(label("hint", hint) for hint in error.hints)
    return Text("\n").join(parts)


def label(word: str, text: str) -> Text:
    """`word: text`, the word in its colour."""
    from rich.text import Text

    return Text.assemble((f"{word}: ", _STYLES.get(word, "bold")), text)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def plain(value: object) -> Any:
    """A value made of dicts, lists, strings, numbers and None alone; whatever else is in it becomes its text.

    Dataclasses become dicts, block ranges the text that the swarm file has for them.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, BlockRange):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)
