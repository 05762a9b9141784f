"""Makes the swarm forget a server that serves: a record in its name that outlives its own next announcements.

Nothing in a hivemind DHT is signed, and a record gives way only to one that expires later. So one that says OFFLINE
and expires far enough in the future stands until the server announces something that expires later still.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from hivemind.dht import DHT, DHTNode
from hivemind.utils.timed_storage import ValueWithExpiration, get_dht_time

from swarmctl.blocks import PeerId

logger = logging.getLogger(__name__)

_OFFLINE = 0  # petals.data_structures.ServerState.OFFLINE
_STORE_S = 10.0
# Enough to be the newer one of two.
_LATER_S = 0.001

# A key, petals' `(state, throughput, extras)` that stood there, and when the record in its place expires.
_Buried = tuple[tuple[str, Any, float], ...]


class Tombstone:
    """Announces `peer` as OFFLINE for these blocks, and so that its own announcements are refused for `for_s` seconds.

    `record_lives_s`: how long a record of that server lives. Making one takes a millisecond; the rest happens in the
    process of `dht`, which must live as long as `stands` and `remove` are to work.
    """

    def __init__(self, dht: DHT, peer: PeerId, uids: Sequence[str], *, for_s: float, record_lives_s: float) -> None:
        self._dht = dht
        self._peer = peer
        until = get_dht_time() + for_s + record_lives_s
        self._storing = self._begin(partial(_bury, peer=peer, uids=tuple(uids), expires_at=until))

    def stands(self) -> bool:
        """True if the swarm has taken it; waits for that."""
        return bool(self._result(self._storing))

    def remove(self) -> bool:
        """Put back what was announced before, until the server itself announces something newer; True if taken."""
        buried = self._result(self._storing)
        return bool(buried and self._result(self._begin(partial(_raise, peer=self._peer, buried=buried))))

    def _begin(self, coroutine: Any) -> Any:
        return self._dht.run_coroutine(coroutine, return_future=True)

    def _result(self, future: Any) -> Any:
        try:
            return future.result(_STORE_S)
        except Exception as error:  # noqa: BLE001 - the DHT's process is gone, or what went wrong in it: not taken
            logger.info("the DHT did not take a record: %r", error)
            return None


async def _bury(_dht: DHT, node: DHTNode, *, peer: PeerId, uids: Sequence[str], expires_at: float) -> _Buried:
    found = await node.get_many(list(uids), sufficient_expiration_time=math.inf)
    before: list[tuple[str, Any, float]] = []
    for uid in uids:
        entry = found.get(uid)
        said = entry.value.get(peer) if entry is not None and isinstance(entry.value, dict) else None
        if isinstance(said, ValueWithExpiration):
            before.append((uid, said.value, expires_at))
    stored = await _store(node, peer, [(uid, (_OFFLINE, *value[1:]), until) for uid, value, until in before])
    return tuple(before) if stored else ()


async def _raise(_dht: DHT, node: DHTNode, *, peer: PeerId, buried: _Buried) -> bool:
    return await _store(node, peer, [(uid, value, until + _LATER_S) for uid, value, until in buried])


async def _store(node: DHTNode, peer: PeerId, records: Sequence[tuple[str, Any, float]]) -> bool:
    if not records:
        return False
    stored = await node.store_many(
        keys=[uid for uid, _, _ in records],
        subkeys=[peer] * len(records),
        values=[value for _, value, _ in records],
        expiration_time=[until for _, _, until in records],
    )
    return all(stored.values())
