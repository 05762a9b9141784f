from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.builders import a_server, a_snapshot, a_spec, names
from support.strategies import specs

from swarmctl.blocks import BlockRange, NodeName, ranges_of
from swarmctl.coverage import analyse, assess, holders_declared, holders_of
from swarmctl.snapshot import NodeState
from swarmctl.spec import SwarmSpec


def removal(spec: SwarmSpec, *gone: str) -> tuple[bool, tuple[str, ...]]:
    verdict = assess(spec, holders_declared(spec), names(*gone))
    return verdict.safe, verdict.reasons


def test_a_removal_that_would_leave_a_gap_is_not_safe() -> None:
    spec = a_spec([a_server("a0", "0:8"), a_server("b0", "4:8")])
    assert removal(spec, "a0") == (
        False,
        ("blocks 0:4 would have no replica instead of 1, the policy wants 1 by host; lost: a0",),
    )


def test_a_removal_that_would_go_below_the_policy_is_not_safe() -> None:
    spec = a_spec([a_server("a0", "0:8"), a_server("b0", "0:8"), a_server("c0", "0:4")], minimum=2)
    assert removal(spec, "a0") == (
        False,
        ("blocks 4:8 would have 1 replica instead of 2, the policy wants 2 by host; lost: a0",),
    )


def test_a_removal_within_the_policy_is_safe() -> None:
    spec = a_spec(minimum=1)
    assert removal(spec, "a0") == (True, ())
    assert removal(spec, "a0", "a1") == (True, ())
    assert removal(spec, "a0", "b1") == (True, ())


def test_two_nodes_that_are_each_safe_to_remove_need_not_be_safe_together() -> None:
    spec = a_spec(minimum=1)
    assert removal(spec, "a0") == removal(spec, "b0") == (True, ())
    assert removal(spec, "a0", "b0") == (
        False,
        ("blocks 0:4 would have no replica instead of 2, the policy wants 1 by host; lost: a0, b0",),
    )


def test_a_second_server_in_the_same_domain_may_go_although_the_block_is_thin() -> None:
    spec = a_spec([a_server("a0", "0:8"), a_server("a1", "0:8")], minimum=2)
    assert removal(spec, "a1") == (True, ())


def test_a_thin_block_may_not_become_thinner() -> None:
    spec = a_spec([a_server("a0", "0:8"), a_server("b0", "0:8")], minimum=3)
    assert removal(spec, "b0") == (
        False,
        ("blocks 0:8 would have 1 replica instead of 2, the policy wants 3 by host; lost: b0",),
    )


def test_a_thin_block_elsewhere_forbids_nothing() -> None:
    nodes = [a_server("a0", "0:4"), a_server("b0", "4:8"), a_server("c0", "4:8"), a_server("d0", "4:8")]
    assert removal(a_spec(nodes, minimum=2), "d0") == (True, ())


def test_while_there_is_a_gap_no_serving_node_may_go() -> None:
    spec = a_spec([a_server("a0", "0:4"), a_server("b0", "0:4")])
    assert removal(spec, "a0") == (False, ("blocks 4:8 have no replica already",))


def test_a_node_that_serves_nothing_may_go_even_while_there_is_a_gap() -> None:
    spec = a_spec()
    seen = holders_of(a_snapshot(spec, states={"a0": NodeState.CRASHED, "b0": NodeState.STALE}))
    verdict = assess(spec, seen, names("a0"))
    assert (verdict.safe, verdict.gaps) == (True, (BlockRange(0, 4),))


def test_a_name_that_nobody_bears_changes_nothing() -> None:
    assert removal(a_spec(minimum=2), "nobody") == (True, ())


@given(specs(), st.data())
def test_a_removal_is_safe_exactly_if_every_block_keeps_what_it_needs(spec: SwarmSpec, data: st.DataObject) -> None:
    removed = frozenset(data.draw(st.sets(st.sampled_from([*spec.nodes, NodeName("nobody")]))))
    verdict = assess(spec, holders_declared(spec), removed)
    before = analyse(spec, holders_declared(spec)).replicas
    rest = replace(spec, nodes={name: node for name, node in spec.nodes.items() if name not in removed})
    after = analyse(rest, holders_declared(rest)).replicas
    bad = [
        block
        for block, (had, has) in enumerate(zip(before, after, strict=True))
        if has == 0 or (has < spec.redundancy.minimum and has < had)
    ]
    if not removed & set(spec.nodes):
        bad = []
    assert verdict.replicas == after
    assert verdict.gaps == ranges_of(block for block, has in enumerate(after) if has == 0)
    assert verdict.safe == (not bad)
    assert [block for harm in verdict.harms for block in harm.blocks] == bad
    assert len(verdict.reasons) == len(verdict.harms)
    for harm in verdict.harms:
        assert {(before[block], after[block]) for block in harm.blocks} == {(harm.before, harm.after)}
        assert harm.lost == tuple(
            n for n in spec.nodes if n in removed and spec.nodes[n].blocks.intersection(harm.blocks)
        )


@given(specs(), st.data())
def test_removing_more_is_never_safer(spec: SwarmSpec, data: st.DataObject) -> None:
    holders = holders_declared(spec)
    more = frozenset(data.draw(st.sets(st.sampled_from([*spec.nodes, NodeName("nobody")]))))
    fewer = frozenset(data.draw(st.sets(st.sampled_from(sorted(more))))) if more else more
    assert assess(spec, holders, fewer).safe or not assess(spec, holders, more).safe
