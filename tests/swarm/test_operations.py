"""What an operator does to a swarm that runs, and what the commands say of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from petals.client.routing.sequence_manager import SequenceManagerState
from support.connected import ConnectedClient
from support.eventually import eventually
from support.history import check
from support.reaping import left_of_swarm, ports_of, reap
from support.swarm import NUM_BLOCKS, ON_LLAMA, LiveSwarm

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.errors import ExitCode
from swarmctl.events import Event, RouteChosen
from swarmctl.operations.down import down
from swarmctl.operations.launching import choose_ports, ensure_identities, launch_for
from swarmctl.operations.opening import open_site
from swarmctl.upstream.router import Router

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

PROMPT = "The swarm keeps its blocks on many machines"
STRANGER = NodeName("stranger")
# A record lives two announce periods and the clock difference that the DHT tolerates.
RECORD_LIFE_S = 2 * 5 + 3


def status_of(swarm: LiveSwarm) -> tuple[int, dict]:
    """The exit code of `status`, and its data with the nodes by name."""
    done = swarm.command("status", "-o", "json")
    return done.code, {**done.data, "nodes": {node["node"]: node for node in done.data["nodes"]}}


@ON_LLAMA
def test_up_of_a_swarm_that_is_up_does_nothing(client: ConnectedClient):
    client.ready()
    before = client.swarm.snapshot()
    told: list[Event] = []

    result = client.swarm.up(sink=told.append)
    again = client.swarm.command("up")

    assert not result.changed
    assert told == []
    assert again.code == ExitCode.OK
    assert "nothing to do" in again.out + again.err
    assert [node.process.pid for node in client.swarm.snapshot().nodes] == [node.process.pid for node in before.nodes]


@ON_LLAMA
def test_status_tells_a_killed_node_from_the_record_that_outlives_it(client: ConnectedClient):
    client.ready()
    swarm = client.swarm
    code, seen = status_of(swarm)
    assert (code, seen["verdict"]) == (ExitCode.OK, "HEALTHY")

    killed = swarm.command("kill", "c")

    assert killed.code == ExitCode.OK, killed.err
    code, seen = status_of(swarm)
    node = seen["nodes"]["c"]
    assert (code, seen["verdict"], node["state"]) == (ExitCode.CHECK_NEGATIVE, "DEGRADED", "STALE")
    assert (node["process"]["running"], node["record"]["state"]) == (False, "ONLINE")
    assert [block["replicas"] for block in seen["blocks"]] == [2, 2, 2, 1, 1, 1]
    thin = swarm.command("verify", "redundancy", "-o", "json")
    assert thin.code == ExitCode.CHECK_NEGATIVE
    assert thin.data["thin"] == [{"blocks": "3:6", "replicas": 1, "wanted": 2}]
    assert thin.data["sole"]["nodes"] == {"d": ["3:6"]}
    assert "blocks 3:6" in swarm.command("verify", "redundancy").out

    def crashed() -> None:
        code, seen = status_of(swarm)
        assert (code, seen["nodes"]["c"]["state"]) == (ExitCode.CHECK_NEGATIVE, "CRASHED")
        assert seen["nodes"]["c"]["record"] is None

    eventually(crashed, within_s=RECORD_LIFE_S + 5)
    assert swarm.command("up").code == ExitCode.OK
    code, seen = status_of(swarm)
    assert (code, seen["verdict"], seen["nodes"]["c"]["state"]) == (ExitCode.OK, "HEALTHY", "ONLINE")
    assert swarm.command("verify", "redundancy").code == ExitCode.OK


@contextmanager
def a_stranger(swarm: LiveSwarm) -> Iterator[PeerId]:
    """A real server of all blocks that has joined the swarm through its bootstrap peer, and is in nobody's file."""
    spec = swarm.site.spec
    host = next(iter(spec.hosts))
    node = replace(next(iter(spec.nodes.values())), name=STRANGER, blocks=BlockRange(0, NUM_BLOCKS))
    theirs = replace(spec, name="theirs", nodes={STRANGER: node}, bootstraps=())
    site = open_site(theirs, swarm.folder / "theirs", swarm.folder / "run-theirs", python=sys.executable)
    addresses = tuple(at for peer in swarm.snapshot().bootstraps for at in peer.addresses)
    try:
        peers = ensure_identities(site)
        port = choose_ports(site, [STRANGER], {})[STRANGER]
        launch = launch_for(site, STRANGER, peers=peers, port=port, initial_peers=addresses)
        site.transport(host).start_runner(launch)
        yield peers[STRANGER]
        down(site, sink=lambda _event: None)
        assert not left_of_swarm(site.layout, ports_of(site.layout).values())
    finally:
        reap(site.layout)


@ON_LLAMA
def test_stranger_is_shown_and_counts_for_nothing_and_gets_no_session(client: ConnectedClient):
    client.ready()
    swarm, ours = client.swarm, client.opened.router

    with a_stranger(swarm) as peer:

        def announced() -> None:
            strangers = {one.peer: one.state.value for one in swarm.snapshot().strangers}
            assert strangers == {peer: "ONLINE"}

        eventually(announced, within_s=100)
        open_to_all = Router(
            ours.config, ours.block_uids, dht=ours.dht, state=SequenceManagerState(p2p=ours.state.p2p), roster=None
        )
        try:
            tempting = open_to_all.route(BlockRange(0, NUM_BLOCKS), avoid=frozenset(), cache_tokens=0)
        finally:
            open_to_all.shutdown()
        ours.refresh(timeout_s=5)
        history = client.generate(PROMPT)
        code, seen = status_of(swarm)
        table = swarm.command("status")
        three = swarm.command("verify", "redundancy", "--min", "3", "-o", "json")

    assert [hop for hop, _ in tempting.hops] == [peer], "a client that trusts everybody would take it"
    assert peer not in {record.peer for record in ours.records()}
    assert all(hop.node in swarm.nodes for hop in history.of(RouteChosen)[0].route)
    assert history.ids == client.locally(PROMPT)
    check(history, num_blocks=NUM_BLOCKS)
    assert (code, seen["verdict"]) == (ExitCode.OK, "HEALTHY")
    assert [(one["peer"], one["state"]) for one in seen["strangers"]] == [(peer, "UNMANAGED")]
    assert "UNMANAGED" in table.out
    assert [block["replicas"] for block in seen["blocks"]] == [2] * NUM_BLOCKS
    assert three.code == ExitCode.CHECK_NEGATIVE
    assert three.data["thin"] == [{"blocks": f"0:{NUM_BLOCKS}", "replicas": 2, "wanted": 3}]
