"""The child program of a bootstrap node: a DHT peer that others join through, and that observes the swarm.

It holds the DHT anyway, so it is the cheapest place to look from. It reads what servers announce, asks each of them
once a second whether it is there, and now and then for real work (a one-token forward through its first block), and
writes `observed.json`; `status` and every judgement read that file, and need neither torch nor a peer of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swarmctl import scratch, tether
from swarmctl.addresses import multiaddr
from swarmctl.blocks import PeerId
from swarmctl.snapshot import PeerState
from swarmctl.store import Launch, Observation, ObservedServer, Progress, launch_from, write_json
from swarmctl.upstream.compat import import_hivemind

import_hivemind()

from hivemind.dht import DHTNode  # noqa: E402
from hivemind.p2p import PeerID  # noqa: E402

from swarmctl.upstream import patches  # noqa: E402
from swarmctl.upstream.dht import ServerRecord, block_uids, read_records  # noqa: E402
from swarmctl.upstream.liveness import Forward, forward_one_token, look, reason_of  # noqa: E402
from swarmctl.upstream.patching import applied  # noqa: E402
from swarmctl.upstream.sighting import Computed, Sighting  # noqa: E402

logger = logging.getLogger(__name__)

_ROUND_S = 1.0
# The slowest heartbeat of a server on a machine with three times as much to do as it has cores took 0.2 s.
_LOOK_TIMEOUT_S = 1.0
_FORWARD_EVERY_S = 5.0
_FORWARD_TIMEOUT_S = 5.0


@dataclass
class _Watched:
    """One server that says it is ONLINE, and what is under way to it."""

    record: ServerRecord
    sighting: Sighting = field(default_factory=Sighting)
    looking: asyncio.Task[None] | None = None
    computing: asyncio.Task[None] | None = None


class Observer:
    """Keeps the newest record of every server and what was seen of it, and writes both down."""

    def __init__(self, launch: Launch, node: DHTNode) -> None:
        self._launch = launch
        self._node = node
        self._uids = block_uids(launch.dht_prefix, launch.num_blocks)
        self._records: tuple[ServerRecord, ...] = ()
        self._first_seen: dict[PeerId, tuple[float, float]] = {}
        self._watched: dict[PeerId, _Watched] = {}

    async def read(self) -> None:
        """Read what servers announce, and write it down."""
        self._records = await asyncio.wait_for(read_records(self._node, self._uids), timeout=30)
        now = time.time()
        for record in self._records:
            if self._first_seen.get(record.peer, (math.nan, 0.0))[0] != record.expires_at:
                self._first_seen[record.peer] = (record.expires_at, now)
        online = {record.peer: record for record in self._records if record.state is PeerState.ONLINE}
        for peer in self._watched.keys() - online.keys():
            del self._watched[peer]
        for peer, record in online.items():
            self._watched.setdefault(peer, _Watched(record=record)).record = record
        self._write()

    async def watch(self) -> None:
        """Look at every server that says it is ONLINE, and ask those for a token whose turn it is."""
        for seen in self._watched.values():
            if seen.looking is None or seen.looking.done():
                seen.looking = asyncio.create_task(self._look(seen))
            if (seen.computing is None or seen.computing.done()) and self._is_due(seen.sighting):
                seen.computing = asyncio.create_task(self._compute(seen))

    def _is_due(self, sighting: Sighting) -> bool:
        last = sighting.computed
        # A server that failed is asked in every round, so that its return shows at once.
        return last is None or last.reason is not None or time.time() - last.at >= _FORWARD_EVERY_S

    async def _look(self, seen: _Watched) -> None:
        life = await look(self._node.p2p, PeerID.from_base58(seen.record.peer), within_s=_LOOK_TIMEOUT_S)
        self._saw(seen, seen.sighting.after_look(life, time.time()))

    async def _compute(self, seen: _Watched) -> None:
        record, begun = seen.record, time.perf_counter()
        forward = Forward(
            uid=self._uids[record.blocks.start], hidden_size=self._launch.hidden_size, dtype=record.torch_dtype
        )
        try:
            asking = forward_one_token(self._node.p2p, PeerID.from_base58(record.peer), forward)
            await asyncio.wait_for(asking, _FORWARD_TIMEOUT_S)
            done = Computed(at=time.time(), took_ms=(time.perf_counter() - begun) * 1e3)
        except Exception as error:  # noqa: BLE001 - whatever a server answers, it is a finding, not our failure
            late = isinstance(error, asyncio.TimeoutError)
            done = Computed(at=time.time(), reason=reason_of(error, _FORWARD_TIMEOUT_S), late=late)
        self._saw(seen, seen.sighting.after_forward(done))

    def _saw(self, seen: _Watched, sighting: Sighting) -> None:
        before, after = seen.sighting.finding, sighting.finding
        seen.sighting = sighting
        # The next round would write it too, but not before it has read the DHT, which takes its time when peers die.
        if (before and before.ok) != (after and after.ok):
            self._write()

    def _write(self) -> None:
        now = time.time()
        observed = tuple(self._observed(record) for record in self._records if record.expires_at > now)
        observation = Observation(observer=self._launch.node, written_at=now, servers=observed)
        write_json(Path(self._launch.observed), observation)

    def _observed(self, record: ServerRecord) -> ObservedServer:
        server = ObservedServer(
            peer=record.peer,
            state=record.state.value,
            start_block=record.blocks.start,
            end_block=record.blocks.end,
            throughput=record.throughput,
            expires_at=record.expires_at,
            seen_at=self._first_seen[record.peer][1],
            inference_rps=record.inference_rps,
            cache_tokens_left=record.cache_room,
            torch_dtype=record.torch_dtype,
            quant_type=record.quant_type,
            version=record.version,
            using_relay=record.using_relay,
        )
        seen = self._watched.get(record.peer)
        if seen is None:
            return server
        server = replace(server, ours=seen.sighting.ours, graphs=seen.sighting.graphs, busy_s=seen.sighting.busy_s)
        found = seen.sighting.finding
        if found is None:
            return server
        return replace(server, probed_at=found.at, probe_ok=found.ok, probe_ms=found.took_ms, probe_reason=found.reason)


async def _repeat(act: Callable[[], Awaitable[None]]) -> None:
    """`act` once a round, whatever becomes of it."""
    while True:
        try:
            await act()
        except Exception:
            logger.exception("a round of observation failed")
        await asyncio.sleep(_ROUND_S)


def peer_arguments(launch: Launch) -> dict[str, Any]:
    """The keyword arguments of `DHTNode.create`, which hands those that it does not know to `P2P.create`."""
    return {
        "initial_peers": list(launch.initial_peers) or None,
        # A bootstrap is started before its peers are, and must come up while they are gone.
        "ensure_bootstrap_success": False,
        "num_workers": launch.num_blocks,
        "host_maddrs": [multiaddr(launch.listen_ip, launch.port)],
        "announce_maddrs": [launch.announced],
        "identity_path": launch.identity,
        "check_if_identity_free": False,
        "use_relay": False,
        "startup_timeout": 60,
    }


async def serve(launch: Launch) -> None:
    """Run the DHT peer and the observer until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    node = await DHTNode.create(**peer_arguments(launch))
    try:
        write_json(Path(launch.progress), Progress(phase="online"))
        logger.info("bootstrap peer %s is reached at %s", node.peer_id.to_base58(), launch.announced)
        observer = Observer(launch, node)
        # Side by side: reading a DHT whose peers die takes seconds, in which the others are still looked at.
        rounds = [asyncio.create_task(_repeat(act)) for act in (observer.read, observer.watch)]
        await stopped.wait()
        for each in rounds:
            each.cancel()
    finally:
        await node.shutdown()
        await node.p2p.shutdown()


def main(arguments: list[str]) -> int:
    """Entry point: `--launch FILE`."""
    parser = argparse.ArgumentParser(prog="swarmctl.upstream.bootstrap")
    parser.add_argument("--launch", required=True, type=Path)
    launch = launch_from(json.loads(parser.parse_args(arguments).launch.read_text(encoding="utf-8")))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    write_json(Path(launch.progress), Progress(phase="starting"))
    Path(launch.sockets).mkdir(parents=True, exist_ok=True, mode=0o700)
    tether.install(str(scratch.pids_file(Path(launch.sockets))))
    with applied(
        patches.daemon_dies_with_us(), patches.sockets_in(Path(launch.sockets)), patches.late_answers_are_dropped()
    ):
        asyncio.run(serve(launch))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
