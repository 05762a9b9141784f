"""Ready swarm files to start from, shipped with the program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import swarmctl
from swarmctl.config.reading import nearest
from swarmctl.errors import UsageError


def presets() -> Mapping[str, str]:
    """Name → one line on what it is for, by name; the line is the file's first comment."""
    return {path.stem: _first_comment(path) for path in sorted(_folder().glob("*.yaml"))}


def preset_path(name: str) -> Path:
    """Where a preset's file is; it belongs to the installation and is not to be edited.

    Raises:
        UsageError: there is none of that name.
    """
    known = presets()
    if name not in known:
        near = nearest(name, known)
        hints = [f"swarmctl init {near}"] if near else []
        raise UsageError(f"there is no preset {name}", reasons=[f"there are: {', '.join(known)}"], hints=hints)
    return _folder() / f"{name}.yaml"


def preset_text(name: str) -> str:
    """The text of a preset.

    Raises:
        UsageError: there is none of that name.
    """
    return preset_path(name).read_text(encoding="utf-8")


def _folder() -> Path:
    package = Path(swarmctl.__file__).parent
    installed = package / "presets"
    # A wheel carries them inside the package; a checkout has them beside it.
    return installed if installed.is_dir() else package.parent / "configs"


def _first_comment(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("#")), "")
