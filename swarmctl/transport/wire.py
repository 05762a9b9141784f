"""What an operator and the agent on a distant host say to each other: JSON, one message a line. Pure.

    operator → agent   {"id": 7, "do": "survey", "args": {"names": null}}
    agent → operator   {"swarmctl": 1, "id": 7, "ok": […]}
                       {"swarmctl": 1, "id": 7, "error": {"code": "Locked", "message": …, …}}

Answers may come in another order than requests. Lines of the far side without the mark `{"swarmctl": ` are not the
agent's: a login shell may print what it likes before it starts one. Fields that a newer version adds are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from swarmctl import errors
from swarmctl.blocks import NodeName
from swarmctl.errors import SwarmctlError
from swarmctl.store import Launch
from swarmctl.transport.base import AgentFacts, Completed, HostedNode, LogChunk, LogPosition, Order
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.oplock import LockNote

PROTOCOL = 1
"""Two sides with different numbers do not talk."""

_MARK = '{"swarmctl":'


@dataclass(frozen=True, kw_only=True)
class Call:
    """The types of a method's arguments and of its result."""

    arguments: Mapping[str, Any]
    result: Any


CALLS: Mapping[str, Call] = {
    "facts": Call(arguments={}, result=AgentFacts),
    "run": Call(arguments={"argv": tuple[str, ...], "timeout_s": float, "stdin": str | None}, result=Completed),
    "survey": Call(arguments={"names": tuple[NodeName, ...] | None}, result=tuple[HostedNode, ...]),
    "start_runner": Call(arguments={"launch": Launch}, result=None),
    "signal": Call(arguments={"node": NodeName, "order": Order}, result=bool),
    "clear": Call(arguments={"node": NodeName, "purge": bool}, result=tuple[str, ...]),
    "read_log": Call(
        arguments={"node": NodeName, "after": LogPosition | None, "tail": int | None, "since": float | None},
        result=LogChunk,
    ),
    "take_lock": Call(arguments={"note": LockNote}, result=LockNote | None),
    "has_lock": Call(arguments={}, result=bool),
    "release_lock": Call(arguments={}, result=None),
    "read_lock": Call(arguments={}, result=LockNote | None),
    "break_lock": Call(arguments={}, result=LockNote | None),
    "drop_swarm": Call(arguments={}, result=None),
    "append_events": Call(arguments={"entries": tuple[Entry, ...]}, result=None),
    "read_events": Call(arguments={"offset": int}, result=EntryChunk),
}
"""The methods of `Transport`, as they travel."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as the agent has read it."""

    id: int
    do: str
    args: dict[str, Any]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode_request(number: int, do: str, args: Mapping[str, Any]) -> str:
    """A request as one line."""
    types = CALLS[do].arguments
    plain = {name: _adapter(types[name]).dump_python(value, mode="json") for name, value in args.items()}
    return json.dumps({"id": number, "do": do, "args": plain}) + "\n"


def decode_request(line: str) -> Request:
    """A request from its line.

    Raises:
        ValueError: for anything that is none; a method that this version does not know is none.
    """
    try:
        said = json.loads(line)
        number, do, args = int(said["id"]), str(said["do"]), dict(said["args"])
        types = CALLS[do].arguments
        found = {name: _adapter(types[name]).validate_python(value, strict=False) for name, value in args.items()}
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(f"no request: {error}") from error
    return Request(id=number, do=do, args=found)


def encode_result(number: int, do: str, result: Any) -> str:
    """What a method has returned, as one line."""
    kind = CALLS[do].result
    plain = None if kind is None else _adapter(kind).dump_python(result, mode="json")
    return json.dumps({"swarmctl": PROTOCOL, "id": number, "ok": plain}) + "\n"


def encode_error(number: int, error: SwarmctlError) -> str:
    """What a method has raised, as one line."""
    said = {
        "code": type(error).__name__,
        "message": error.message,
        "reasons": error.reasons,
        "hints": error.hints,
        "context": error.context,
    }
    return json.dumps({"swarmctl": PROTOCOL, "id": number, "error": said}, default=str) + "\n"


def decode_answer(line: str) -> dict[str, Any] | None:
    """An answer with its `id` and `ok` or `error`; None for a line that the agent has not written."""
    if not line.startswith(_MARK):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("id"), int) else None


def result_of(do: str, answer: Mapping[str, Any]) -> Any:
    """The value that an answer carries.

    Raises:
        SwarmctlError: the one that the far side has raised, as it was raised there.
        ValueError: for a value that is none of the method's.
    """
    if "error" in answer:
        raise _error(answer["error"])
    kind = CALLS[do].result
    return None if kind is None else _adapter(kind).validate_python(answer.get("ok"), strict=False)


def _error(said: Mapping[str, Any]) -> SwarmctlError:
    kind = getattr(errors, str(said.get("code")), SwarmctlError)
    if not (isinstance(kind, type) and issubclass(kind, SwarmctlError)):
        kind = SwarmctlError
    return kind(
        str(said.get("message")),
        **{"reasons": said.get("reasons", ()), "hints": said.get("hints", ()), "context": said.get("context")}
        if kind is not errors.ConfigError
        else {"hints": said.get("hints", ())},
    )
