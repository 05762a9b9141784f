"""Trials have clients of their own, and one process has one client: so not beside `tests/swarm`, whose lives long."""

from __future__ import annotations

import pytest

from swarmctl.upstream.compat import import_petals


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """torch's threads wait for each other in a loop; with several servers on few cores that takes seconds a token."""
    import_petals()
    import torch

    torch.set_num_threads(1)
