from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from support.builders import a_server, a_spec, peer_of

from swarmctl.blocks import BlockRange, HostName, NodeName, PeerId
from swarmctl.operations.site import Hosted
from swarmctl.operations.status import DYING, NOBODY, snapshot_of
from swarmctl.processes import ProcessSeen
from swarmctl.snapshot import NodeFacts, NodeState, PeerState, Snapshot
from swarmctl.store import Observation, ObservedServer, Progress, Record
from swarmctl.transport.base import KILLED, HostedNode

NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)
EPOCH = NOW.timestamp()
BOOT, A0 = NodeName("boot"), NodeName("a0")
SPEC = a_spec([a_server("a0", "0:8")])


def a_process(pid: int) -> ProcessSeen:
    return ProcessSeen(pid=pid, started=pid, parent=1, group=pid, command="x", cpu_s=0.0, rss_bytes=0)


def a_record(name: str, *, age_s: float = 60.0, **changes: object) -> Record:
    record = Record(
        node=name,
        kind="server",
        peer=peer_of(name),
        port=40000,
        blocks="0:8",
        runner_pid=10,
        runner_started=10,
        child_pid=11,
        child_started=11,
        started_at=(NOW - timedelta(seconds=age_s)).isoformat(),
        addresses=(f"/ip4/192.0.2.1/tcp/40000/p2p/{peer_of(name)}",),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def alive(name: str, *, phase: str | None = "online", age_s: float = 60.0) -> HostedNode:
    """A node whose runner and child live."""
    return HostedNode(
        name=NodeName(name),
        record=a_record(name, age_s=age_s),
        progress=Progress(phase=phase) if phase else None,
        peer=peer_of(name),
        held=True,
        runner_alive=True,
        processes=(a_process(10), a_process(11)),
    )


def dead(name: str, ended: str | None, *, asked: bool = False) -> HostedNode:
    """A node of which nothing is left but its files."""
    record = a_record(name, ended=ended, asked_to_stop=asked)
    return HostedNode(name=NodeName(name), record=record, progress=Progress(phase="online"), peer=peer_of(name))


def observed(name: str = "a0", **changes: object) -> ObservedServer:
    server = ObservedServer(
        peer=peer_of(name),
        state="ONLINE",
        start_block=0,
        end_block=8,
        throughput=100.0,
        expires_at=EPOCH + 20,
        seen_at=EPOCH - 2,
        cache_tokens_left=4096,
        probed_at=EPOCH - 3,
        probe_ok=True,
        probe_ms=12.0,
    )
    return replace(server, **changes)  # type: ignore[arg-type]


def picture(*nodes: HostedNode, servers: tuple[ObservedServer, ...] = (), age_s: float = 1.0) -> Snapshot:
    """What is read when the bootstrap peer runs and has seen `servers`."""
    seen = Observation(observer="boot", written_at=EPOCH - age_s, servers=servers)
    everything = (replace(alive("boot"), observation=seen), *nodes)
    return snapshot_of(SPEC, {n.name: Hosted(host=HostName("a"), node=n) for n in everything}, NOW)


def the_node(snapshot: Snapshot) -> NodeFacts:
    (node,) = snapshot.nodes
    return node


def test_process_record_and_probe_make_a_node_online() -> None:
    snapshot = picture(alive("a0"), servers=(observed(),))

    node = the_node(snapshot)
    assert node.state is NodeState.ONLINE
    assert (node.peer, node.host, node.process.pid, node.process.port) == (peer_of("a0"), "a", 11, 40000)
    assert node.process.uptime_s == 60.0
    assert node.announcement is not None
    assert (node.announcement.expires_in_s, node.announcement.age_s) == (20.0, 2.0)
    assert (node.announcement.blocks, node.announcement.state) == (BlockRange(0, 8), PeerState.ONLINE)
    assert node.probe is not None
    assert (node.probe.age_s, node.probe.latency_ms) == (3.0, 12.0)
    assert (snapshot.source, snapshot.age_s, snapshot.warnings) == ("boot", 1.0, ())
    assert snapshot.bootstraps[0].addresses == (f"/ip4/192.0.2.1/tcp/40000/p2p/{peer_of('boot')}",)


def test_a_record_in_the_dht_that_has_expired_is_none() -> None:
    snapshot = picture(alive("a0"), servers=(observed(expires_at=EPOCH),))

    assert the_node(snapshot).announcement is None
    assert the_node(snapshot).state is NodeState.STARTING


def test_of_two_records_of_one_peer_the_one_that_lives_longer_is_the_newest() -> None:
    old = observed(start_block=0, end_block=4, expires_at=EPOCH + 5)

    snapshot = picture(alive("a0"), servers=(observed(), old))

    assert the_node(snapshot).state is NodeState.ONLINE


def test_a_process_that_is_gone_while_the_dht_says_online_is_stale_and_says_why_it_ended() -> None:
    node = the_node(picture(dead("a0", KILLED), servers=(observed(),)))

    assert node.state is NodeState.STALE
    assert node.process.ended == KILLED
    assert node.process.phase is None


def test_a_node_whose_record_has_expired_too_has_crashed() -> None:
    assert the_node(picture(dead("a0", KILLED))).state is NodeState.CRASHED
    assert the_node(picture(dead("a0", "stopped", asked=True))).state is NodeState.STOPPED


def test_a_runner_that_could_not_write_its_end_is_reported_as_gone() -> None:
    node = the_node(picture(dead("a0", None)))

    assert node.state is NodeState.CRASHED
    assert node.process.ended == "its runner is gone: killed, or the host was restarted"


def test_a_node_without_any_files_does_not_run() -> None:
    node = the_node(picture())

    assert node.state is NodeState.STOPPED
    assert node.peer is None


def test_what_a_former_life_announced_does_not_make_a_loading_node_online() -> None:
    for phase in (None, "starting", "loading"):
        assert the_node(picture(alive("a0", phase=phase), servers=(observed(),))).state is NodeState.STARTING


def test_a_probe_from_before_the_start_counts_for_nothing() -> None:
    node = the_node(picture(alive("a0", age_s=2.0), servers=(observed(probed_at=EPOCH - 3),)))

    assert node.probe is None
    assert node.state is NodeState.UNPROBED


def test_a_probe_without_an_answer_has_no_latency() -> None:
    server = observed(probe_ok=False, probe_ms=5000.0, probe_reason="no answer in 5 s")

    node = the_node(picture(alive("a0"), servers=(server,)))

    assert node.state is NodeState.UNRESPONSIVE
    assert node.probe is not None
    assert (node.probe.latency_ms, node.probe.reason) == (None, "no answer in 5 s")


def test_what_the_heartbeat_says_is_kept_beside_the_probe() -> None:
    node = the_node(picture(alive("a0"), servers=(observed(ours=True, graphs="eager", busy_s=2.5),)))

    assert node.probe is not None
    assert (node.probe.ours, node.probe.graphs, node.probe.busy_s) == (True, "eager", 2.5)


def test_only_a_node_that_serves_and_answers_no_heartbeat_counts_as_stock() -> None:
    def stock(server: ObservedServer, *, node: HostedNode | None = None) -> list[str]:
        return [facts.name for facts in picture(node or alive("a0"), servers=(server,)).stock()]

    assert stock(observed(ours=False)) == ["a0"]
    assert stock(observed(ours=True)) == []
    assert stock(observed(ours=None)) == []
    assert stock(observed(ours=False, probe_ok=False)) == []
    assert stock(observed(ours=False), node=dead("a0", KILLED)) == []


def test_a_runner_on_its_way_counts_as_running() -> None:
    on_its_way = HostedNode(name=A0, peer=peer_of("a0"), held=True)

    node = the_node(picture(on_its_way))

    assert node.process.running
    assert node.state is NodeState.STARTING


@pytest.mark.parametrize(("asked", "state"), [(False, NodeState.CRASHED), (True, NodeState.STOPPED)])
def test_a_node_whose_process_is_dead_does_not_serve_while_its_runner_clears_up(asked: bool, state: NodeState) -> None:
    node = alive("a0")
    assert node.record is not None
    dying = replace(
        node, record=replace(node.record, asked_to_stop=asked), child_gone=True, processes=node.processes[:1]
    )

    facts = the_node(picture(dying))
    announced = the_node(picture(dying, servers=(observed(),)))

    assert (facts.process.running, facts.process.pid) == (False, None)
    assert facts.process.ended == DYING
    assert facts.state is state
    assert announced.state is NodeState.STALE


def waiting(*, crashes: int) -> HostedNode:
    """A node whose runner is about to start it again in four seconds."""
    node = alive("a0")
    assert node.record is not None
    record = replace(
        node.record,
        crashes=crashes,
        restarts=crashes - 1,
        last_ended="exited with code 1",
        next_start_at=(NOW + timedelta(seconds=4)).isoformat(),
    )
    return replace(node, record=record, child_gone=True, processes=node.processes[:1])


@pytest.mark.parametrize(("crashes", "state"), [(1, NodeState.CRASHED), (2, NodeState.FLAPPING)])
def test_a_node_that_its_runner_is_about_to_start_says_why_it_ended_and_when_it_starts(
    crashes: int, state: NodeState
) -> None:
    node = waiting(crashes=crashes)

    facts = the_node(picture(node))

    assert facts.state is state
    assert (facts.process.running, facts.process.pid, facts.process.next_start_in_s) == (False, None, 4.0)
    assert facts.process.ended == f"exited with code 1; starts again in 4 s, restart {crashes}"
    assert (node.ended, node.dying, node.settled) == (None, False, False)


def test_a_node_that_comes_up_after_several_crashes_flaps_until_it_is_online() -> None:
    node = alive("a0", phase="loading")
    assert node.record is not None
    again = replace(node, record=replace(node.record, crashes=2, restarts=2, last_ended="exited with code 1"))

    assert the_node(picture(again)).state is NodeState.FLAPPING
    there = replace(again, progress=Progress(phase="online"))
    assert the_node(picture(there, servers=(observed(),))).state is NodeState.ONLINE


def test_a_runner_that_has_given_up_or_is_gone_starts_nothing_whatever_its_record_says() -> None:
    given_up = waiting(crashes=2)
    assert given_up.record is not None
    ended = replace(given_up, record=replace(given_up.record, ended="exited with code 1; given up", next_start_at=None))
    gone = replace(given_up, runner_alive=False, held=False, processes=())

    assert the_node(picture(ended)).state is NodeState.CRASHED
    assert the_node(picture(ended)).process.ended == "exited with code 1; given up"
    assert the_node(picture(gone)).state is NodeState.CRASHED
    assert the_node(picture(gone)).process.ended == "its runner is gone: killed, or the host was restarted"


def test_peers_outside_the_file_are_strangers_and_bootstrap_peers_are_not() -> None:
    stranger = observed(peer=PeerId("QmStranger"))

    snapshot = picture(alive("a0"), servers=(observed(), stranger, observed("boot")))

    assert [announcement.peer for announcement in snapshot.strangers] == ["QmStranger"]


def test_the_freshest_of_several_observations_is_shown() -> None:
    second = replace(SPEC.bootstraps[0], name=NodeName("boot2"))
    spec = replace(SPEC, bootstraps=(*SPEC.bootstraps, second))
    old = Observation(observer="boot", written_at=EPOCH - 5, servers=())
    new = Observation(observer="boot2", written_at=EPOCH - 1, servers=(observed(),))
    nodes = (replace(alive("boot"), observation=old), replace(alive("boot2"), observation=new), alive("a0"))

    snapshot = snapshot_of(spec, {n.name: Hosted(host=HostName("a"), node=n) for n in nodes}, NOW)

    assert (snapshot.source, snapshot.age_s) == ("boot2", 1.0)
    assert the_node(snapshot).state is NodeState.ONLINE


def test_an_old_observation_is_shown_with_a_warning_and_its_age() -> None:
    snapshot = picture(alive("a0"), age_s=42.0)

    assert snapshot.age_s == 42.0
    assert snapshot.warnings == ("what is shown of the DHT is 42 s old: bootstrap peer boot has stopped observing",)


def test_what_nobody_has_looked_at_lately_is_unobserved_and_not_starting() -> None:
    old = picture(alive("a0"), age_s=42.0)
    nobody = snapshot_of(SPEC, {A0: Hosted(host=HostName("a"), node=alive("a0"))}, NOW)
    crashed = picture(dead("a0", "exited with code 1"), age_s=42.0)

    assert [the_node(seen).state for seen in (old, nobody)] == [NodeState.UNOBSERVED] * 2
    assert the_node(crashed).state is NodeState.CRASHED


def test_without_a_bootstrap_peer_a_warning_says_that_only_processes_are_shown() -> None:
    nobody = snapshot_of(SPEC, {A0: Hosted(host=HostName("a"), node=alive("a0"))}, NOW)

    assert nobody.source == NOBODY
    assert nobody.warnings == ("no bootstrap peer runs: only processes are shown, nothing of the DHT",)


def test_a_node_that_runs_and_is_not_in_the_file_is_named() -> None:
    snapshot = picture(alive("a0"), alive("old"), servers=(observed(),))

    assert snapshot.warnings == ("node old runs on a and is not in the file; `swarmctl down old` stops it",)
