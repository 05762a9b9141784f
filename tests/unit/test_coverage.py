from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from support.builders import a_host, a_server, a_snapshot, a_spec, an_announcement, names
from support.strategies import HOSTS, specs

from swarmctl.blocks import BlockRange, HostName, NodeName, ranges_of
from swarmctl.coverage import (
    CoverageReport,
    Holder,
    Piece,
    Repair,
    Shortfall,
    Verdict,
    analyse,
    assess,
    holders_declared,
    holders_of,
)
from swarmctl.snapshot import NodeState
from swarmctl.spec import Domain, NodeSpec, SwarmSpec


def report_of(spec: SwarmSpec) -> CoverageReport:
    return analyse(spec, holders_declared(spec))


def served(spec: SwarmSpec, dead: frozenset[NodeName] = frozenset()) -> set[int]:
    return {block for node in spec.nodes.values() if node.name not in dead for block in node.blocks}


def in_domains(spec: SwarmSpec, domains: tuple[str, ...], by: Domain) -> frozenset[NodeName]:
    return frozenset(node for node in spec.nodes if spec.domain_of(node, by) in domains)


# --- what is there ----------------------------------------------------------------------------------------------


def test_two_servers_on_one_host_are_one_replica_by_host_and_two_by_gpu() -> None:
    spec = a_spec([a_server("a0", "0:4", gpu=0), a_server("a1", "0:4", gpu=1)], num_blocks=4, minimum=2)
    by_host, by_gpu = report_of(spec), analyse(spec, holders_declared(spec), by=Domain.GPU)
    assert (by_host.replicas, by_host.servers, by_host.verdict) == ((1,) * 4, (2,) * 4, Verdict.THIN)
    assert (by_gpu.replicas, by_gpu.servers, by_gpu.verdict) == ((2,) * 4, (2,) * 4, Verdict.REDUNDANT)
    assert by_host.may_lose_nodes == ("a0", "a1")
    assert by_host.may_lose_hosts == ()
    assert by_host.sole_hosts == {"a": (BlockRange(0, 4),)}


def test_a_block_that_nobody_serves_is_a_gap_and_nothing_may_be_lost() -> None:
    spec = a_spec([a_server("a0", "0:3"), a_server("b0", "0:8")], num_blocks=9)
    report = report_of(spec)
    assert report.verdict is Verdict.GAP
    assert report.gaps == (BlockRange(8, 9),)
    assert report.thin == (Shortfall(blocks=BlockRange(8, 9), replicas=0, wanted=1),)
    assert report.tolerance == -1
    assert report.may_lose_nodes == ()
    assert report.may_lose_hosts == ()
    assert report.sole_holders == {"b0": (BlockRange(3, 8),)}


def test_thin_ranges_are_split_where_the_count_changes() -> None:
    spec = a_spec([a_server("a0", "0:6"), a_server("b0", "2:4"), a_server("c0", "3:4")], num_blocks=6, minimum=3)
    assert report_of(spec).thin == (
        Shortfall(blocks=BlockRange(0, 2), replicas=1, wanted=3),
        Shortfall(blocks=BlockRange(2, 3), replicas=2, wanted=3),
        Shortfall(blocks=BlockRange(4, 6), replicas=1, wanted=3),
    )


def test_a_shortfall_reads_as_a_sentence() -> None:
    assert str(Shortfall(blocks=BlockRange(0, 2), replicas=1, wanted=3)) == "0:2 has 1 of 3 replicas"


def test_the_minimum_of_the_question_replaces_that_of_the_file() -> None:
    spec = a_spec(minimum=1, target=1)
    asked = analyse(spec, holders_declared(spec), minimum=3)
    assert (asked.minimum, asked.target, asked.verdict) == (3, 3, Verdict.THIN)
    assert report_of(spec).verdict is Verdict.REDUNDANT


def test_a_minimum_of_zero_does_not_make_a_gap_acceptable() -> None:
    spec = a_spec([a_server("a0", "0:4")], num_blocks=8)
    asked = analyse(spec, holders_declared(spec), minimum=0)
    assert (asked.minimum, asked.verdict) == (1, Verdict.GAP)


def test_a_swarm_without_nodes_is_one_gap() -> None:
    report = report_of(a_spec([], num_blocks=8))
    assert (report.gaps, report.tolerance, report.sole_holders) == ((BlockRange(0, 8),), -1, {})


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.UNMANAGED])
def test_only_online_nodes_hold_blocks(state: NodeState) -> None:
    spec = a_spec()
    holders = holders_of(a_snapshot(spec, states={"a0": state}))
    assert ("a0" in {holder.node for holder in holders}) == (state is NodeState.ONLINE)
    assert len(holders) == (4 if state is NodeState.ONLINE else 3)


def test_a_stranger_counts_for_nothing() -> None:
    spec = a_spec([a_server("a0", "0:4")])
    seen = holders_of(a_snapshot(spec, strangers=[an_announcement("z0", "4:8")]))
    assert analyse(spec, seen).gaps == (BlockRange(4, 8),)


