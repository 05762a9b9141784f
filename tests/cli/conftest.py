"""Command lines in folders of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shell import SWARM, Shell
from support.trials import Trials


@pytest.fixture
def bare(tmp_path: Path) -> Shell:
    """A shell in an empty folder."""
    return Shell(folder=tmp_path)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in a folder with a swarm file that is valid."""
    (tmp_path / "swarm.yaml").write_text(SWARM)
    return Shell(folder=tmp_path)


@pytest.fixture
def trials(bare: Shell) -> Trials:
    """The made-up trials that `bare` makes instead of real ones."""
    bare.try_cells = made = Trials()
    return made
