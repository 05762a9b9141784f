from __future__ import annotations

import pytest
from processes.conftest import Lab

from swarmctl.operations.down import down
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import up
from swarmctl.snapshot import NodeState

pytestmark = pytest.mark.process


def test_up_makes_every_node_online_and_down_leaves_nothing(lab: Lab) -> None:
    up(lab.site, sink=lab.events.append, deadline_s=30)

    states = {node.name: node.state for node in read_snapshot(lab.site).nodes}
    assert states == {"a": NodeState.ONLINE, "b": NodeState.ONLINE}

    stopped = down(lab.site, sink=lab.events.append, deadline_s=30)

    assert {event.node: event.how for event in stopped} == dict.fromkeys(("a", "b", "boot"), "stopped")
    assert not lab.left()
    assert not lab.runners()
