"""A server's place in the DHT: whether bootstrap peers know of it and its record can be found, and what helps if not.

hivemind forgets a peer that did not answer once. A bootstrap peer that was started again knows nobody, and nobody asks
it any more: unless somebody of the swarm does, both go on without each other for ever. So each server pings the peers
that it joined through once in each update period.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

from hivemind.dht import DHT, DHTNode
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

from swarmctl.upstream.dht import read_records
from swarmctl.upstream.health import Trouble

logger = logging.getLogger(__name__)

_CONNECT_S = 3.0
_ASK_S = 30.0
# Four times what a question may take: by then the process that answers is stuck.
_SILENT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the DHT's process has found: which of the peers asked answer, and whether there is a record of our own."""

    answered: tuple[bool, ...]
    recorded: bool | None


class Membership:
    """Asks at a gentle pace; nothing here waits. `peers`: full multiaddrs of those that the server joined through."""

    def __init__(
        self,
        dht: Any,
        peers: Sequence[str],
        *,
        uid: str,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dht = dht
        self._peers = tuple(peers)
        self._uid = uid
        self._every_s = every_s
        self._clock = clock
        self._asking: Any = None
        self._asked_at = 0.0
        self._next_at = 0.0
        self._missing_since: float | None = None
        self._answered: tuple[bool, ...] | None = None
        self.announced: bool | None = None

    def look(self, container: Any) -> Trouble | None:
        """What is wrong with the place of a container that takes requests; announces it again where that helps."""
        if not container.dht_announcer.is_alive():
            return Trouble(reason="petals' announcer has ended, so its record will expire")
        if not self._dht.is_alive():
            return Trouble(reason="the process of its DHT has ended")
        now = self._clock()
        if self._asking is not None:
            if self._asking.done():
                self._settle(container, now)
            elif now - self._asked_at > _SILENT_S:
                return Trouble(reason="the process of its DHT does not answer")
        elif now >= self._next_at:
            asking = partial(look_around, peers=self._peers, uid=self._uid)
            self._asking, self._asked_at = self._dht.run_coroutine(asking, return_future=True), now
        if self._missing_since is None:
            return None
        return Trouble(reason=f"the DHT has no record of it, for {now - self._missing_since:.0f} s", fatal=False)

    def _settle(self, container: Any, now: float) -> None:
        asking, self._asking = self._asking, None
        self._next_at = now + self._every_s
        try:
            place: Place = asking.result(timeout=0)
        except (Exception, CancelledError) as error:  # noqa: BLE001  # any failure to ask is the same: not known
            logger.warning("the DHT could not be asked: %r", error)
            return
        # The first time nobody comes back: they have just been joined through.
        before, self._answered = self._answered or (True,) * len(self._peers), place.answered
        back = [
            peer
            for peer, was, is_there in zip(self._peers, before, place.answered, strict=True)
            if is_there and not was
        ]
        if back:
            logger.info("%s answers again; announcing this server to it", ", ".join(back))
            container.dht_announcer.trigger.set()
        if place.recorded is not None:
            self._note(container, now, recorded=place.recorded)

    def _note(self, container: Any, now: float, *, recorded: bool) -> None:
        self.announced = recorded
        if recorded:
            if self._missing_since is not None:
                logger.info("the DHT has this server's record again")
            self._missing_since = None
            return
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= self._every_s:
            logger.warning(
                "the DHT has had no record of this server for %.0f s; announcing it again", now - self._missing_since
            )
            container.dht_announcer.trigger.set()


async def look_around(_dht: DHT, node: DHTNode, *, peers: Sequence[str], uid: str) -> Place:
    """Ping `peers`, so that they and this node know each other again, then look for this node's record under `uid`.

    Runs in hivemind's DHT process, which logs whatever is raised here; so nothing is.
    """
    answered = await asyncio.gather(*(_greet(node, peer) for peer in peers))
    try:
        found = await asyncio.wait_for(read_records(node, [uid]), _ASK_S)
    except Exception:  # noqa: BLE001  # that it could not be asked says nothing of the record
        return Place(answered=tuple(answered), recorded=None)
    own = node.peer_id.to_base58()
    return Place(answered=tuple(answered), recorded=any(record.peer == own for record in found))


async def _greet(node: DHTNode, address: str) -> bool:
    where, _, name = address.rpartition("/p2p/")
    peer = PeerID.from_base58(name)
    if await node.protocol.call_ping(peer) is not None:
        return True
    try:
        # libp2p forgets the address of a peer that was gone for some minutes.
        await asyncio.wait_for(node.p2p._client.connect(peer, [Multiaddr(where)]), _CONNECT_S)
    except Exception:  # noqa: BLE001  # whatever keeps a connection from being made, there is none
        return False
    return await node.protocol.call_ping(peer) is not None
