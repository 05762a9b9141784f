"""Rebind an upstream name in the open: checked before, undone after, listed while it lasts."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from swarmctl.errors import UpstreamDrift

# Beside a name that is bound: the patch that did it. On the holder, because a string takes no attribute.
_MARK = "__swarmctl_patch__"
# Stands for a name that its holder has from a base class, so there is nothing of its own to put back.
_INHERITED = object()


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
    """One line for every upstream function that is not what `patch` was verified with; empty when all is well.

    Raises:
        UpstreamDrift: when upstream has no such name.
    """
    lines = []
    for path, known in patch.relies_on.items():
        _, _, found = resolve(path)
        try:
            actual = fingerprint(getattr(found, "__func__", found))
        except (OSError, TypeError, SyntaxError) as error:
            lines.append(f"{path} has no source to compare: {error}")
            continue
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
    faults = [line for patch in patches for line in _stacked(patch, patches) or drift_of(patch)]
    if faults:
        raise UpstreamDrift(
            "the installed petals and hivemind are not those this version was verified with",
            reasons=faults,
            hints=["pip install hivemind==1.1.12", "pip install --no-deps petals==2.2.0.post1"],
        )
    with ExitStack() as undo:
        for patch, holder, name, original in resolved:
            replacement = patch.replacement(original)
            undo.callback(_put_back, holder, name, vars(holder).get(name, _INHERITED))
            setattr(holder, name, replacement)
            undo.callback(delattr, holder, _MARK + name)
            setattr(holder, _MARK + name, patch.name)
        yield


def patched_by(path: str) -> str | None:
    """The name of the patch that holds `module:attribute.path` now, or None.

    Raises:
        UpstreamDrift: when upstream has no such name.
    """
    holder, name, _ = resolve(path)
    found = vars(holder).get(_MARK + name)
    return None if found is None else str(found)


def _stacked(patch: Patch, patches: Sequence[Patch]) -> list[str]:
    active = patched_by(patch.target)
    if active is not None:
        return [f"{patch.target} is patched already, by {active}"]
    twice = next((other for other in patches if other is not patch and other.target == patch.target), None)
    return [] if twice is None else [f"{patch.target} would be patched twice, by {patch.name} and {twice.name}"]


def _put_back(holder: Any, name: str, original: Any) -> None:
    if original is _INHERITED:
        delattr(holder, name)
    else:
        setattr(holder, name, original)
