"""Document → `SwarmFile`: pydantic judges each key by itself, and its errors become sentences.

An invalid part is reported, left out, and what remains is judged again; so all faults are found in one go, and the
checks that follow know which parts they cannot rely on.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from swarmctl.config.document import Document, Path
from swarmctl.config.schema import SwarmFile, section_keys
from swarmctl.errors import Finding

_SECTIONS = ("model", "redundancy", "defaults", "hosts", "bootstrap", "nodes", "client")

_EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of names",
    "model_type": "a mapping of keys",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What could be read. `invalid` are the paths that were given but could not be used."""

    document: Document
    file: SwarmFile
    invalid: frozenset[Path]

    def usable(self, *path: str | int) -> bool:
        """False if something at `path`, around it or within it was invalid."""
        return not any(bad[: len(path)] == path or path[: len(bad)] == bad for bad in self.invalid)

    def given(self, *path: str | int) -> bool:
        """True if the file has something at `path`, valid or not."""
        return path in self.document.places

    def report(self, path: Path, message: str, *, hint: str | None = None, at_key: bool = False) -> None:
        """Add a finding."""
        self.document.findings.append(self.document.finding(path, message, hint=hint, at_key=at_key))


def read_file(document: Document) -> Reading:
    """Judge each key of the document; faults go into its findings."""
    invalid = set(document.unusable)
    data = _without_empty_sections(document.data)
    while isinstance(judged := _judge(data), ValidationError):
        # From the back, so that leaving one out moves no other.
        for fault in reversed(judged.errors(include_url=False)):
            path = tuple(fault["loc"])
            if fault["type"] == "extra_forbidden":
                document.findings.append(_unknown_key(document, path))
                # A misspelt key is not a missing one too.
                invalid.update((*path[:-1], near) for near in _near_keys(path))
            else:
                document.findings.append(_finding(document, path, fault))
            invalid.add(path)
            data = _leave_out(data, path)
    return Reading(document=document, file=judged, invalid=frozenset(invalid))


def _judge(data: Any) -> SwarmFile | ValidationError:
    try:
        return SwarmFile.model_validate(data)
    except ValidationError as error:
        return error


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known word that `word` was probably meant to be; `likeness` from 0 to 1 is difflib's ratio."""
    close = difflib.get_close_matches(word, [str(item) for item in known], n=1, cutoff=likeness)
    return close[0] if close else None


def listed(words: Iterable[object]) -> str:
    """`a, b, c`; never shortened, because identifiers are never cut."""
    return ", ".join(str(word) for word in words)


def shown(value: object) -> str:
    """A value of the file as its writer would recognise it."""
    if value is None:
        return "empty"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    return json.dumps(value, ensure_ascii=False)


def _without_empty_sections(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    kept = {key: value for key, value in data.items() if value is not None or key not in _SECTIONS}
    for name in ("hosts", "nodes"):
        if isinstance(kept.get(name), dict):
            kept[name] = {key: {} if value is None else value for key, value in kept[name].items()}
    return kept


def _leave_out(data: Any, path: Path) -> Any:
    """The data without `path`; an item of a list takes the whole list with it, unless the items are mappings."""
    if not path:
        return {}
    *before, last = path
    holder = data
    for part in before:
        if isinstance(holder, dict) and part not in holder:
            return data
        holder = holder[part]
    if isinstance(last, int) and path[0] != "bootstrap":
        return _leave_out(data, tuple(before))
    if isinstance(last, int):
        holder[last] = {}
    else:
        holder.pop(last, None)
    return data


def _finding(document: Document, path: Path, fault: Mapping[str, Any]) -> Finding:
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    if kind == "predicate":
        message = f"{shown(value)} {context['problem']}"
    elif kind == "whole":
        message = fault["msg"]
    elif kind == "literal_error":
        message = _not_one_of(value, context["expected"])
    elif kind == "greater_than_equal":
        message = f"must be at least {context['ge']}, not {shown(value)}"
    elif kind == "greater_than":
        message = f"must be greater than {context['gt']:g}, not {shown(value)}"
    elif kind == "less_than_equal":
        message = f"must be at most {context['le']}, not {shown(value)}"
    else:
        message = f"must be {_EXPECTED[kind]}, not {shown(value)}" if kind in _EXPECTED else fault["msg"].lower()
    hint = "quote it" if kind == "string_type" and isinstance(value, (int, float)) else None
    return document.finding(path, message, hint=hint)


def _not_one_of(value: object, expected: str) -> str:
    words = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    message = f"must be {listed(words[:-1]) + ' or ' if words[1:] else ''}{words[-1]}, not {shown(value)}"
    near = nearest(value, words, likeness=0.5) if isinstance(value, str) else None
    return f'{message}; did you mean "{near}"?' if near else message


def _unknown_key(document: Document, path: Path) -> Finding:
    key, keys = str(path[-1]), section_keys()
    here = keys[_section_of(path[:-1])]
    message = f'unknown key "{key}"'
    if near := _near_keys(path):
        message += f'; did you mean "{near[0]}"?'
    elif owners := [name for name, known in keys.items() if key in known]:
        message += f"; it belongs in {owners[0] or 'the top level'}"
    return document.finding(path, message, hint=f"keys here: {listed(here)}", at_key=True)


def _near_keys(path: Path) -> tuple[str, ...]:
    near = nearest(str(path[-1]), section_keys()[_section_of(path[:-1])])
    return (near,) if near else ()


def _section_of(around: Path) -> str:
    if len(around) < 2:
        return str(around[0]) if around else ""
    return f"{around[0]}[]" if isinstance(around[1], int) else f"{around[0]}.*"
