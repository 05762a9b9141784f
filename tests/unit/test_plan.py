from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from support.builders import CRASHED, NEVER_STARTED, a_server, a_snapshot, a_spec, peer_of

from swarmctl.addresses import multiaddr
from swarmctl.blocks import HostName, NodeName
from swarmctl.plan import Action, ActionKind, Plan, Running, diff, listen_ip
from swarmctl.snapshot import NodeState, ProcessFact, Snapshot
from swarmctl.spec import BootstrapSpec, Endpoint, HostSpec, NodeSpec, SwarmSpec
from swarmctl.store import Launch

BOOT = NodeName("boot")


def a_launch(spec: SwarmSpec, name: str, **changes: object) -> Launch:
    """What the runner of a declared node was told, if it was started from this very file."""
    node = spec.nodes.get(NodeName(name)) or next(peer for peer in spec.bootstraps if peer.name == name)
    host = spec.hosts[node.host]
    boot = spec.bootstraps[0]
    launch = Launch(
        kind="server" if isinstance(node, NodeSpec) else "bootstrap",
        swarm=spec.name,
        node=name,
        peer=peer_of(name),
        port=node.port or 40000,
        listen_ip=listen_ip(host),
        announce_ip=host.address,
        initial_peers=(multiaddr(spec.hosts[boot.host].address, boot.port or 40000, peer_of("boot")),),
        identity="",
        sockets="",
        progress="",
        observed="",
        model_source=spec.model.source,
        dht_prefix=spec.model.dht_prefix,
        num_blocks=spec.model.num_blocks,
        hidden_size=spec.model.hidden_size,
        blocks=str(node.blocks) if isinstance(node, NodeSpec) else None,
        settings=asdict(node.settings) if isinstance(node, NodeSpec) else None,
    )
    return replace(launch, **changes)  # type: ignore[arg-type]


def running(spec: SwarmSpec, **changes: Running) -> dict[NodeName, Running]:
    """Everything in the file runs as the file says, but for `changes`."""
    hosts = {**{peer.name: peer.host for peer in spec.bootstraps}, **{n.name: n.host for n in spec.nodes.values()}}
    usual = {name: Running(host=host, launch=a_launch(spec, name)) for name, host in hosts.items()}
    return {**usual, **{NodeName(name): value for name, value in changes.items()}}


def with_bootstrap(snapshot: Snapshot, process: ProcessFact) -> Snapshot:
    return replace(snapshot, bootstraps=tuple(replace(peer, process=process) for peer in snapshot.bootstraps))


def kinds(plan: Plan) -> dict[str, ActionKind]:
    return {action.node: action.kind for action in plan.actions}


def the(plan: Plan, name: str) -> Action:
    (action,) = (action for action in plan.actions if action.node == name)
    return action


def test_a_swarm_that_is_as_the_file_says_needs_nothing() -> None:
    spec = a_spec()

    plan = diff(spec, a_snapshot(spec), running(spec))

    assert set(kinds(plan).values()) == {ActionKind.NOTHING}
    assert plan.changes == ()
    assert plan.awaited == ()


def test_everything_is_started_when_nothing_runs_and_bootstrap_peers_come_first() -> None:
    spec = a_spec([a_server("a0"), a_server("b0")])
    nothing = replace(
        a_snapshot(spec),
        nodes=tuple(replace(n, process=NEVER_STARTED, announcement=None) for n in a_snapshot(spec).nodes),
    )

    plan = diff(spec, with_bootstrap(nothing, NEVER_STARTED), {})

    assert [(action.node, action.kind) for action in plan.actions] == [
        (BOOT, ActionKind.START_BOOTSTRAP),
        ("a0", ActionKind.START_NODE),
        ("b0", ActionKind.START_NODE),
    ]
    assert {action.reasons for action in plan.actions} == {("it does not run",)}
    assert plan.awaited == plan.changes == plan.actions


@pytest.mark.parametrize("state", [NodeState.CRASHED, NodeState.STALE])
def test_a_node_that_ended_unasked_is_started_and_the_reason_says_how_it_ended(state: NodeState) -> None:
    spec = a_spec()
    up = running(spec)
    del up[NodeName("a0")]

    action = the(diff(spec, a_snapshot(spec, states={"a0": state}), up), "a0")

    assert action.kind is ActionKind.START_NODE
    assert action.reasons == (f"it is {state.value}: SIGKILL",)


def test_a_node_that_was_stopped_is_started() -> None:
    spec = a_spec()

    action = the(diff(spec, a_snapshot(spec, states={"a0": NodeState.STOPPED}), {}), "a0")

    assert (action.kind, action.reasons) == (ActionKind.START_NODE, ("it does not run",))


