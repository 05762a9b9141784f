"""What servers say of themselves in the DHT: the newest is believed, and garbage is left out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hivemind.utils.timed_storage import ValueWithExpiration
from hypothesis import given
from hypothesis import strategies as st
from petals.data_structures import ServerInfo, ServerState
from support.fakeswarm import peer_id

from swarmctl.blocks import BlockRange
from swarmctl.snapshot import PeerState
from swarmctl.upstream.dht import ServerRecord, block_uids, parse_record, read_inside, read_records

A, B, C = peer_id("a"), peer_id("b"), peer_id("c")


def said(start: int = 0, end: int = 3, state: ServerState = ServerState.ONLINE, **extras: Any) -> tuple[Any, ...]:
    """What petals' server stores for itself."""
    return ServerInfo(state=state, throughput=10.0, start_block=start, end_block=end, **extras).to_tuple()


class FakeNode:
    """A DHT node with what `stored` holds: block → peer → (value, expiration)."""

    def __init__(self, stored: Mapping[int, Mapping[Any, tuple[Any, float]]]) -> None:
        self.entries: dict[str, Any] = {
            f"tiny.{block}": ValueWithExpiration(
                {peer: ValueWithExpiration(value, expires) for peer, (value, expires) in peers.items()}, 1e9
            )
            for block, peers in stored.items()
        }

    async def get_many(
        self, keys: Sequence[str], sufficient_expiration_time: float, num_workers: int
    ) -> dict[str, Any]:
        # Anything older than this would be answered from a cache.
        assert sufficient_expiration_time == math.inf
        assert num_workers > 0
        return {key: self.entries.get(key) for key in keys}

    def records(self, num_blocks: int = 6) -> dict[str, ServerRecord]:
        found = asyncio.run(read_records(self, block_uids("tiny", num_blocks)))  # type: ignore[arg-type]
        assert [record.peer for record in found] == sorted(record.peer for record in found)
        return {record.peer: record for record in found}


def parse(value: Any, *, peer: str = A, at_block: int = 2, num_blocks: int = 6) -> ServerRecord | None:
    return parse_record(peer, value, expires_at=100.0, at_block=at_block, num_blocks=num_blocks)  # type: ignore[arg-type]


def test_a_server_is_read_as_petals_announces_it() -> None:
    extras = {
        "inference_rps": 250.5,
        "cache_tokens_left": 4096,
        "torch_dtype": "float16",
        "quant_type": "nf4",
        "version": "2.2.0.post1",
        "using_relay": False,
    }
    value = said(**extras)
    node = FakeNode({block: {A: (value, 100.0)} for block in range(3)})

    assert node.records() == {
        A: ServerRecord(
            peer=A, state=PeerState.ONLINE, blocks=BlockRange(0, 3), throughput=10.0, expires_at=100.0, **extras
        )
    }
    assert node.records()[A].cache_room == 2048


def test_what_a_server_has_not_announced_is_not_known() -> None:
    record = parse(said())

    assert record is not None
    assert (record.inference_rps, record.cache_tokens_left, record.cache_room, record.torch_dtype) == (None,) * 4


@pytest.mark.parametrize("state", ServerState)
def test_every_state_of_petals_is_known(state: ServerState) -> None:
    record = parse(said(state=state))

    assert record is not None
    assert record.state.value == state.name


def test_a_server_that_was_restarted_on_other_blocks_is_believed_for_the_new_ones_only() -> None:
    old, new = said(3, 6), said(0, 3)
    stored = {block: {A: (old, 100.0)} for block in range(3, 6)} | {block: {A: (new, 101.0)} for block in range(3)}

    assert FakeNode(stored).records()[A].blocks == BlockRange(0, 3)


def test_the_newest_record_counts_at_whatever_block_it_stands() -> None:
    old, new = said(0, 3), said(3, 6, state=ServerState.OFFLINE)
    stored = {block: {A: (old, 100.0)} for block in range(3)} | {block: {A: (new, 100.5)} for block in range(3, 6)}

    record = FakeNode(stored).records()[A]

    assert (record.blocks, record.state, record.expires_at) == (BlockRange(3, 6), PeerState.OFFLINE, 100.5)


def test_a_record_without_a_range_is_believed_for_the_block_that_it_stands_at() -> None:
    record = parse((2, 5.0), at_block=4)

    assert record is not None
    assert record.blocks == BlockRange(4, 5)


