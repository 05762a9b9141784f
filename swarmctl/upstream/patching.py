"""Rebind an upstream name in the open: checked before, undone after, listed while it lasts."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from swarmctl.errors import UpstreamDrift

_MARK = "__swarmctl_patch__"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One rebinding.

    `target` is `module:attribute.path`. `replacement` is called with the original and returns what takes its place.
    `relies_on` maps upstream functions (`module:path`) to the fingerprints that were verified; an empty mapping
    means that only the name's existence matters. `until`: what upstream must change for this patch to go.
    """

    name: str
    target: str
    replacement: Callable[[Any], Any]
    why: str
    until: str
    relies_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def fingerprint(function: Callable[..., Any]) -> str:
    """Eight hex digits of a function's syntax tree; comments, formatting and its docstring do not count."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:] or [ast.Pass()]
    # Empty lists are dropped because later Pythons add fields (type_params) to the same tree.
    text = ast.dump(tree, annotate_fields=False).replace(", []", "")
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def resolve(path: str) -> tuple[Any, str, Any]:
    """`module:a.b` → the object that holds `b`, the name `b`, and what it is now.

    Raises:
        UpstreamDrift: when upstream has no such name.
    """
    module, _, attribute = path.partition(":")
    try:
        holder: Any = importlib.import_module(module)
        *parents, last = attribute.split(".")
        for parent in parents:
            holder = getattr(holder, parent)
        # A static or class method must be put back as the descriptor it was, hence not getattr.
        return holder, last, inspect.getattr_static(holder, last)
    except (ImportError, AttributeError) as error:
        raise UpstreamDrift(
            f"upstream has no {path}", reasons=[str(error)], hints=["swarmctl doctor"], context={"path": path}
        ) from error


def drift_of(patch: Patch) -> tuple[str, ...]:
    """One line for every upstream function that is not what `patch` was verified with; empty when all is well."""
    lines = []
    for path, known in patch.relies_on.items():
        _, _, found = resolve(path)
        found = getattr(found, "__func__", found)
        actual = fingerprint(found)
        if actual not in known:
            lines.append(f"{path} has fingerprint {actual}, verified {', '.join(known)}")
    return tuple(lines)


@contextmanager
def applied(*patches: Patch) -> Iterator[None]:
    """Bind all replacements, or none; on leaving, also by an error, put the originals back.

    Raises:
        UpstreamDrift: before anything is changed, when upstream is not what was verified or is patched already.
    """
    resolved = [(patch, *resolve(patch.target)) for patch in patches]
    faults = [line for patch in patches for line in drift_of(patch)]
    faults += [
        f"{p.target} is patched already, by {getattr(now, _MARK)}" for p, _, _, now in resolved if is_patched(now)
    ]
    if faults:
        raise UpstreamDrift(
            "the installed petals and hivemind are not those this version was verified with",
            reasons=faults,
            hints=["pip install hivemind==1.1.12", "pip install --no-deps petals==2.2.0.post1"],
        )
    with ExitStack() as undo:
        for patch, holder, name, original in resolved:
            replacement = patch.replacement(original)
            bare = getattr(replacement, "__func__", replacement)
            if hasattr(bare, "__dict__"):
                setattr(bare, _MARK, patch.name)
            setattr(holder, name, replacement)
            undo.callback(setattr, holder, name, original)
        yield


def is_patched(value: Any) -> bool:
    """True if `value` was put there by `applied`."""
    return hasattr(getattr(value, "__func__", value), _MARK)