def test_a_holder_that_the_file_does_not_name_counts_for_nothing() -> None:
    spec = a_spec([a_server("a0", "0:4")])
    holders = (*holders_declared(spec), Holder(node=NodeName("gone"), blocks=BlockRange(0, 8)))
    assert analyse(spec, holders) == report_of(spec)
    assert assess(spec, holders, names("a0")).gaps == (BlockRange(0, 8),)


def test_blocks_outside_the_model_count_for_nothing() -> None:
    spec = a_spec([a_server("a0", "0:90"), a_server("b0", "8:12")], num_blocks=8)
    assert report_of(spec).servers == (1,) * 8


@given(specs())
def test_counts_gaps_and_shortfalls_agree_with_counting_by_hand(spec: SwarmSpec) -> None:
    report, policy = report_of(spec), spec.redundancy
    wanted_target = max(policy.minimum, policy.target)
    for block in range(spec.model.num_blocks):
        here = [node.name for node in spec.nodes.values() if block in node.blocks]
        count = len({spec.domain_of(node, policy.by) for node in here})
        assert (report.servers[block], report.replicas[block]) == (len(here), count)
        assert any(block in gap for gap in report.gaps) == (count == 0)
        assert [short.replicas for short in report.thin if block in short.blocks] == [count] * (count < policy.minimum)
        below = [short.replicas for short in report.below_target if block in short.blocks]
        assert below == [count] * (count < wanted_target)
    if report.gaps:
        assert report.verdict is Verdict.GAP
    else:
        assert report.verdict is (Verdict.THIN if report.thin else Verdict.REDUNDANT)


@given(specs())
def test_losses_agree_with_taking_each_node_and_each_host_away(spec: SwarmSpec) -> None:
    report, everything = report_of(spec), set(range(spec.model.num_blocks))
    alive = served(spec)
    for node in spec.nodes:
        left = served(spec, names(node))
        assert report.sole_holders.get(node, ()) == ranges_of(alive - left)
        assert (node in report.may_lose_nodes) == (left == everything)
    for host in spec.hosts:
        on_host = frozenset(node.name for node in spec.nodes.values() if node.host == host)
        left = served(spec, on_host)
        assert report.sole_hosts.get(host, ()) == ranges_of(alive - left)
        assert (host in report.may_lose_hosts) == (left == everything and bool(on_host))


@given(specs())
def test_tolerance_is_the_largest_number_of_domains_of_which_any_may_fail(spec: SwarmSpec) -> None:
    by = spec.redundancy.by
    domains = sorted({spec.domain_of(node, by) for node in spec.nodes})
    everything = set(range(spec.model.num_blocks))
    survived = -1
    for count in range(len(domains) + 1):
        if any(served(spec, in_domains(spec, lost, by)) != everything for lost in combinations(domains, count)):
            break
        survived = count
    assert report_of(spec).tolerance == survived


# --- what to add ------------------------------------------------------------------------------------------------


def test_the_smallest_repair_names_spans_times_and_where_they_may_go() -> None:
    spec = a_spec([a_server("a0", "0:8"), a_server("b0", "0:4")], minimum=2, hosts=[a_host("a"), a_host("b")])
    assert report_of(spec).repairs == (Repair(blocks=BlockRange(4, 8), times=1, candidates=("b",)),)


def test_a_gap_of_a_doubled_swarm_is_repaired_by_two_equal_spans() -> None:
    spec = a_spec([a_server("a0", "0:6"), a_server("b0", "0:6")], minimum=2)
    assert report_of(spec).repairs == (Repair(blocks=BlockRange(6, 8), times=2, candidates=("a", "b")),)


def test_a_host_without_a_node_is_a_candidate() -> None:
    spec = a_spec([a_server("a0", "0:8")], minimum=2, hosts=HOSTS[:2])
    assert report_of(spec).repairs == (Repair(blocks=BlockRange(0, 8), times=1, candidates=("b",)),)


def test_a_span_that_no_host_can_take_whole_is_offered_in_pieces() -> None:
    spec = a_spec([a_server("a0", "0:4"), a_server("b0", "4:8")], minimum=2)
    pieces = (
        Piece(blocks=BlockRange(0, 4), candidates=("b",)),
        Piece(blocks=BlockRange(4, 8), candidates=("a",)),
    )
    assert report_of(spec).repairs == (Repair(blocks=BlockRange(0, 8), times=1, candidates=(), pieces=pieces),)


def test_a_span_that_needs_another_machine_has_neither_candidates_nor_pieces() -> None:
    spec = a_spec([a_server("a0", "0:8")], minimum=2)
    assert report_of(spec).repairs == (Repair(blocks=BlockRange(0, 8), times=1),)


