"""Live swarms, one family after the other, and what is printed of them when a test fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.connected import ConnectedClient, connected_client
from support.swarm import SPLIT, LiveSwarm, live_swarm

from swarmctl.upstream.compat import import_petals


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """torch's threads wait for each other in a loop; with six servers on few cores that takes seconds a token."""
    import_petals()
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def swarm(request: pytest.FixtureRequest) -> Iterator[LiveSwarm]:
    """A swarm of the family that the test asks for with `ON_LLAMA` or `ON_BOTH`; its nodes are `SPLIT`."""
    with live_swarm(request.param, SPLIT, log=sys.stderr.write) as live:
        yield live


@pytest.fixture(scope="session")
def connected(swarm: LiveSwarm) -> Iterator[ConnectedClient]:
    """One connection for all tests of a family; use it through `client`."""
    with connected_client(swarm) as client:
        yield client


@pytest.fixture
def client(connected: ConnectedClient) -> ConnectedClient:
    """The connected client without a past."""
    connected.histories.clear()
    return connected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the nodes' logs and the histories of the generations to a failure."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {})
        if "client" in fixtures:
            told = "\n".join(history.report() for history in fixtures["client"].histories)
            report.sections.append(("generations", told))
        for name in ("swarm", "small"):
            if name in fixtures:
                report.sections.append((f"logs of the nodes of {name}", fixtures[name].logs()))
    return report
