"""What libp2p's real daemon says of a peer that is gone: why, and then for seconds only that it does not try."""

from __future__ import annotations

import asyncio

import pytest

from swarmctl.upstream.compat import import_hivemind

import_hivemind()

from hivemind.p2p import P2P  # noqa: E402
from hivemind.proto import dht_pb2  # noqa: E402

from swarmctl.recovery import FailureKind  # noqa: E402
from swarmctl.upstream.failures import classify  # noqa: E402
from swarmctl.upstream.liveness import PING  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


def test_a_dead_peer_is_undialled_when_a_dial_has_failed_a_moment_ago() -> None:
    async def play() -> tuple[FailureKind, FailureKind]:
        server = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        client = await P2P.create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=list(map(str, await server.get_visible_maddrs()))
        )
        try:
            await server.shutdown()
            # The connection that was open is noticed to be gone before somebody has to dial.
            while any(peer.peer_id == server.peer_id for peer in await client.list_peers()):
                await asyncio.sleep(0.01)
            return await call(client, server), await call(client, server)
        finally:
            await client.shutdown()

    async def call(client: P2P, server: P2P) -> FailureKind:
        with pytest.raises(Exception, match="dial") as caught:
            await client.call_protobuf_handler(server.peer_id, PING, dht_pb2.PingRequest(), dht_pb2.PingResponse)
        return classify(caught.value).kind

    first, second = asyncio.run(play())

    # The daemon dials its own bootstrap peer again when it has lost it, which may come before the first call.
    assert first in (FailureKind.LOST, FailureKind.UNDIALLED)
    assert second is FailureKind.UNDIALLED
