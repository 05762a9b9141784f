"""Compares what a view draws with a file under `golden/`; `SWARMCTL_REWRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, RenderableType], None]


def drawn(view: RenderableType) -> str:
    """What a terminal of 100 columns without colour shows."""
    console = Console(
        file=io.StringIO(), width=100, color_system=None, force_terminal=False, highlight=False, soft_wrap=True
    )
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def golden() -> Golden:
    """Asserts that a view is drawn as in the file of that name."""

    def compare(name: str, view: RenderableType) -> None:
        path, text = GOLDEN / f"{name}.txt", drawn(view)
        if os.environ.get("SWARMCTL_REWRITE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no {path}: run the test once with SWARMCTL_REWRITE_GOLDEN=1 and read the file"
        assert text == path.read_text(encoding="utf-8")

    return compare
