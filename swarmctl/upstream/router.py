"""Who serves which blocks, kept fresh in the background, and the route through them.

A `RemoteSequenceManager`, so that petals' model accepts it; its table, its bans and its refresh are ours. A failed
peer is out of the table before the next route is computed, a refresh that fails or hangs never blocks a step longer
than it was given, and a record is believed only as far as its newest version goes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hivemind.dht import DHT
from hivemind.p2p import PeerID
from petals.client.config import ClientConfig
from petals.client.routing import RemoteSequenceManager
from petals.client.routing.sequence_manager import SequenceManagerState
from petals.data_structures import RemoteModuleInfo, ServerInfo, ServerState

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.recovery import FailureKind
from swarmctl.routing import BanList, NoRoute, Offer, Route, choose_route, choose_with_bans
from swarmctl.snapshot import PeerState
from swarmctl.upstream.dht import ServerRecord, read_inside

logger = logging.getLogger(__name__)

# Peers that do not answer are only slow to ping; the table is published before the pings begin.
_PING_TIMEOUT_S = 1.0
_PING_ALL_UP_TO = 64
_FIRST_TABLE_S = 30.0
_FRESH_TABLE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is known at one moment. `generation` grows with every refresh, also with one that failed."""

    generation: int = 0
    read_at: float = 0.0
    records: tuple[ServerRecord, ...] = ()
    error: str | None = None


