"""Reads what servers say of themselves in the DHT, and believes each only as far as its newest record goes.

petals joins all records of a peer into one span, so a server that was restarted on other blocks shows up as the
union of both until the old records expire. Here a block counts for a peer only if the peer's *newest* record says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hivemind.dht import DHT, DHTNode
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import ValueWithExpiration

from swarmctl.blocks import BlockRange, PeerId
from swarmctl.snapshot import PeerState

_T = TypeVar("_T")

_STATES = {0: PeerState.OFFLINE, 1: PeerState.JOINING, 2: PeerState.ONLINE}  # petals.data_structures.ServerState


@dataclass(frozen=True, kw_only=True)
class ServerRecord:
    """One peer's newest record.

    `cache_tokens_left` is what it announces, see `cache_room`. `expires_at` is DHT time: UTC epoch seconds as the
    bootstrap peers see it.
    """

    peer: PeerId
    state: PeerState
    blocks: BlockRange
    throughput: float
    expires_at: float
    inference_rps: float | None
    cache_tokens_left: int | None
    torch_dtype: str | None
    quant_type: str | None
    version: str | None
    using_relay: bool

    @property
    def cache_room(self) -> int | None:
        """Free attention cache in tokens times blocks.

        petals divides the free bytes by those of one vector a token, but a token has a key and a value.
        """
        return None if self.cache_tokens_left is None else self.cache_tokens_left // 2


def block_uids(dht_prefix: str, num_blocks: int) -> tuple[str, ...]:
    """The DHT key of each block; petals' `prefix.index`."""
    return tuple(f"{dht_prefix}.{index}" for index in range(num_blocks))


async def read_records(node: DHTNode, uids: Sequence[str]) -> tuple[ServerRecord, ...]:
    """The newest record of every peer that announces any of these blocks, in the order of the peer ids.

    Records that do not parse are left out: anybody in the swarm can write anything.
    """
    found = await node.get_many(list(uids), sufficient_expiration_time=math.inf, num_workers=len(uids))
    newest: dict[str, tuple[float, int, Any]] = {}
    for index, uid in enumerate(uids):
        entry = found.get(uid)
        if entry is None or not isinstance(entry.value, dict):
            continue
        for peer, said in entry.value.items():
            # A plain dictionary stored under the key looks like one of its entries, but for this.
            if not isinstance(peer, str) or not isinstance(said, ValueWithExpiration):
                continue
            if peer not in newest or said.expiration_time > newest[peer][0]:
                newest[peer] = (said.expiration_time, index, said.value)
    records = (
        parse_record(PeerId(peer), value, expires_at=expires, at_block=index, num_blocks=len(uids))
        for peer, (expires, index, value) in sorted(newest.items())
    )
    return tuple(record for record in records if record is not None)


async def read_inside(_dht: DHT, node: DHTNode, *, uids: Sequence[str]) -> tuple[ServerRecord, ...]:
    """`read_records` in the form that `DHT.run_coroutine` takes; runs in hivemind's DHT process."""
    return await read_records(node, uids)


def parse_record(peer: PeerId, value: Any, *, expires_at: float, at_block: int, num_blocks: int) -> ServerRecord | None:
    """petals' `(state, throughput, extras)` as a record, or None if it is not one that petals would take too.

    A record without its own range (an old petals) is believed for the one block that it stands at.
    """
    try:
        state, throughput, *rest = value
        extras = dict(rest[0]) if rest else {}
        start, end = _whole(extras.get("start_block")), _whole(extras.get("end_block"))
        if start is None or end is None:
            start, end = at_block, at_block + 1
        return ServerRecord(
            peer=_spelled(peer),
            state=_STATES[_required(_whole(state))],
            blocks=BlockRange(start, min(end, num_blocks)),
            throughput=_required(_amount(throughput)),
            expires_at=float(expires_at),
            inference_rps=_amount(extras.get("inference_rps")),
            cache_tokens_left=_whole(extras.get("cache_tokens_left")),
            torch_dtype=_text(extras.get("torch_dtype")),
            quant_type=_text(extras.get("quant_type")),
            version=_text(extras.get("version")),
            using_relay=bool(extras.get("using_relay")),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _spelled(peer: PeerId) -> PeerId:
    if not peer or PeerID.from_base58(peer).to_base58() != peer:
        raise ValueError(f"{peer!r} is no peer id")
    return peer


def _required(value: _T | None) -> _T:
    if value is None:
        raise ValueError("a part of the record is missing")
    return value


def _whole(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _amount(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
