"""What all tests share: how hypothesis runs, and that assertions in `support` say what they saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("support")

# No deadline: the machines that run this are shared, and a slow example is no fault of the code.
settings.register_profile("swarmctl", deadline=None, max_examples=150)
settings.load_profile("swarmctl")

_LIVE = ("swarm", "trials")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share live swarms among at most two workers (`-n 2 --dist loadgroup`).

    A process has one petals client. So the tests that share the live client of `tests/swarm` stay together, and so do
    all others that start real servers, trials with clients of their own among them.
    """
    for item in items:
        if Path(item.path).parent.name in _LIVE:
            shares = "client" in getattr(item, "fixturenames", ()) or "swarm" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("the shared client" if shares else "clients of their own"))
