"""Command lines in folders of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shell import SWARM, Shell


@pytest.fixture
def bare(tmp_path: Path) -> Shell:
    """A shell in an empty folder."""
    return Shell(folder=tmp_path)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in a folder with a swarm file that is valid."""
    (tmp_path / "swarm.yaml").write_text(SWARM)
    return Shell(folder=tmp_path)
