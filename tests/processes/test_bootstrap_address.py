"""Where a bootstrap peer is reached, with libp2p's real daemon: by a name, and behind something that forwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmctl.upstream.compat import import_hivemind

import_hivemind()

from hivemind.dht import DHTNode  # noqa: E402
from hivemind.utils import get_dht_time  # noqa: E402

from swarmctl.ports import choose  # noqa: E402
from swarmctl.store import Launch  # noqa: E402
from swarmctl.upstream.bootstrap import peer_arguments  # noqa: E402
from swarmctl.upstream.identity import ensure_identity  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


def a_launch(folder: Path, name: str, port: int, *peers: str, **changes: object) -> Launch:
    """A bootstrap peer on the loopback whose host the file knows by the name `localhost`."""
    key = folder / name / "identity.key"
    key.parent.mkdir()
    values: dict[str, object] = {
        "kind": "bootstrap",
        "swarm": "lab",
        "node": name,
        "peer": ensure_identity(key),
        "port": port,
        "listen_ip": "127.0.0.1",
        "announce_ip": "localhost",
        "initial_peers": peers,
        "identity": str(key),
        "sockets": "",
        "progress": "",
        "observed": "",
        "model_source": "/models/tiny",
        "dht_prefix": "tiny",
        "num_blocks": 2,
        "hidden_size": 64,
    }
    return Launch(**{**values, **changes})  # type: ignore[arg-type]


def test_peers_join_and_find_each_other_by_the_names_that_are_announced(tmp_path: Path) -> None:
    async def play() -> tuple[list[str], object]:
        ports = choose("127.0.0.1", (0, 0))
        first = a_launch(tmp_path, "first", ports[0])
        second = a_launch(tmp_path, "second", ports[1], first.address)
        nodes = [await DHTNode.create(**peer_arguments(launch)) for launch in (first, second)]
        try:
            # One that was told of the first alone, and so learns the second's address from it.
            nodes.append(await DHTNode.create(initial_peers=[first.address], client_mode=True, use_relay=False))
            visible = [str(address) for node in nodes[:2] for address in await node.get_visible_maddrs()]
            await nodes[1].store("key", b"value", get_dht_time() + 30)
            found = await nodes[2].get("key")
            assert await nodes[2].protocol.call_ping(nodes[1].peer_id) is not None
            return visible, found and found.value
        finally:
            for node in nodes:
                await node.shutdown()
                await node.p2p.shutdown()

    visible, value = asyncio.run(play())

    assert [address.split("/")[1:3] for address in visible] == [["dns4", "localhost"]] * 2
    assert value == b"value"


def test_a_bootstrap_peer_tells_others_what_forwards_to_it_and_not_where_it_listens(tmp_path: Path) -> None:
    launch = a_launch(tmp_path, "boot", 31337, announce_ip="203.0.113.5", announce_port=4000, listen_ip="0.0.0.0")

    arguments = peer_arguments(launch)

    assert arguments["host_maddrs"] == ["/ip4/0.0.0.0/tcp/31337"]
    assert arguments["announce_maddrs"] == ["/ip4/203.0.113.5/tcp/4000"]
    assert launch.address == f"/ip4/203.0.113.5/tcp/4000/p2p/{launch.peer}"
