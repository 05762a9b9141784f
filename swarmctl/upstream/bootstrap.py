"""The child program of a bootstrap node: a DHT peer that others join through, and that observes the swarm.

It holds the DHT anyway, so it is the cheapest place to look from. Once a second it reads what servers announce,
probes them by real work (a one-token forward through a server's first block, answered by the process that computes),
and writes `observed.json`; `status` and every judgement read that file, and need neither torch nor a peer of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from swarmctl import scratch, tether
from swarmctl.blocks import PeerId
from swarmctl.snapshot import PeerState
from swarmctl.store import Launch, Observation, ObservedServer, Progress, launch_from, write_json
from swarmctl.upstream.compat import import_hivemind

import_hivemind()

import torch  # noqa: E402
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor  # noqa: E402
from hivemind.dht import DHTNode  # noqa: E402
from hivemind.p2p import PeerID  # noqa: E402
from hivemind.proto import runtime_pb2  # noqa: E402
from hivemind.utils.serializer import MSGPackSerializer  # noqa: E402

from swarmctl.upstream import patches  # noqa: E402
from swarmctl.upstream.dht import ServerRecord, block_uids, read_records  # noqa: E402
from swarmctl.upstream.patching import applied  # noqa: E402

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_PROBE_EVERY_S = 5.0
_PROBE_TIMEOUT_S = 5.0
_FORWARD = "TransformerConnectionHandler.rpc_forward"


@dataclass(frozen=True, kw_only=True)
class _Probe:
    at: float
    ok: bool
    took_ms: float | None
    reason: str | None


class Observer:
    """Keeps the newest record and the newest probe of every server, and writes them down."""

    def __init__(self, launch: Launch, node: DHTNode) -> None:
        self._launch = launch
        self._node = node
        self._uids = block_uids(launch.dht_prefix, launch.num_blocks)
        self._first_seen: dict[PeerId, tuple[float, float]] = {}
        self._probes: dict[PeerId, _Probe] = {}
        self._probing: dict[PeerId, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """One round: read, start the probes that are due, write."""
        records = await asyncio.wait_for(read_records(self._node, self._uids), timeout=30)
        now = time.time()
        for record in records:
            if self._first_seen.get(record.peer, (math.nan, 0.0))[0] != record.expires_at:
                self._first_seen[record.peer] = (record.expires_at, now)
        for record in records:
            if record.state is PeerState.ONLINE and self._is_due(record.peer, now):
                self._probing[record.peer] = asyncio.create_task(self._probe(record))
            if record.state is not PeerState.ONLINE:
                self._probes.pop(record.peer, None)
        observed = tuple(self._observed(record) for record in records if record.expires_at > now)
        observation = Observation(observer=self._launch.node, written_at=now, servers=observed)
        write_json(Path(self._launch.observed), observation)

    def _is_due(self, peer: PeerId, now: float) -> bool:
        running = self._probing.get(peer)
        if running is not None and not running.done():
            return False
        last = self._probes.get(peer)
        # A server that failed its last probe is looked at in every round, so that its return shows at once.
        return last is None or not last.ok or now - last.at >= _PROBE_EVERY_S

    async def _probe(self, record: ServerRecord) -> None:
        begun = time.perf_counter()
        try:
            await asyncio.wait_for(self._forward_one_token(record), _PROBE_TIMEOUT_S)
            took_ms = (time.perf_counter() - begun) * 1e3
            self._probes[record.peer] = _Probe(at=time.time(), ok=True, took_ms=took_ms, reason=None)
        except asyncio.TimeoutError:
            reason = f"no answer within {_PROBE_TIMEOUT_S:g} s"
            self._probes[record.peer] = _Probe(at=time.time(), ok=False, took_ms=None, reason=reason)
        except Exception as error:  # noqa: BLE001 - whatever a server answers, it is a finding, not our failure
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            self._probes[record.peer] = _Probe(at=time.time(), ok=False, took_ms=None, reason=reason)

    async def _forward_one_token(self, record: ServerRecord) -> None:
        dtype = getattr(torch, record.torch_dtype or "float32", torch.float32)
        hidden = torch.full((1, 1, self._launch.hidden_size), 0.01, dtype=dtype)
        request = runtime_pb2.ExpertRequest(
            uid=self._uids[record.blocks.start],
            tensors=[serialize_torch_tensor(hidden), serialize_torch_tensor(torch.empty(0))],
            metadata=MSGPackSerializer.dumps({"points": 0.0, "active_adapter": ""}),
        )
        peer = PeerID.from_base58(record.peer)
        response = await self._node.p2p.call_protobuf_handler(peer, _FORWARD, request, runtime_pb2.ExpertResponse)
        output = deserialize_torch_tensor(response.tensors[0])
        if output.shape != hidden.shape:
            raise ValueError(f"answered with the shape {list(output.shape)} for {list(hidden.shape)}")
        if not torch.isfinite(output).all():
            raise ValueError("answered with values that are not finite")

    def _observed(self, record: ServerRecord) -> ObservedServer:
        probe = self._probes.get(record.peer)
        seen = ObservedServer(
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
        if probe is None:
            return seen
        return replace(seen, probed_at=probe.at, probe_ok=probe.ok, probe_ms=probe.took_ms, probe_reason=probe.reason)


async def serve(launch: Launch) -> None:
    """Run the DHT peer and the observer until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    announced = f"/ip4/{launch.announce_ip}/tcp/{launch.port}"
    # A bootstrap is started before its peers are, and must come up while they are gone.
    node = await DHTNode.create(
        initial_peers=list(launch.initial_peers) or None,
        ensure_bootstrap_success=False,
        num_workers=launch.num_blocks,
        host_maddrs=[f"/ip4/{launch.listen_ip}/tcp/{launch.port}"],
        announce_maddrs=[announced],
        identity_path=launch.identity,
        check_if_identity_free=False,
        use_relay=False,
        startup_timeout=60,
    )
    try:
        write_json(Path(launch.progress), Progress(phase="online"))
        logger.info("bootstrap peer %s listens on %s", node.peer_id.to_base58(), announced)
        observer = Observer(launch, node)
        while not stopped.is_set():
            try:
                await observer.look()
            except Exception:
                logger.exception("a round of observation failed")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopped.wait(), _LOOK_EVERY_S)
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
    with applied(patches.daemon_dies_with_us(), patches.sockets_in(Path(launch.sockets))):
        asyncio.run(serve(launch))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