@pytest.mark.parametrize(
    "state",
    [NodeState.STARTING, NodeState.JOINING, NodeState.UNPROBED, NodeState.UNRESPONSIVE, NodeState.MISPLACED],
)
def test_a_node_that_runs_as_told_and_is_not_ready_is_waited_for(state: NodeState) -> None:
    spec = a_spec()

    plan = diff(spec, a_snapshot(spec, states={"a0": state}), running(spec))

    assert the(plan, "a0") == Action(
        kind=ActionKind.AWAIT, node=NodeName("a0"), host=HostName("a"), reasons=(f"it runs and is {state.value}",)
    )
    assert plan.changes == ()
    assert [action.node for action in plan.awaited] == ["a0"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"blocks": "0:3"}, "blocks: 0:3 → 0:4"),
        ({"gpu": 1}, "gpu: 1 → None"),
        ({"model_source": "/models/old"}, "model: /models/old → /models/tiny"),
        ({"dht_prefix": "old"}, "dht_prefix: old → tiny"),
        ({"revision": "v1"}, "revision: v1 → None"),
        ({"announce_ip": "192.0.2.9"}, "address: 192.0.2.9 → a.test"),
        ({"announce_port": 5000}, "announced port: 5000 → None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_node_that_was_told_something_else_is_replaced_with_was_and_is(changes: dict[str, str], reason: str) -> None:
    spec = a_spec()
    told = Running(host=HostName("a"), launch=a_launch(spec, "a0", **changes))

    plan = diff(spec, a_snapshot(spec), running(spec, a0=told))

    assert [(action.node, action.kind, action.reasons) for action in plan.changes] == [
        ("a0", ActionKind.REPLACE_NODE, (reason,))
    ]


def test_a_node_that_announces_what_the_file_says_stays_and_one_that_does_not_is_replaced() -> None:
    plain = a_spec()
    node = replace(plain.nodes[NodeName("a0")], announce=Endpoint(ip="203.0.113.5", port=5000))
    spec = replace(plain, nodes={**plain.nodes, node.name: node})
    right = a_launch(spec, "a0", announce_ip="203.0.113.5", announce_port=5000)
    told = {True: right, False: a_launch(spec, "a0")}

    plans = {
        as_said: diff(spec, a_snapshot(spec), running(spec, a0=Running(host=HostName("a"), launch=launch)))
        for as_said, launch in told.items()
    }

    assert plans[True].changes == ()
    (action,) = plans[False].changes
    assert action.reasons == ("address: a.test → 203.0.113.5", "announced port: None → 5000")


def test_a_changed_setting_is_named() -> None:
    spec = a_spec()
    settings = {**asdict(spec.nodes[NodeName("a0")].settings), "quant": "nf4"}
    told = Running(host=HostName("a"), launch=a_launch(spec, "a0", settings=settings))

    action = the(diff(spec, a_snapshot(spec), running(spec, a0=told)), "a0")

    assert (action.kind, action.reasons) == (ActionKind.REPLACE_NODE, ("quant: nf4 → none",))


def test_a_port_of_the_systems_choice_is_no_difference_and_one_of_the_file_is() -> None:
    spec = a_spec()
    fixed = replace(spec, nodes={**spec.nodes, NodeName("a0"): replace(spec.nodes[NodeName("a0")], port=40001)})

    assert diff(spec, a_snapshot(spec), running(spec)).changes == ()
    told = running(spec)
    assert the(diff(fixed, a_snapshot(fixed), told), "a0").reasons == ("port: 40000 → 40001",)


def test_a_node_that_runs_on_another_host_is_replaced() -> None:
    spec = a_spec()
    told = Running(host=HostName("b"), launch=a_launch(spec, "a0"))

    assert "host: b → a" in the(diff(spec, a_snapshot(spec), running(spec, a0=told)), "a0").reasons


def test_a_node_whose_runner_is_gone_or_unreadable_is_replaced() -> None:
    spec = a_spec()
    gone = Running(host=HostName("a"), launch=a_launch(spec, "a0"), orphaned=True)
    unreadable = Running(host=HostName("a"), launch=None)

    plan = diff(spec, a_snapshot(spec), running(spec, a0=gone, a1=unreadable))

    assert the(plan, "a0").reasons == ("its runner is gone, and what that started is still there",)
    assert the(plan, "a1").reasons == ("what it was started with cannot be read",)


def test_what_runs_and_is_not_in_the_file_is_stopped_last() -> None:
    spec = a_spec()
    old = Running(host=HostName("b"), launch=None)

    plan = diff(spec, a_snapshot(spec), running(spec, old=old))

    assert plan.actions[-1] == Action(
        kind=ActionKind.STOP_UNDECLARED,
        node=NodeName("old"),
        host=HostName("b"),
        reasons=("it is not in the file",),
    )
    assert plan.awaited == ()


def test_servers_follow_a_bootstrap_peer_that_the_file_moves_to_another_port() -> None:
    spec = a_spec([a_server("a0")])
    moved = replace(spec, bootstraps=(replace(spec.bootstraps[0], port=31999),))

    plan = diff(moved, a_snapshot(moved), running(spec))

    assert the(plan, "boot").reasons == ("port: 31337 → 31999",)
    assert the(plan, "boot").kind is ActionKind.REPLACE_BOOTSTRAP
    assert the(plan, "a0").kind is ActionKind.REPLACE_NODE
    assert the(plan, "a0").reasons == ("it joined through bootstrap peers that are not those of now",)


def test_servers_stay_while_one_of_the_bootstrap_peers_that_they_know_stays() -> None:
    spec = a_spec([a_server("a0")])
    second = BootstrapSpec(name=NodeName("boot2"), host=HostName("a"))
    more = replace(spec, bootstraps=(*spec.bootstraps, second))

    plan = diff(more, with_second_stopped(a_snapshot(more)), running(spec))

    assert kinds(plan) == {
        "boot": ActionKind.NOTHING,
        "boot2": ActionKind.START_BOOTSTRAP,
        "a0": ActionKind.NOTHING,
    }


def test_servers_stay_while_the_only_bootstrap_peer_that_they_know_is_down() -> None:
    spec = a_spec([a_server("a0")])
    second = BootstrapSpec(name=NodeName("boot2"), host=HostName("a"), port=31338)
    more = replace(spec, bootstraps=(*spec.bootstraps, second))
    up = running(more)
    del up[BOOT]
    snapshot = a_snapshot(more)
    first = replace(snapshot.bootstraps[0], process=CRASHED)

    plan = diff(more, replace(snapshot, bootstraps=(first, *snapshot.bootstraps[1:])), up)

    assert kinds(plan) == {
        "boot": ActionKind.START_BOOTSTRAP,
        "boot2": ActionKind.NOTHING,
        "a0": ActionKind.NOTHING,
    }


def test_a_bootstrap_peer_that_is_to_announce_something_else_is_replaced_and_servers_follow() -> None:
    spec = a_spec([a_server("a0")])
    announce = Endpoint(ip="203.0.113.5", port=5000)
    forwarded = replace(spec, bootstraps=(replace(spec.bootstraps[0], announce=announce),))

    plan = diff(forwarded, a_snapshot(forwarded), running(spec))

    assert the(plan, "boot").reasons == ("address: a.test → 203.0.113.5", "announced port: None → 5000")
    assert the(plan, "boot").kind is ActionKind.REPLACE_BOOTSTRAP
    assert the(plan, "a0").reasons == ("it joined through bootstrap peers that are not those of now",)


def with_second_stopped(snapshot: Snapshot) -> Snapshot:
    first, second = snapshot.bootstraps
    return replace(snapshot, bootstraps=(first, replace(second, process=NEVER_STARTED)))


def test_a_bootstrap_peer_that_does_not_listen_yet_is_waited_for_and_one_that_died_is_started() -> None:
    spec = a_spec()
    starting = with_bootstrap(a_snapshot(spec), ProcessFact(running=True, phase="starting"))

    assert the(diff(spec, starting, running(spec)), "boot").kind is ActionKind.AWAIT
    died = the(diff(spec, with_bootstrap(a_snapshot(spec), CRASHED), running(spec)), "boot")
    assert (died.kind, died.reasons) == (ActionKind.START_BOOTSTRAP, ("SIGKILL",))


def test_a_selection_keeps_the_bootstrap_peers_and_leaves_the_rest_alone() -> None:
    spec = a_spec()
    states = dict.fromkeys(("a0", "b0"), NodeState.STOPPED)
    plan = diff(spec, a_snapshot(spec, states=states), running(spec, old=Running(host=HostName("a"), launch=None)))

    chosen = plan.only((NodeName("b0"),), {BOOT})

    assert [action.node for action in chosen.actions] == ["boot", "b0"]
    assert plan.only((), {BOOT}) == plan


def test_a_swarm_on_the_loopback_listens_there_alone() -> None:
    assert listen_ip(HostSpec(name=HostName("here"))) == "127.0.0.1"
    assert listen_ip(HostSpec(name=HostName("here"), address="127.0.0.2")) == "127.0.0.2"
    assert listen_ip(HostSpec(name=HostName("here"), address="localhost")) == "127.0.0.1"
    assert listen_ip(HostSpec(name=HostName("a"), address="192.0.2.1")) == "0.0.0.0"
    assert listen_ip(HostSpec(name=HostName("a"), address="gpu-a.lan")) == "0.0.0.0"
