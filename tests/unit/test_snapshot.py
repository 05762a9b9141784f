from __future__ import annotations

from itertools import product

import pytest
from support.builders import (
    CRASHED,
    NEVER_STARTED,
    RUNNING,
    STOPPED,
    a_node,
    a_probe,
    a_snapshot,
    a_spec,
    an_announcement,
    peer_of,
)

from swarmctl.blocks import BlockRange, HostName, NodeName
from swarmctl.snapshot import Announcement, NodeFacts, NodeState, PeerState, Probe, ProcessFact, judge_node


def facts(process: ProcessFact, announcement: Announcement | None, probe: Probe | None) -> NodeFacts:
    return NodeFacts(
        name=NodeName("a0"),
        host=HostName("a"),
        blocks=BlockRange(0, 4),
        peer=peer_of("a0"),
        process=process,
        announcement=announcement,
        probe=probe,
    )


@pytest.mark.parametrize(
    ("process", "announcement", "probe", "state"),
    [
        (NEVER_STARTED, None, None, NodeState.STOPPED),
        (STOPPED, None, None, NodeState.STOPPED),
        (STOPPED, an_announcement(state=PeerState.OFFLINE), None, NodeState.STOPPED),
        (STOPPED, an_announcement(), a_probe(), NodeState.STALE),
        (CRASHED, None, None, NodeState.CRASHED),
        (CRASHED, an_announcement(state=PeerState.JOINING), None, NodeState.CRASHED),
        (CRASHED, an_announcement(), a_probe(), NodeState.STALE),
        (NEVER_STARTED, an_announcement(), a_probe(), NodeState.STALE),
        (RUNNING, None, None, NodeState.STARTING),
        (RUNNING, None, a_probe(), NodeState.STARTING),
        (RUNNING, an_announcement(state=PeerState.OFFLINE), None, NodeState.STARTING),
        (RUNNING, an_announcement(state=PeerState.JOINING), None, NodeState.JOINING),
        (RUNNING, an_announcement(state=PeerState.JOINING, blocks="4:8"), None, NodeState.JOINING),
        (RUNNING, an_announcement(blocks="0:5"), a_probe(), NodeState.MISPLACED),
        (RUNNING, an_announcement(), None, NodeState.UNPROBED),
        (RUNNING, an_announcement(), a_probe(ok=False), NodeState.UNRESPONSIVE),
        (RUNNING, an_announcement(), a_probe(), NodeState.ONLINE),
    ],
)
def test_three_facts_give_one_word(
    process: ProcessFact, announcement: Announcement | None, probe: Probe | None, state: NodeState
) -> None:
    assert judge_node(facts(process, announcement, probe)) is state


def test_a_node_is_online_only_if_process_record_blocks_and_probe_agree() -> None:
    records = [None, *(an_announcement(blocks=b, state=s) for b, s in product(("0:4", "1:4", "0:8"), PeerState))]
    for process, record, probe in product(
        (RUNNING, STOPPED, CRASHED, NEVER_STARTED), records, (None, a_probe(), a_probe(ok=False))
    ):
        well = process.running and record == an_announcement() and probe == a_probe()
        assert (facts(process, record, probe).state is NodeState.ONLINE) == well


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.UNMANAGED])
def test_only_an_online_node_is_a_replica(state: NodeState) -> None:
    snapshot = a_snapshot(nodes=[a_node("a0", "0:4", state)])
    assert snapshot.nodes[0].state is state
    assert len(snapshot.replicas()) == (1 if state is NodeState.ONLINE else 0)


def test_a_stranger_is_no_replica() -> None:
    snapshot = a_snapshot(a_spec([]), strangers=[an_announcement("z0", "0:8")])
    assert snapshot.replicas() == ()