def test_candidates_by_gpu_are_the_free_cards_and_the_hosts_without_listed_cards() -> None:
    nodes = [a_server("a0", "0:8", gpu=0), a_server("c0", "0:8")]
    spec = a_spec(nodes, minimum=3, by=Domain.GPU, hosts=HOSTS[:3])
    assert report_of(spec).repairs[0].candidates == ("a/gpu1", "b/gpu0", "b/gpu1", "c")


@given(specs())
def test_repairs_add_what_is_missing_and_nothing_else_in_the_fewest_spans(spec: SwarmSpec) -> None:
    report = report_of(spec)
    missing = tuple(max(0, report.minimum - count) for count in report.replicas)
    added = [0] * spec.model.num_blocks
    for repair in report.repairs:
        for block in repair.blocks:
            added[block] += repair.times
    assert tuple(added) == missing
    assert sum(repair.times for repair in report.repairs) == fewest_spans(missing)


@cache
def fewest_spans(missing: tuple[int, ...]) -> int:
    """By trying every span that starts at the first block that lacks a replica."""
    first = next((block for block, count in enumerate(missing) if count), None)
    if first is None:
        return 0
    choices = []
    for end in range(first + 1, len(missing) + 1):
        if missing[end - 1] == 0:
            break
        inside = tuple(count - (first <= block < end) for block, count in enumerate(missing))
        choices.append(1 + fewest_spans(inside))
    return min(choices)


@given(specs())
def test_a_node_in_a_candidate_domain_is_a_new_replica_of_every_block_of_the_span(spec: SwarmSpec) -> None:
    by = spec.redundancy.by
    report = report_of(spec)
    for repair in report.repairs:
        for piece in (Piece(blocks=repair.blocks, candidates=repair.candidates), *repair.pieces):
            for host in spec.hosts:
                for gpu in spec.hosts[host].gpus or (None,):
                    new = NodeSpec(name=NodeName("new"), host=host, blocks=piece.blocks, gpu=gpu)
                    grown = replace(spec, nodes={**spec.nodes, new.name: new})
                    more = report_of(grown).replicas
                    helps = all(more[block] == report.replicas[block] + 1 for block in piece.blocks)
                    domain_or_host = {grown.domain_of(new.name, by), str(host)}
                    assert helps == (not domain_or_host.isdisjoint(piece.candidates))


@given(specs())
def test_pieces_tile_their_span_in_the_fewest_parts_that_can_be_placed(spec: SwarmSpec) -> None:
    for repair in report_of(spec).repairs:
        placeable = {
            BlockRange(start, end): len(free_domains(spec, BlockRange(start, end))) >= repair.times
            for start, end in combinations(range(repair.blocks.start, repair.blocks.end + 1), 2)
        }
        if len(repair.candidates) >= repair.times:
            assert repair.pieces == ()
            continue
        inner = range(repair.blocks.start + 1, repair.blocks.end)
        ways = [cut(repair.blocks, cuts) for count in range(len(inner) + 1) for cuts in combinations(inner, count)]
        fewest = min((len(way) for way in ways if all(placeable[part] for part in way)), default=0)
        assert len(repair.pieces) == fewest
        if repair.pieces:
            starts = tuple(piece.blocks.start for piece in repair.pieces[1:])
            assert tuple(piece.blocks for piece in repair.pieces) == cut(repair.blocks, starts)
            assert all(piece.candidates == free_domains(spec, piece.blocks) for piece in repair.pieces)


def cut(blocks: BlockRange, cuts: tuple[int, ...]) -> tuple[BlockRange, ...]:
    bounds = (blocks.start, *cuts, blocks.end)
    return tuple(BlockRange(start, end) for start, end in pairwise(bounds))


def free_domains(spec: SwarmSpec, blocks: BlockRange) -> tuple[str, ...]:
    by = spec.redundancy.by
    taken = {spec.domain_of(node.name, by) for node in spec.nodes.values() if node.blocks.intersection(blocks)}
    known = dict.fromkeys(domain for host in spec.hosts for domain in spec.domains_of(host, by))
    return tuple(domain for domain in known if domain not in taken)


@pytest.mark.parametrize("by", list(Domain))
@pytest.mark.parametrize("host", [host.name for host in HOSTS])
def test_the_domains_of_a_host_are_named_as_those_of_its_nodes(host: HostName, by: Domain) -> None:
    cards = HOSTS["abcd".index(host)].gpus
    nodes = [a_server(f"{host}{index}", "0:8", gpu=gpu) for index, gpu in enumerate(cards or (None,))]
    spec = a_spec(nodes, hosts=HOSTS)
    named = [spec.domain_of(node, by) for node in spec.nodes]
    if by is Domain.GPU and not cards:
        named = [str(host)]
    assert spec.domains_of(host, by) == tuple(dict.fromkeys(named))


@given(specs())
def test_the_order_of_the_holders_does_not_matter(spec: SwarmSpec) -> None:
    holders = holders_declared(spec)
    assert analyse(spec, holders) == analyse(spec, holders[::-1])
