"""The child program of a block server: petals' own server, with the settings that recovery and truth need.

Differences to `petals.cli.run_server`: never the public swarm, no version check, no speed test, no search for relays;
SIGTERM and SIGINT announce OFFLINE before leaving; compute throughput is measured here and announced; steps of any
batch size are computed; how far loading is, is written to `progress.json`, and whether all is well to `health.json`;
the process that computes answers a heartbeat.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from swarmctl import __version__, scratch, tether
from swarmctl.addresses import multiaddr
from swarmctl.spec import ServerSettings
from swarmctl.store import Launch, Progress, health_beside, launch_from, write_json

logger = logging.getLogger(__name__)

# petals assumes a 100 Mbit/s link where it cannot measure one; a private swarm's links are not what limits it.
_NETWORK_RPS = 1e9
# Servers that start together disturb each other: the best of a few short runs is what the card can do.
_MEASURED_STEPS = 10
_MEASURED_RUNS = 3


class StopRequested(BaseException):
    """SIGTERM or SIGINT arrived; unwinds petals' loop, whose `finally` announces OFFLINE."""


def _stop(_signum: int, _frame: FrameType | None) -> None:
    # Once is enough: a second signal must not interrupt the announcement.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise StopRequested


def server_arguments(launch: Launch, settings: ServerSettings) -> dict[str, Any]:
    """The keyword arguments of `petals.server.server.Server`; every one of them is a decision.

    Raises:
        ValueError: without initial peers, which petals would take for the public swarm.
    """
    if not launch.initial_peers:
        raise ValueError("a block server needs a bootstrap peer to join through")
    import torch
    from hivemind.proto.runtime_pb2 import CompressionType
    from petals.utils.convert_block import QuantType

    return {
        "initial_peers": list(launch.initial_peers),
        "dht_prefix": launch.dht_prefix,
        "converted_model_name_or_path": launch.model_source,
        "revision": launch.revision,
        "public_name": launch.node,
        # A fixed range: petals then neither balances itself nor asks the DHT for its place.
        "block_indices": str(launch.block_range),
        "throughput": 1.0 if settings.throughput is None else settings.throughput,
        "num_handlers": settings.num_handlers,
        "attn_cache_tokens": settings.attn_cache_tokens,
        "inference_max_length": settings.inference_max_length,
        "max_batch_size": settings.max_batch_size,
        "torch_dtype": settings.torch_dtype,
        "quant_type": QuantType[settings.quant.upper()],
        "device": settings.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "compression": CompressionType.NONE,
        "update_period": settings.update_period_s,
        "expiration": 2 * settings.update_period_s + 3,  # 3 s: the clock difference that the DHT tolerates
        "step_timeout": settings.step_timeout_s,
        "session_timeout": settings.session_timeout_s,
        # Health is checked at random moments, on average once in this time.
        "mean_balance_check_period": 5,
        "reachable_via_relay": False,  # given, so that no throw-away peer is started to find out
        "use_relay": False,
        "use_auto_relay": False,
        "skip_reachability_check": True,
        "identity_path": launch.identity,
        "check_if_identity_free": False,  # the runner's lock on the node already says so
        "host_maddrs": [multiaddr(launch.listen_ip, launch.port)],
        "announce_maddrs": [launch.announced],
        "startup_timeout": 60,
    }


def announce_measured_throughput(server: Any, settings: ServerSettings) -> None:
    """Fill the announced record with this node's compute speed, tokens per second through one block.

    Without it every client takes 300 for every server, and routes ignore slow cards.
    """
    from petals.server.throughput import measure_compute_rps

    def run(*, inference: bool, n_tokens: int, n_steps: int) -> float:
        return float(
            measure_compute_rps(
                server.block_config,
                server.device,
                server.torch_dtype,
                quant_type=server.quant_type,
                tensor_parallel_devices=server.tensor_parallel_devices,
                n_tokens=n_tokens,
                n_steps=n_steps,
                inference=inference,
            )
        )

    def measure(*, inference: bool, n_tokens: int, n_steps: int) -> float:
        return max(run(inference=inference, n_tokens=n_tokens, n_steps=n_steps) for _ in range(_MEASURED_RUNS))

    info = server.server_info
    info.inference_rps = measure(inference=True, n_tokens=1, n_steps=_MEASURED_STEPS)
    info.forward_rps = measure(inference=False, n_tokens=64, n_steps=3)
    info.network_rps = _NETWORK_RPS
    # A request uses on average this many of the server's blocks (petals' own reckoning).
    info.throughput = settings.throughput or info.forward_rps / ((server.num_blocks + 1) / 2)


