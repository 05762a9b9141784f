"""Who serves which blocks, kept fresh in the background, and the route through them.

A `RemoteSequenceManager`, so that petals' model accepts it; its table, its bans and its refresh are ours. A failed
peer is out of the table before the next route is computed, a refresh that fails or hangs never blocks a step longer
than it was given, a record is believed only as far as its newest version goes, and pings are made beside all this.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from functools import partial

from hivemind.dht import DHT
from hivemind.p2p import PeerID
from petals.client.config import ClientConfig
from petals.client.routing import RemoteSequenceManager
from petals.client.routing.sequence_manager import SequenceManagerState
from petals.data_structures import RemoteModuleInfo, ServerInfo, ServerState, parse_uid

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.recovery import FailureKind
from swarmctl.routing import BanList, NoRoute, Offer, Returns, Route, choose_route, choose_with_bans
from swarmctl.snapshot import PeerState
from swarmctl.upstream.dht import ServerRecord, block_uids, read_inside
from swarmctl.upstream.pings import Pings

logger = logging.getLogger(__name__)

# A private swarm is read in milliseconds; with bootstrap peers that are gone it takes several of hivemind's 3 s.
_READ_S = 15.0
_FIRST_TABLE_S = 30.0
_FRESH_TABLE_S = 1.0
_STOP_S = 2.0
# What petals' own table need not forget a server for.
_BLAMELESS = (FailureKind.BUSY, FailureKind.SLOW, FailureKind.EXPIRED, FailureKind.UNDIALLED)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is known at one moment. `reading` grows with every reading of the DHT, also with one that failed.

    `read_at`: when the reading that the records are from began, in monotonic seconds; `error`: why the newest one
    failed, if it did.
    """

    reading: int = 0
    read_at: float = -math.inf
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
        self.roster = roster
        self.bans = BanList()
        self._returns = Returns()
        self._table = Table()
        self._begun = 0
        # Guards what is known of the swarm, all of the above; notified when a new table is there.
        self._refreshed = threading.Condition()
        super().__init__(config, tuple(block_uids), dht=dht, state=state)
        self._pings = Pings(self.ping_aggregator)

    def __getitem__(self, ix: int | slice) -> Router:
        """The router of a part of the blocks; it shares the peer, not the table."""
        part = ix if isinstance(ix, slice) else slice(ix, ix + 1)
        return Router(self.config, self.block_uids[part], dht=self.dht, state=self.state[part], roster=self.roster)

    def shutdown(self) -> None:
        """End the threads, waiting for neither of them longer than two seconds."""
        self._thread.shutdown(_STOP_S)
        self._pings.stop(within_s=_STOP_S)

    # --- the table ------------------------------------------------------------------------------------------

    def refresh(self, *, timeout_s: float) -> bool:
        """Read the DHT again and wait for it, at most `timeout_s`; True if a newer table is there.

        A reading that runs already may have been answered before what the caller knows of happened, so only one that
        begins after this call counts. The table that was there stays usable when the answer is False.
        """
        with self._refreshed:
            wanted = self._begun + 1
        if not self._started_now():
            self._thread.trigger.set()
        return self._await_reading(wanted, timeout_s) and self._table.error is None

    def records(self) -> tuple[ServerRecord, ...]:
        """The newest record of every admitted peer."""
        return self._table.records

    def record_of(self, peer: PeerId) -> ServerRecord | None:
        """The newest record of one peer, or None if it announces nothing."""
        return next((record for record in self._table.records if record.peer == peer), None)

    def _started_now(self) -> bool:
        """Start petals' refresh thread if it does not run; its first reading begins at once."""
        with self._thread_start_lock:
            if self._thread.is_alive():
                return False
            self._thread.start()
            return True

    def _await_reading(self, number: int, timeout_s: float) -> bool:
        with self._refreshed:
            return self._refreshed.wait_for(lambda: self._table.reading >= number, timeout_s)

    def _update(self) -> None:
        # Called by petals' refresh thread, once a period and when triggered.
        with self._refreshed:
            self._begun += 1
            reading, before = self._begun, self._table
        try:
            table = Table(reading=reading, read_at=time.monotonic(), records=self._read())
        except Exception as failure:  # noqa: BLE001 - a thread's end; whoever waits is told
            reason = str(failure) or type(failure).__name__
            logger.warning("reading the DHT failed: %s", reason)
            table = replace(before, reading=reading, error=reason)
        with self._refreshed:
            # Bans first: who waits for the table looks for a route in the next moment.
            if table.error is None:
                self._lift_bans_of_returned(table)
            self._table = table
            self._refreshed.notify_all()
        self._publish_to_petals(table.records)
        self.ready.set()
        self._pings.start(table.records)

    def _read(self) -> tuple[ServerRecord, ...]:
        """The records of admitted peers, by the blocks of this router.

        A reading that hangs fails after a while: the DHT's process may be stopped, or gone.
        """
        if not self.dht.is_alive():
            raise ConnectionError("the process of the DHT has ended")
        prefix, first_block = parse_uid(self.block_uids[0])
        # Records name blocks by their place in the model; this router may be for a part of it.
        own = BlockRange(first_block, first_block + len(self))
        future = self.dht.run_coroutine(partial(read_inside, uids=block_uids(prefix, own.end)), return_future=True)
        try:
            records = future.result(_READ_S)
        except futures.TimeoutError as late:
            raise TimeoutError(f"no answer from the DHT within {_READ_S:g} s") from late
        return tuple(
            replace(record, blocks=BlockRange(mine.start - own.start, mine.end - own.start))
            for record in records
            if (self.roster is None or record.peer in self.roster)
            and (mine := record.blocks.intersection(own)) is not None
        )

    def _lift_bans_of_returned(self, table: Table) -> None:
        online = {r.peer: r.expires_at for r in table.records if r.state is PeerState.ONLINE}
        for peer in self._returns.back(table.reading, online):
            self.bans.record_success(peer)

    def _publish_to_petals(self, records: Sequence[ServerRecord]) -> None:
        """Keep petals' own table in step: its forward passes without a session route by it."""
        infos = [RemoteModuleInfo(uid=uid, servers={}) for uid in self.block_uids]
        first_block, banned = parse_uid(self.block_uids[0])[1], self.bans.banned(time.monotonic())
        for record in records:
            info = ServerInfo(
                state=ServerState[record.state.value],
                throughput=record.throughput,
                start_block=first_block + record.blocks.start,
                end_block=first_block + record.blocks.end,
                inference_rps=record.inference_rps,
                cache_tokens_left=record.cache_tokens_left,
                torch_dtype=record.torch_dtype,
                quant_type=record.quant_type,
            )
            for block in record.blocks:
                infos[block].servers[PeerID.from_base58(record.peer)] = info
        for block_info in infos:
            usable = {peer: info for peer, info in block_info.servers.items() if peer.to_base58() not in banned}
            block_info.servers = usable or block_info.servers
        with self.lock_changes:
            self.state.sequence_info.update_(infos)

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

        Without `lift_bans` only who is merely slow is. Blocks for the first table, and for up to a second if the table
        is older than `fresh_s`.
        """
        if self._table.reading == 0:
            self._started_now()
            self._await_reading(1, _FIRST_TABLE_S)
        elif time.monotonic() - self._table.read_at > fresh_s:
            self.refresh(timeout_s=_FRESH_TABLE_S)
        offers, now = self._offers(), time.monotonic()
        if lift_bans:
            return choose_with_bans(offers, need, bans=self.bans, now=now, tried=avoid, cache_tokens=cache_tokens)
        banned = self.bans.banned(now, slow=False)
        return choose_route(offers, need, avoid=avoid | banned, cache_tokens=cache_tokens)

    def _offers(self) -> tuple[Offer, ...]:
        records = self._table.records
        rtts = self._pings.seconds(records)
        return tuple(
            Offer(
                peer=record.peer,
                blocks=record.blocks,
                inference_rps=record.inference_rps,
                rtt_s=rtts.get(record.peer),
                cache_tokens_left=record.cache_room,
            )
            for record in records
            if record.state is PeerState.ONLINE
        )

    def report_failure(self, peer: PeerId, kind: FailureKind) -> None:
        """Keep new routes away from a peer for a while, at once; from one that is merely full or slow, less so."""
        with self._refreshed:
            self.bans.record_failure(peer, time.monotonic(), kind.value)
            self._returns.record_failure(peer, kind.value, readings=self._begun)
        if kind in _BLAMELESS:
            return
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
