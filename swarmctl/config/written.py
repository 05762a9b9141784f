"""The values of single keys: what the file may say, and the predicate of the sentence that refuses anything else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, GetPydanticSchema, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from swarmctl.addresses import host_fault
from swarmctl.blocks import parse_range
from swarmctl.config.durations import parse_duration
from swarmctl.config.endpoints import parse_endpoint


def _duration(written: object) -> float:
    try:
        return parse_duration(written)
    except ValueError as error:
        raise _not_so(str(error)) from error


def _blocks(written: object) -> object:
    if written == "auto" or written is None:
        return written
    if not isinstance(written, str):
        raise _not_so('is not a block range; write START:END, for example "0:8"')
    try:
        parse_range(written)
    except ValueError as error:
        # The sentence begins with the range; here it begins with what the file says.
        raise _not_so(f"is {str(error).rpartition(' is ')[2]}") from error
    return written


def _endpoint(written: object) -> object:
    if written is None:
        return None
    try:
        return str(parse_endpoint(written))
    except ValueError as error:
        raise _not_so(str(error)) from error


def _address(written: object) -> object:
    # What is no text, or empty, is judged by its type.
    if isinstance(written, str) and (fault := host_fault(written)):
        raise _not_so(fault)
    return written


def _cards(written: object, as_list: core_schema.ValidatorFunctionWrapHandler) -> object:
    """`all`, or a list whose items are judged one by one."""
    if written == "all":
        return written
    if not isinstance(written, list):
        raise _not_so("is neither all nor a list of cards; write all, or for example [0, 1]")
    cards = as_list(written)
    twice = sorted({card for card in cards if cards.count(card) > 1})
    if twice:
        raise PydanticCustomError("whole", "lists {cards} twice", {"cards": ", ".join(str(card) for card in twice)})
    return cards


def _switch(written: object) -> bool:
    # Other YAML readers take on and off for true and false, and may have written the file.
    if written in ("on", "off") or isinstance(written, bool):
        return written in ("on", True)
    raise _not_so("is neither on nor off")


def _not_so(problem: str) -> PydanticCustomError:
    """The predicate of a sentence whose subject is the value in the file."""
    return PydanticCustomError("predicate", "{problem}", {"problem": problem})


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h)$"},
            ]
        }
    ),
]
Blocks = Annotated[
    str | None,
    BeforeValidator(_blocks),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+\s*:\s*\d+\s*$", "examples": ["0:8"]}),
]
EndpointText = Annotated[
    str | None,
    BeforeValidator(_endpoint),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\d+\.\d+\.\d+\.\d+:\d+$", "examples": ["203.0.113.5:31340"]},
                {"type": "null"},
            ]
        }
    ),
]
Address = Annotated[
    str | None,
    BeforeValidator(_address),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
                    "examples": ["192.0.2.11", "gpu-a.lan"],
                },
                {"type": "null"},
            ]
        }
    ),
]
Card = Annotated[int, Field(ge=0)]
# A plain union would name its branches in the place of a fault.
Cards = Annotated[
    list[Card] | Literal["all"],
    GetPydanticSchema(
        lambda _, schema_of: core_schema.no_info_wrap_validator_function(_cards, schema_of(list[Card])),
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True},
                {"const": "all"},
            ]
        }
    ),
]
Switch = Annotated[
    bool,
    BeforeValidator(_switch),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": ["on", "off"]}, {"type": "boolean"}]}),
]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
