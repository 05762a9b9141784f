"""YAML text → plain values, with the line and column of every key and value.

PyYAML builds its tree of nodes; the values are made here, because YAML 1.1 reads `40:50` as the number 2450, `no` as
false and keeps the last of two equal keys without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from swarmctl.errors import Finding

Path = tuple[str | int, ...]
"""Where a value is: `("nodes", "a0", "gpu")`, or `("bootstrap", 0, "port")`."""

_STR = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"

RESOLVERS: tuple[tuple[str, re.Pattern[str], list[str]], ...] = (
    (_NULL, re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_INT, re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789")),
    (
        _FLOAT,
        re.compile(r"^[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"),
        list("-+.0123456789"),
    ),
)
"""What an unquoted scalar means: YAML 1.2's core schema, with 1.1's `16_384`. Everything else is text."""

# A swarm file has some hundred entries; aliases of aliases could make millions out of ten lines.
_MAX_ENTRIES = 50_000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # shared on purpose, as in PyYAML's own loaders


for _tag, _pattern, _first in RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Line and column, counted from 1, of a value and of the key or dash that it belongs to."""

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(kw_only=True)
class Document:
    """A parsed file. `data` holds dicts with text keys, lists and scalars; what was invalid is left out of it.

    `places` knows every path of `data`, and those that were left out; `unusable` are the paths of the latter, and of
    keys that were written twice. `findings` are the faults of the YAML itself.
    """

    file: str
    lines: tuple[str, ...]
    data: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    unusable: set[Path] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def finding(self, path: Path, message: str, *, hint: str | None = None, at_key: bool = False) -> Finding:
        """A finding at `path`, or at the nearest thing around it that is in the file."""
        known = path
        while known and known not in self.places:
            known = known[:-1]
        place = self.places.get(known, Place(key=(1, 1), value=(1, 1)))
        at = place.key if at_key or known != path else place.value
        return self.finding_at(at, message, path=path, hint=hint)

    def finding_at(self, at: tuple[int, int], message: str, *, path: Path = (), hint: str | None = None) -> Finding:
        """A finding at a line and column."""
        line, column = at
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return Finding(
            file=self.file,
            line=line,
            column=column,
            path=path_text(path),
            message=message,
            hint=hint,
            source_line=text,
        )


def path_text(path: Sequence[str | int]) -> str:
    """`("bootstrap", 0, "port")` → `bootstrap[0].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse_document(text: str, file: str) -> Document:
    """Parse YAML; never raises for what the text contains, but puts it into the document's findings."""
    document = Document(file=file, lines=tuple(text.splitlines()))
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            document.findings.append(
                document.finding_at((1, 1), "the file is empty", hint="write a new one: swarmctl init")
            )
        else:
            _Reader(document).read(root)
    except yaml.MarkedYAMLError as error:
        document.findings.append(_syntax_finding(document, error))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        at = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        document.findings.append(document.finding_at(at, f"character {error.character!r} may not stand in a YAML file"))
    except RecursionError:
        document.findings.append(document.finding_at((1, 1), "the file is nested too deeply"))
    return document


def _syntax_finding(document: Document, error: yaml.MarkedYAMLError) -> Finding:
    mark = error.problem_mark or error.context_mark
    at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    because = f" {error.context}" if error.context else ""
    hint = None
    if error.problem and "'\\t'" in error.problem:
        hint = "indent with spaces; YAML takes no tabs"
    elif error.problem and "mapping values are not allowed" in error.problem:
        hint = "check the indentation, and quote text that contains a colon and a space"
    return document.finding_at(at, f"not valid YAML{because}: {error.problem or error}", hint=hint)


class _Reader:
    """Walks the node tree once and fills the document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[Node] = []

    def read(self, root: Node) -> None:
        self._document.places[()] = Place(key=_at(root), value=_at(root))
        _, self._document.data = self._value(root, ())

    def _value(self, node: Node, path: Path) -> tuple[bool, Any]:
        """Whether the node has a value that can be used, and the value."""
        if node in self._open:
            self._complain(node, path, "contains itself through an alias")
            return False, None
        if len(self._document.places) > _MAX_ENTRIES:
            return False, None
        self._open.append(node)
        try:
            if isinstance(node, MappingNode):
                return True, self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return True, self._sequence(node, path)
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._complain(key_node, path, "a key must be text")
                continue
            inner = (*path, key_node.value)
            if inner in self._document.places:
                first = self._document.places[inner].key[0]
                self._complain(key_node, inner, f"is written twice; the first is in line {first}")
                continue
            self._enter(inner, key=_at(key_node), value=_at(value_node))
            usable, value = self._value(value_node, inner)
            if usable:
                values[key_node.value] = value
        return values

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self._enter((*path, index), key=_at(item), value=_at(item))
            usable, value = self._value(item, (*path, index))
            values.append(value if usable else None)
        return values

    def _scalar(self, node: Node, path: Path) -> tuple[bool, Any]:
        text = str(node.value)
        if node.tag == _STR:
            return True, text
        if node.tag == _NULL:
            return True, None
        if node.tag == _BOOL:
            return True, text.lower() == "true"
        if node.tag in (_INT, _FLOAT):
            try:
                return True, int(text.replace("_", "")) if node.tag == _INT else float(text)
            except ValueError:
                self._complain(node, path, f'"{text}" is not a number')
                return False, None
        self._complain(node, path, f"the tag {node.tag} has no meaning here")
        return False, None

    def _enter(self, path: Path, *, key: tuple[int, int], value: tuple[int, int]) -> None:
        self._document.places[path] = Place(key=key, value=value)
        if len(self._document.places) == _MAX_ENTRIES:
            self._document.findings.append(
                self._document.finding_at(key, f"the file has more than {_MAX_ENTRIES} entries", path=path)
            )

    def _complain(self, node: Node, path: Path, message: str) -> None:
        self._document.unusable.add(path)
        self._document.findings.append(self._document.finding_at(_at(node), message, path=path))


def _at(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
