"""A client that is opened over a pretended swarm, as `connect` opens one over a real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.fakeswarm import FakeRouter
from support.toymodel import Digits, RemoteModel

from swarmctl.blocks import NodeName
from swarmctl.client.generate import Client, Connection


def a_client(router: FakeRouter, model: RemoteModel, **limits: Any) -> Client:
    """Of a model that counts in digits; `limits` are those of `Connection`."""
    connection = Connection(
        source="lab/model",
        dht_prefix="lab",
        initial_peers=("/ip4/127.0.0.1",),
        sockets=Path("/run/x"),
        names={peer: NodeName(server.name) for peer, server in router.servers.items()},
        **limits,
    )
    opened = SimpleNamespace(model=model, tokenizer=Digits(), router=router)
    # What `upstream.model.Opened` offers, without a DHT behind it.
    return Client(opened, connection)  # type: ignore[arg-type]