def serve(launch: Launch) -> None:
    """Load the blocks and serve them until a signal; returns after OFFLINE is announced."""
    from swarmctl.upstream.compat import import_petals

    import_petals()
    import torch
    from petals.server.server import Server

    from swarmctl.upstream import graphs, health, heartbeat, patches
    from swarmctl.upstream.dht import block_uids
    from swarmctl.upstream.membership import Membership
    from swarmctl.upstream.patching import applied

    settings = ServerSettings(**(launch.settings or {}))
    if settings.quant == "none":
        with applied(patches.nothing_is_compiled()):
            importlib.import_module("bitsandbytes")  # petals does it for every server
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    progress = Path(launch.progress)
    total = len(launch.block_range)

    def loaded(count: int) -> None:
        write_json(progress, Progress(phase="joining" if count >= total else "loading", done=count, total=total))

    meter = heartbeat.TaskMeter()
    mode = "by-shape" if settings.cuda_graphs else "eager"
    with applied(
        patches.daemon_dies_with_us(),
        patches.sockets_in(Path(launch.sockets)),
        patches.late_answers_are_dropped(),
        patches.blocks_are_counted(loaded),
        patches.tasks_are_timed(meter.task),
        *patches.graphs_fit_every_batch(graphs.by_shape() if settings.cuda_graphs else graphs.eager),
    ):
        server = Server(**server_arguments(launch, settings))
        try:
            if settings.throughput is None:
                announce_measured_throughput(server, settings)
            write_json(progress, Progress(phase="loading", done=0, total=total))
            threading.Thread(target=_say_when_online, args=(server, progress, total), daemon=True).start()
            own_uid = block_uids(launch.dht_prefix, launch.num_blocks)[launch.block_range.start]
            place = Membership(server.dht, launch.initial_peers, uid=own_uid, every_s=settings.update_period_s)
            watch = health.Watch(server, meter, place, health_beside(progress))
            # petals makes a new container when a process of the old one has crashed.
            with (
                heartbeat.answering(
                    server.dht,
                    lambda: heartbeat.beat_of(server.module_container, meter, version=__version__, graphs=mode),
                ),
                watch.running(),
            ):
                server.run()
        finally:
            server.shutdown()


def _say_when_online(server: Any, progress: Path, total: int) -> None:
    """Write `online` when the server takes requests; petals has no hook for that moment."""
    while not server.stop.wait(0.2):
        container = server.module_container
        if container is not None and container.ready.is_set():
            write_json(progress, Progress(phase="online", done=total, total=total))
            return


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    # petals logs every one-token forward, and the bootstrap peers make one every few seconds to see whether it lives.
    return not (record.levelno <= logging.INFO and record.getMessage().startswith("rpc_forward("))


def main(arguments: list[str]) -> int:
    """Entry point: `--launch FILE`."""
    parser = argparse.ArgumentParser(prog="swarmctl.upstream.server")
    parser.add_argument("--launch", required=True, type=Path)
    launch = launch_from(json.loads(parser.parse_args(arguments).launch.read_text(encoding="utf-8")))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_worth_a_line)
    write_json(Path(launch.progress), Progress(phase="starting"))
    Path(launch.sockets).mkdir(parents=True, exist_ok=True, mode=0o700)
    tether.install(str(scratch.pids_file(Path(launch.sockets))))
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        serve(launch)
    except StopRequested:
        logger.info("stopped on request")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
