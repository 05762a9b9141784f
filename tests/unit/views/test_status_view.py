from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from support.builders import a_host, a_server, a_snapshot, a_spec, an_announcement, probed

from swarmctl.coverage import analyse, holders_of
from swarmctl.snapshot import NodeState, Snapshot
from swarmctl.spec import Domain, SwarmSpec
from swarmctl_cli.views import status, symbols
from swarmctl_cli.views.verdict import Health, judge


def a_view(spec: SwarmSpec, snapshot: Snapshot) -> status.StatusView:
    report = analyse(spec, holders_of(snapshot))
    return status.StatusView(snapshot=snapshot, report=report, verdict=judge(snapshot, report))


def seen(spec: SwarmSpec, states: Mapping[str, NodeState] | None = None) -> status.StatusView:
    return a_view(spec, a_snapshot(spec, states=states))


def screen_of(view: status.StatusView) -> str:
    console = Console(file=StringIO(), width=120, color_system=None)
    console.print(status.render(view, 120, symbols.UNICODE))
    return console.file.getvalue()


def demo() -> SwarmSpec:
    nodes = [
        a_server("left-a", "0:15", host="here"),
        a_server("left-b1", "0:8", host="here"),
        a_server("left-b2", "8:15", host="here"),
        a_server("right-a", "15:30", host="here"),
        a_server("right-b", "15:30", host="here"),
    ]
    return a_spec(nodes, num_blocks=30, minimum=2, by=Domain.GPU)


def beluga() -> SwarmSpec:
    hosts = [a_host(name, gpus=(0, 1)) for name in "abcde"]
    spans = {"a0": "0:16", "a1": "16:32", "b0": "32:48", "b1": "48:64", "c0": "64:80", "c1": "0:16"}
    spans |= {"d0": "16:32", "d1": "32:48", "e0": "48:64", "e1": "64:80"}
    nodes = [a_server(name, span, gpu=int(name[1])) for name, span in spans.items()]
    return a_spec(nodes, num_blocks=80, minimum=2, by=Domain.HOST, hosts=hosts)


def test_a_healthy_swarm_is_one_screen_with_the_verdict_first(golden):
    golden("status-healthy", status.render(seen(demo()), 120, symbols.UNICODE))


def test_a_lost_node_makes_the_swarm_degraded_and_the_help_starts_it(golden):
    view = seen(demo(), {"left-a": NodeState.CRASHED})
    golden("status-degraded", status.render(view, 120, symbols.UNICODE))
    assert view.verdict.health is Health.DEGRADED
    assert view.verdict.hints[0] == "swarmctl up --only left-a"


def test_blocks_without_a_server_mean_down_and_are_named(golden):
    view = seen(demo(), {"left-a": NodeState.STALE, "left-b2": NodeState.STOPPED, "right-a": NodeState.JOINING})
    golden("status-down", status.render(view, 120, symbols.UNICODE))
    assert view.verdict.sentence.startswith("blocks 8:15 have no server")


def test_without_line_drawing_characters_the_screen_is_pure_ascii(golden):
    view = seen(demo(), {"right-b": NodeState.UNRESPONSIVE})
    screen = status.render(view, 120, symbols.ASCII)
    golden("status-ascii", screen)


def test_eighty_blocks_are_wrapped_under_a_ruler_and_absent_lanes_left_out(golden):
    view = seen(beluga(), {"c0": NodeState.CRASHED})
    golden("status-wrapped", status.render(view, 60, symbols.UNICODE))


def test_a_strangers_own_word_is_kept_apart_from_ours_in_the_document():
    spec = a_spec([a_server("a0", "0:8")])
    snapshot = a_snapshot(spec, strangers=[an_announcement("stranger", "0:8")])
    (one,) = status.document(a_view(spec, snapshot))["strangers"]
    assert (one["state"], one["record"]["state"], one["record"]["blocks"]) == ("UNMANAGED", "ONLINE", "0:8")


def test_strangers_and_warnings_are_shown_apart(golden):
    spec = demo()
    snapshot = replace(
        a_snapshot(spec, strangers=[an_announcement("stranger", "0:8")]),
        warnings=("what is shown of the DHT is 14 s old: bootstrap peer boot does not run",),
    )
    golden("status-strangers", status.render(a_view(spec, snapshot), 120, symbols.UNICODE))


