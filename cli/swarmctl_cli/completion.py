"""What the shell offers after TAB: names from the swarm file alone; no network, no output, no errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

CONFIG_NAME = "swarm.yaml"


def config_file(explicit: Path | None, env: Mapping[str, str], start: Path) -> Path | None:
    """The swarm file a command means: `-c`, else `SWARMCTL_CONFIG`, else `swarm.yaml` in `start` or above it."""
    if explicit is not None:
        return explicit.expanduser()
    if env.get("SWARMCTL_CONFIG"):
        return Path(env["SWARMCTL_CONFIG"]).expanduser()
    for folder in (start, *start.parents):
        if (folder / CONFIG_NAME).is_file():
            return folder / CONFIG_NAME
    return None


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Node names, and `@host` once an `@` is typed."""
    raw = _file(ctx)
    given = set(_words(ctx))
    names = [f"@{host}" for host in _keys(raw, "hosts")] if incomplete.startswith("@") else list(_keys(raw, "nodes"))
    return [name for name in names if name.startswith(incomplete) and name not in given]


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Names of ready configurations, each with its first line."""
    from swarmctl import config

    return [(name, about) for name, about in config.presets().items() if name.startswith(incomplete)]


def cells(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the cells that `verify recovery` has in its lists."""
    from swarmctl.matrix import QUICK, full

    given = set(_words(ctx))
    names = dict.fromkeys(map(str, (*QUICK, *full())))
    return [name for name in names if name.startswith(incomplete) and name not in given]


def _file(ctx: typer.Context) -> Mapping[str, Any]:
    import yaml

    explicit = ctx.params.get("config") or (ctx.parent and ctx.parent.params.get("config"))
    path = config_file(Path(explicit) if explicit else None, os.environ, Path.cwd())
    if path is None:
        return {}
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _keys(raw: Mapping[str, Any], section: str) -> Iterator[str]:
    part = raw.get(section)
    yield from (str(key) for key in part) if isinstance(part, dict) else ()


def _words(ctx: typer.Context) -> Iterator[str]:
    for value in ctx.params.values():
        if isinstance(value, (list, tuple)):
            yield from (str(item) for item in value)
