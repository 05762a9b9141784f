"""How far away servers are, measured beside the reading of the DHT: who does not answer a ping delays no table."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from hivemind.p2p import PeerID

from swarmctl.blocks import PeerId
from swarmctl.snapshot import PeerState
from swarmctl.upstream.dht import ServerRecord

logger = logging.getLogger(__name__)

PING_AT_ONCE = 64
"""Servers that are pinged in one round; a private swarm has rarely more, and then the rest has its turn later."""
_PING_TIMEOUT_S = 1.0


class Aggregator(Protocol):
    """The part of petals' `PingAggregator` that is used; its seconds are smoothed, and infinite without an answer."""

    def ping(self, peer_ids: Sequence[PeerID], *, wait_timeout: float) -> None:
        """Ping all of them at once, and wait for it."""

    def to_dict(self) -> Mapping[PeerID, float]:
        """Seconds by peer, of all that have been pinged lately."""


class Pings:
    """Rounds of pings in a thread of their own, one round at a time; `rounds` counts those that have ended."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._thread: threading.Thread | None = None
        self.rounds = 0
        self._turn = 0
        # Who did not answer, and the end of the record that it had then.
        self._unanswered: dict[PeerId, float] = {}

    def start(self, records: Sequence[ServerRecord]) -> None:
        """Ping those that serve, in the background; nothing happens while the round before is not over.

        Who did not answer is pinged again when it has announced itself: libp2p refuses to dial for a while after a dial
        that failed, and longer after each, so one ping too many would keep sessions from a server that is back.
        """
        online = [record for record in records if record.state is PeerState.ONLINE and not self._is_unanswered(record)]
        if not online or (self._thread is not None and self._thread.is_alive()):
            return
        begin = self._turn % len(online) if len(online) > PING_AT_ONCE else 0
        self._turn = begin + PING_AT_ONCE
        chosen = (online[begin:] + online[:begin])[:PING_AT_ONCE]
        thread = threading.Thread(target=self._round, args=(chosen,), name="swarmctl-pings", daemon=True)
        thread.start()
        self._thread = thread

    def seconds(self, records: Sequence[ServerRecord]) -> dict[PeerId, float]:
        """The round trip to each server that was pinged; infinite for one that did not answer.

        One that has announced itself since then is left out: it is back, and how far away it is will be known soon.
        """
        measured = {PeerId(peer.to_base58()): rtt_s for peer, rtt_s in self._aggregator.to_dict().items()}
        return {
            record.peer: measured[record.peer]
            for record in records
            if record.peer in measured
            and (measured[record.peer] < math.inf or record.expires_at <= self._unanswered.get(record.peer, math.inf))
        }

    def stop(self, *, within_s: float) -> None:
        """Wait for the round that runs, if any; one that hangs is left to the end of the process."""
        if self._thread is not None:
            self._thread.join(within_s)

    def _is_unanswered(self, record: ServerRecord) -> bool:
        """True if it did not answer the last ping, and has not announced itself since."""
        return record.expires_at <= self._unanswered.get(record.peer, -math.inf)

    def _round(self, chosen: Sequence[ServerRecord]) -> None:
        try:
            self._measure(chosen)
        except Exception as failure:  # noqa: BLE001 - a thread's end; the next round tries again
            logger.warning("pinging %d servers failed: %s", len(chosen), failure)
        finally:
            self.rounds += 1

    def _measure(self, chosen: Sequence[ServerRecord]) -> None:
        self._aggregator.ping([PeerID.from_base58(record.peer) for record in chosen], wait_timeout=_PING_TIMEOUT_S)
        measured = self._aggregator.to_dict()
        for record in chosen:
            if measured.get(PeerID.from_base58(record.peer), 0.0) == math.inf:
                self._unanswered[record.peer] = record.expires_at
            else:
                self._unanswered.pop(record.peer, None)