def with_probes(spec: SwarmSpec, **changes: dict[str, object]) -> Snapshot:
    """All nodes serve; the probes of some found something else."""
    snapshot = a_snapshot(spec)
    nodes = (probed(node, **changes.get(node.name.replace("-", "_"), {})) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def test_stock_servers_are_named_in_one_line_with_the_command_that_replaces_them(golden):
    spec = demo()
    snapshot = with_probes(spec, left_a={"ours": False, "graphs": None}, right_b={"ours": False, "graphs": None})
    golden("status-stock", status.render(a_view(spec, snapshot), 120, symbols.UNICODE))
    one = with_probes(spec, left_a={"ours": False})
    assert "left-a: a stock server, on CUDA" in screen_of(a_view(spec, one))


def test_a_server_that_is_too_busy_for_the_probes_token_is_busy_and_counts():
    spec = demo()
    view = a_view(spec, with_probes(spec, left_a={"latency_ms": None, "busy_s": 12.0}))
    assert "busy, 1.0 s" in screen_of(view)
    assert view.verdict.health is Health.HEALTHY


def test_the_document_says_of_each_node_whether_it_is_ours_and_what_its_graphs_do():
    spec = demo()
    nodes = status.document(a_view(spec, with_probes(spec, left_a={"ours": False, "graphs": None})))["nodes"]
    assert [node["probe"]["ours"] for node in nodes] == [False, True, True, True, True]
    assert [node["probe"]["graphs"] for node in nodes] == [None, *["by-shape"] * 4]


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (NodeState.STOPPED, "swarmctl -c x.yaml up --only left-a"),
        (NodeState.UNRESPONSIVE, "swarmctl -c x.yaml restart left-a"),
        (NodeState.MISPLACED, "swarmctl -c x.yaml restart left-a"),
        (NodeState.JOINING, "swarmctl -c x.yaml status --watch"),
    ],
)
def test_the_hint_fits_the_state_and_carries_the_users_own_file(state, hint):
    spec = demo()
    snapshot = a_snapshot(spec, states={"left-a": state})
    verdict = judge(snapshot, analyse(spec, holders_of(snapshot)), command="swarmctl -c x.yaml")
    assert verdict.hints[0] == hint


def test_a_swarm_that_was_never_started_is_told_to_be_started_as_a_whole():
    spec = demo()
    snapshot = a_snapshot(spec, states=dict.fromkeys(spec.nodes, NodeState.STOPPED))
    verdict = judge(snapshot, analyse(spec, holders_of(snapshot)))
    assert verdict.health is Health.DOWN
    assert verdict.hints == ("swarmctl up",)


def test_a_file_that_is_too_thin_by_itself_leads_to_the_repair():
    spec = replace(demo(), redundancy=replace(demo().redundancy, minimum=3))
    snapshot = a_snapshot(spec)
    verdict = judge(snapshot, analyse(spec, holders_of(snapshot)))
    assert verdict.health is Health.DEGRADED
    assert verdict.hints == ("swarmctl verify redundancy --source config",)


def test_a_watch_lists_the_changes_since_it_began():
    first = status.reduce(None, seen(demo()))
    second = status.reduce(first, seen(demo(), {"left-a": NodeState.STALE}))
    third = status.reduce(second, seen(demo(), {"left-a": NodeState.CRASHED}))
    assert first.changes == ()
    assert third.changes == (
        ("12:00:00", "left-a", "ONLINE", "STALE"),
        ("12:00:00", "left-a", "STALE", "CRASHED"),
    )


def test_the_document_names_the_servers_of_each_block_and_keeps_the_three_facts_apart():
    spec = demo()
    data = status.document(seen(spec, {"left-a": NodeState.STALE}))
    assert data["verdict"] == "DEGRADED"
    assert data["blocks"][0] == {"block": 0, "replicas": 1, "servers": ["left-b1"]}
    left = data["nodes"][0]
    assert (left["state"], left["process"]["running"], left["record"]["state"]) == ("STALE", False, "ONLINE")
    assert data["observed_age_s"] == 1.0