def test_a_range_beyond_the_model_is_cut() -> None:
    record = parse(said(4, 900))

    assert record is not None
    assert record.blocks == BlockRange(4, 6)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "21",
        b"21",
        (),
        (2,),
        (2, 1.0, None),
        (2, 1.0, 5),
        (2, 1.0, {"start_block": 3, "end_block": 3}),
        (2, 1.0, {"start_block": 9, "end_block": 12}),
        (2, 1.0, {"start_block": -1, "end_block": 3}),
        (2, 1.0, {"start_block": "0", "end_block": 3}),
        (2, 1.0, {"start_block": True, "end_block": 3}),
        (3, 1.0),
        (-1, 1.0),
        ("2", 1.0),
        (2.0, 1.0),
        (True, 1.0),
        (None, 1.0),
        (2, None),
        (2, "1"),
        (2, -1.0),
        (2, math.nan),
        (2, math.inf),
        (2, 10**400),
        (2, 1.0, {"inference_rps": math.nan}),
        (2, 1.0, {"inference_rps": -5.0}),
        (2, 1.0, {"inference_rps": "fast"}),
        (2, 1.0, {"cache_tokens_left": math.inf}),
        (2, 1.0, {"cache_tokens_left": -1}),
        (2, 1.0, {"torch_dtype": 16}),
        (2, 1.0, {"version": ["2", "2"]}),
        (2, 1.0, [[{}, 1]]),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_no_record_is_left_out_and_hides_nobody(value: Any) -> None:
    assert parse(value) is None

    node = FakeNode({0: {A: (value, 200.0), B: (said(), 100.0)}})
    assert set(node.records()) == {B}


@pytest.mark.parametrize("peer", ["", "0OIl", "not a peer", f"{B} ", f" {B}", b"Qm", 5, None], ids=repr)
def test_a_record_under_something_that_is_no_peer_id_is_left_out(peer: Any) -> None:
    node = FakeNode({0: {peer: (said(), 100.0), B: (said(), 100.0)}})

    assert set(node.records()) == {B}


@pytest.mark.parametrize(
    "entry",
    [None, 5, {A: said()}, {A: 5}, [A], {A: None}],
    ids=["nothing", "a number", "a bare record", "a bare number", "a list", "a bare nothing"],
)
def test_something_else_stored_under_the_key_of_a_block_is_left_out(entry: Any) -> None:
    node = FakeNode({1: {B: (said(), 100.0)}})
    node.entries["tiny.0"] = ValueWithExpiration(entry, 1e9)

    assert set(node.records()) == {B}


def test_garbage_that_is_newer_than_a_record_takes_only_its_own_peer_out() -> None:
    node = FakeNode({0: {A: (said(), 100.0), B: (said(), 100.0), C: (said(), 100.0)}, 1: {A: ("gone", 101.0)}})

    assert set(node.records()) == {B, C}


def test_blocks_without_an_entry_are_no_fault() -> None:
    assert FakeNode({}).records() == {}


def test_it_reads_in_the_form_that_the_dhts_process_takes() -> None:
    node = FakeNode({0: {A: (said(), 100.0)}})

    found = asyncio.run(read_inside(None, node, uids=block_uids("tiny", 2)))  # type: ignore[arg-type]

    assert [record.peer for record in found] == [A]


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([0, 1, 2, 3, 1.5, 10**400])
texts = st.text(max_size=4) | st.binary(max_size=4)
keys = st.sampled_from([*said()[2]]) | st.text(max_size=3)
extras = st.dictionaries(keys, numbers | texts | st.lists(numbers, max_size=2), max_size=6)
garbage = st.recursive(
    numbers | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(value=st.tuples(numbers, numbers, extras) | st.tuples(numbers, numbers) | garbage, at_block=st.integers(0, 5))
def test_whatever_anybody_writes_is_a_record_that_petals_takes_too_or_none(value: Any, at_block: int) -> None:
    record = parse(value, at_block=at_block)

    if record is not None:
        assert BlockRange(0, 6).covers(record.blocks)
        ServerInfo(
            state=ServerState[record.state.value],
            throughput=record.throughput,
            start_block=record.blocks.start,
            end_block=record.blocks.end,
            inference_rps=record.inference_rps,
            cache_tokens_left=record.cache_tokens_left,
            torch_dtype=record.torch_dtype,
            quant_type=record.quant_type,
            version=record.version,
        )
