"""What was started from a file is what the file wants: planning again replaces nothing, whatever the file says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import a_snapshot, a_spec, peer_of
from support.clock import FakeClock

from swarmctl.addresses import parse_multiaddr
from swarmctl.blocks import BlockRange, HostName, NodeName
from swarmctl.operations.launching import declared, launch_for
from swarmctl.operations.site import Site
from swarmctl.plan import Running, diff, server_differences
from swarmctl.spec import BootstrapSpec, Endpoint, HostSpec, NodeSpec, ServerSettings, SwarmSpec
from swarmctl.store import Launch, Layout, launch_from
from swarmctl.transport.fake import FakeTransport

_ports = st.none() | st.integers(1, 65535)
_announced = st.none() | st.builds(
    Endpoint, ip=st.sampled_from(["203.0.113.5", "10.0.0.9"]), port=st.integers(1, 65535)
)
_settings = st.builds(
    ServerSettings,
    torch_dtype=st.sampled_from(["auto", "float16"]),
    quant=st.sampled_from(["none", "nf4"]),
    device=st.sampled_from([None, "cpu", "cuda"]),
    update_period_s=st.floats(0.001, 1e6),
    throughput=st.none() | st.floats(1e-6, 1e9),
    restarts=st.integers(0, 9),
)


@st.composite
def _specs(draw: st.DrawFn) -> SwarmSpec:
    addresses = draw(
        st.lists(
            st.sampled_from(["127.0.0.1", "127.0.0.2", "localhost", "192.0.2.11", "gpu-a", "gpu-b.lan", "10.1.2.3"]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    names = [HostName(f"h{index}") for index in range(len(addresses))]
    hosts = [
        HostSpec(name=name, address=address, ssh=draw(st.sampled_from([None, f"ops@{address}"])), gpus=(0, 1))
        for name, address in zip(names, addresses, strict=True)
    ]
    nodes = [
        NodeSpec(
            name=NodeName(f"n{index}"),
            host=draw(st.sampled_from(names)),
            blocks=BlockRange(0, draw(st.integers(1, 8))),
            gpu=draw(st.none() | st.integers(0, 1)),
            port=draw(_ports),
            announce=draw(_announced),
            settings=draw(_settings),
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    bootstraps = tuple(
        BootstrapSpec(
            name=NodeName(f"bootstrap-{index}"),
            host=draw(st.sampled_from(names)),
            port=draw(_ports),
            announce=draw(_announced),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    return replace(a_spec(nodes, hosts=hosts), bootstraps=bootstraps)


def started(spec: SwarmSpec) -> dict[NodeName, Running]:
    """Everything of the file, as it runs after `up`; each launch as it is read back from its host."""
    clock, layout = FakeClock(), Layout(state=Path("/state"), run=Path("/run/s"), swarm=spec.name)
    site = Site(
        spec=spec,
        layout=layout,
        transports={host: FakeTransport(layout, clock) for host in spec.hosts},
        clock=clock,
        python="python",
    )
    peers = {name: peer_of(name) for name in declared(site)}
    found: dict[NodeName, Running] = {}
    joinable: list[str] = []
    for index, (name, node) in enumerate(declared(site).items()):
        launch = launch_for(site, name, peers=peers, port=node.port or 40000 + index, initial_peers=joinable)
        if isinstance(node, BootstrapSpec):
            joinable.append(launch.address)
        found[name] = Running(host=node.host, launch=launch_from(json.loads(json.dumps(asdict(launch)))))
    return found


def launch_of(running: Running) -> Launch:
    assert running.launch is not None
    return running.launch


@settings(max_examples=60, deadline=None)
@given(_specs())
def test_what_was_just_started_is_never_replaced(spec: SwarmSpec) -> None:
    running = started(spec)

    assert [action.reasons for action in diff(spec, a_snapshot(spec), running).changes] == []
    for node in spec.nodes.values():
        assert list(server_differences(spec, node, running[node.name])) == []


@settings(max_examples=60, deadline=None)
@given(_specs())
def test_everybody_is_told_an_address_that_can_be_parsed_and_that_is_the_files(spec: SwarmSpec) -> None:
    running = started(spec)

    for node in (*spec.bootstraps, *spec.nodes.values()):
        told, launch = parse_multiaddr(launch_of(running[node.name]).address), launch_of(running[node.name])
        expected = node.announce or Endpoint(ip=spec.hosts[node.host].address, port=launch.port)
        assert (told.host, told.port, told.peer) == (expected.ip, expected.port, launch.peer)
        assert launch.listen_ip == "0.0.0.0" or launch.listen_ip.startswith("127.")


def test_a_host_that_gets_a_name_in_place_of_its_address_is_replaced_once() -> None:
    before = a_spec(hosts=[HostSpec(name=HostName("a"), ssh="ops@a", address="192.0.2.1")])
    after = replace(
        before, hosts={**before.hosts, HostName("a"): replace(before.hosts[HostName("a")], address="gpu-a")}
    )

    first = diff(after, a_snapshot(after), started(before))
    again = diff(after, a_snapshot(after), started(after))

    assert {action.node for action in first.changes} >= {"boot", "a0", "a1"}
    assert {action.reasons[0] for action in first.changes if action.node in ("boot", "a0")} == {
        "address: 192.0.2.1 → gpu-a"
    }
    assert again.changes == ()


def test_a_node_that_listens_on_the_loopback_is_replaced_when_its_host_gets_an_address() -> None:
    announce = Endpoint(ip="203.0.113.5", port=5000)
    node = NodeSpec(name=NodeName("a0"), host=HostName("a"), blocks=BlockRange(0, 8), port=4000, announce=announce)
    before = a_spec([node], hosts=[HostSpec(name=HostName("a"))])
    after = a_spec([node], hosts=[HostSpec(name=HostName("a"), address="192.0.2.10")])

    (reason, *_) = next(a for a in diff(after, a_snapshot(after), started(before)).changes if a.node == "a0").reasons

    assert reason == "listens on: 127.0.0.1 → 0.0.0.0"
