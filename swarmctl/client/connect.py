"""Opens and closes a client of a swarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from swarmctl.client.generate import Client, Connection

if TYPE_CHECKING:
    from swarmctl.upstream.model import SwarmAddress


@contextmanager
def connect(connection: Connection) -> Iterator[Client]:
    """A connected client; on leaving, its libp2p daemon, DHT process and sockets are gone.

    Raises:
        UpstreamMissing, UpstreamDrift: petals is not there, or not one this version was verified with.
        UsageError: no bootstrap peer is known.
    """
    from swarmctl.upstream.model import open_model

    with open_model(address_of(connection)) as opened:
        yield Client(opened, connection)


def address_of(connection: Connection) -> SwarmAddress:
    """What of a connection `upstream.model.open_model` must know."""
    from swarmctl.upstream.model import SwarmAddress

    return SwarmAddress(
        source=connection.source,
        dht_prefix=connection.dht_prefix,
        initial_peers=connection.initial_peers,
        sockets=connection.sockets,
        roster=None if connection.allow_strangers else connection.names,
        revision=connection.revision,
        connect_timeout_s=connection.connect_timeout_s,
        request_timeout_s=connection.step_timeout_s,
        update_period_s=connection.update_period_s,
        torch_dtype=connection.torch_dtype,
    )
