"""A server that serves is forgotten: its own announcements give way to a later record, which can be taken back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration
from petals.data_structures import ServerInfo, ServerState
from support.fakeswarm import peer_id

from swarmctl.blocks import BlockRange
from swarmctl.snapshot import PeerState
from swarmctl.upstream.dht import ServerRecord, block_uids, read_records
from swarmctl.upstream.tombstone import Tombstone

A, B = peer_id("a"), peer_id("b")
UIDS = block_uids("tiny", 6)
LIVES_S = 13.0


class FakeDht:
    """A DHT of one node in this process; hivemind's own storage decides which of two records stays."""

    def __init__(self) -> None:
        self.entries = {uid: DictionaryDHTValue() for uid in UIDS}
        self.dead = False

    async def get_many(self, keys: Sequence[str], sufficient_expiration_time: float, **_: Any) -> dict[str, Any]:
        found = {uid: dict(self.entries[uid].items()) for uid in keys}
        return {uid: ValueWithExpiration(peers, 1e10) if peers else None for uid, peers in found.items()}

    async def store_many(
        self, keys: Sequence[str], subkeys: Sequence[str], values: Sequence[Any], expiration_time: Sequence[float]
    ) -> dict[tuple[str, str], bool]:
        rows = zip(keys, subkeys, values, expiration_time, strict=True)
        return {(key, subkey): self.entries[key].store(subkey, value, until) for key, subkey, value, until in rows}

    def run_coroutine(self, coroutine: Callable[[Any, Any], Any], return_future: bool = False) -> Any:
        assert return_future, "the caller may be hivemind's event loop"
        future: Future[Any] = Future()
        if self.dead:
            future.set_exception(BrokenPipeError())
        else:
            future.set_result(asyncio.run(coroutine(self, self)))
        return future

    def announce(self, peer: str, blocks: BlockRange, *, at_s: float = 0.0) -> bool:
        """What a server does once a period; `at_s` seconds from now."""
        info = ServerInfo(state=ServerState.ONLINE, throughput=10.0, start_block=blocks.start, end_block=blocks.end)
        until = time.time() + at_s + LIVES_S
        stored = [self.entries[UIDS[block]].store(peer, info.to_tuple(), until) for block in blocks]
        return all(stored)

    def record(self, peer: str) -> ServerRecord:
        records = asyncio.run(read_records(self, UIDS))  # type: ignore[arg-type]
        return next(record for record in records if record.peer == peer)


@pytest.fixture
def dht() -> FakeDht:
    made = FakeDht()
    made.announce(A, BlockRange(0, 3))
    made.announce(B, BlockRange(0, 6))
    return made


def bury(dht: FakeDht, peer: str = A) -> Tombstone:
    return Tombstone(dht, peer, UIDS, for_s=20.0, record_lives_s=LIVES_S)


def test_a_forgotten_server_is_offline_and_the_others_are_not(dht: FakeDht) -> None:
    before = dht.record(A)

    assert bury(dht).stands()

    assert (dht.record(A).state, dht.record(A).blocks) == (PeerState.OFFLINE, before.blocks)
    assert dht.record(B).state is PeerState.ONLINE


def test_its_own_announcements_are_refused_for_the_time_and_taken_afterwards(dht: FakeDht) -> None:
    bury(dht)

    assert not dht.announce(A, BlockRange(0, 3), at_s=19.0)
    assert dht.record(A).state is PeerState.OFFLINE
    assert dht.announce(A, BlockRange(0, 3), at_s=21.0)
    assert dht.record(A).state is PeerState.ONLINE


def test_what_was_taken_back_stands_until_the_server_speaks(dht: FakeDht) -> None:
    before = dht.record(A)
    stone = bury(dht)

    assert stone.remove()

    after = dht.record(A)
    assert (after.state, after.blocks, after.throughput) == (PeerState.ONLINE, before.blocks, before.throughput)
    assert dht.announce(A, BlockRange(0, 3), at_s=21.0)


def test_a_server_that_announces_nothing_cannot_be_forgotten(dht: FakeDht) -> None:
    stone = bury(dht, peer_id("c"))

    assert not stone.stands()
    assert not stone.remove()


def test_a_newer_record_is_not_forgotten(dht: FakeDht) -> None:
    dht.announce(A, BlockRange(0, 3), at_s=60.0)

    assert not bury(dht).stands()
    assert dht.record(A).state is PeerState.ONLINE


def test_a_dht_whose_process_is_gone_takes_nothing(dht: FakeDht) -> None:
    stone = bury(dht)
    dht.dead = True

    assert not stone.remove()
    assert not bury(dht).stands()