class Router(RemoteSequenceManager):
    """Routes for sessions; `roster` limits it to the declared peers, None admits every peer that announces."""

    def __init__(
        self,
        config: ClientConfig,
        block_uids: Sequence[str],
        *,
        dht: DHT,
        state: SequenceManagerState | None = None,
        roster: Mapping[PeerId, NodeName] | None = None,
    ) -> None:
        self._table = Table()
        self._refreshed = threading.Condition()
        self.bans = BanList()
        self._failed_records: dict[PeerId, float] = {}
        self.roster = roster
        super().__init__(config, tuple(block_uids), dht=dht, state=state)

    def __getitem__(self, ix: int | slice) -> Router:
        """The router of a part of the blocks; it shares the peer, not the table."""
        part = ix if isinstance(ix, slice) else slice(ix, ix + 1)
        return Router(self.config, self.block_uids[part], dht=self.dht, state=self.state[part], roster=self.roster)

    # --- the table ------------------------------------------------------------------------------------------

    def refresh(self, *, timeout_s: float) -> bool:
        """Read the DHT again and wait for it, at most `timeout_s`; True if a newer table is there.

        The table that was there stays usable when the answer is False.
        """
        with self._thread_start_lock:
            if not self._thread.is_alive():
                self._thread.start()
        with self._refreshed:
            before = self._table.generation
            self._thread.trigger.set()
            return self._refreshed.wait_for(lambda: self._table.generation > before, timeout_s)

    def records(self) -> tuple[ServerRecord, ...]:
        """The newest record of every admitted peer."""
        return self._table.records

    def record_of(self, peer: PeerId) -> ServerRecord | None:
        """The newest record of one peer, or None if it announces nothing."""
        return next((record for record in self._table.records if record.peer == peer), None)

    def _update(self) -> None:
        # Called by petals' refresh thread, once a period and when triggered.
        try:
            records = self.dht.run_coroutine(partial(read_inside, uids=self.block_uids))
            admitted = tuple(r for r in records if self.roster is None or r.peer in self.roster)
            error = None
        except Exception as failure:  # noqa: BLE001 - a thread's end; whoever waits is told
            logger.warning("reading the DHT failed: %s", failure)
            admitted, error = self._table.records, str(failure)
        with self._refreshed:
            self._table = Table(
                generation=self._table.generation + 1, read_at=time.monotonic(), records=admitted, error=error
            )
            self._refreshed.notify_all()
        self._lift_bans_of_renewed(admitted)
        self._publish_to_petals(admitted)
        self.ready.set()
        self._ping(admitted)

    def _lift_bans_of_renewed(self, records: Sequence[ServerRecord]) -> None:
        """A server that has announced itself since it failed is back, or never was away."""
        for record in records:
            failed_at = self._failed_records.get(record.peer)
            if failed_at is not None and record.expires_at > failed_at:
                del self._failed_records[record.peer]
                self.bans.record_success(record.peer)

    def _publish_to_petals(self, records: Sequence[ServerRecord]) -> None:
        """Keep petals' own table in step: its forward passes without a session route by it."""
        infos = [RemoteModuleInfo(uid=uid, servers={}) for uid in self.block_uids]
        for record in records:
            info = ServerInfo(
                state=ServerState[record.state.value],
                throughput=record.throughput,
                start_block=record.blocks.start,
                end_block=record.blocks.end,
                inference_rps=record.inference_rps,
                cache_tokens_left=record.cache_tokens_left,
                torch_dtype=record.torch_dtype,
                quant_type=record.quant_type,
            )
            for block in record.blocks:
                infos[block].servers[PeerID.from_base58(record.peer)] = info
        with self.lock_changes:
            self.state.sequence_info.update_(infos)

    def _ping(self, records: Sequence[ServerRecord]) -> None:
        online = [PeerID.from_base58(r.peer) for r in records if r.state is PeerState.ONLINE]
        if online:
            self.ping_aggregator.ping(online[:_PING_ALL_UP_TO], wait_timeout=_PING_TIMEOUT_S)

    # --- routes ---------------------------------------------------------------------------------------------

    def route(
        self,
        need: BlockRange,
        *,
        avoid: frozenset[PeerId],
        cache_tokens: int,
        lift_bans: bool = True,
        fresh_s: float = math.inf,
    ) -> Route | NoRoute:
        """Servers that tile `need`, none of `avoid`; with `lift_bans` a banned one is better than none.

        Blocks for the first table, and for up to a second if the table is older than `fresh_s`.
        """
        if self._table.generation == 0:
            self.refresh(timeout_s=_FIRST_TABLE_S)
        elif time.monotonic() - self._table.read_at > fresh_s:
            self.refresh(timeout_s=_FRESH_TABLE_S)
        offers, now = self._offers(), time.monotonic()
        if lift_bans:
            return choose_with_bans(offers, need, bans=self.bans, now=now, tried=avoid, cache_tokens=cache_tokens)
        return choose_route(offers, need, avoid=avoid | self.bans.banned(now), cache_tokens=cache_tokens)

    def _offers(self) -> tuple[Offer, ...]:
        rtts = {str(peer.to_base58()): rtt for peer, rtt in self.ping_aggregator.to_dict().items()}
        return tuple(
            Offer(
                peer=record.peer,
                blocks=record.blocks,
                inference_rps=record.inference_rps,
                rtt_s=rtts.get(record.peer),
                cache_tokens_left=record.cache_room,
            )
            for record in self._table.records
            if record.state is PeerState.ONLINE
        )

    def report_failure(self, peer: PeerId, kind: FailureKind) -> None:
        """Keep new routes away from a peer for a while; one that is merely full or ended an old stream, less so."""
        if kind is FailureKind.EXPIRED:
            return
        self.bans.record_failure(peer, time.monotonic(), kind.value)
        record = self.record_of(peer)
        if record is not None:
            self._failed_records[peer] = record.expires_at
        # petals' own table must forget the peer too: its on_request_failure leaves the spans as they are.
        peer_id = PeerID.from_base58(peer)
        with self.lock_changes:
            info = self.state.sequence_info
            for block in info.block_infos:
                block.servers.pop(peer_id, None)
            info.spans_by_priority, info.spans_containing_block = info._sort_spans(info.block_infos)

    def report_success(self, peer: PeerId) -> None:
        """End a peer's ban."""
        self.bans.record_success(peer)

    def on_request_failure(self, peer_id: PeerID | None) -> None:
        """petals' way to report; used by its forward passes without a session."""
        if peer_id is not None:
            self.report_failure(PeerId(peer_id.to_base58()), FailureKind.LOST)
