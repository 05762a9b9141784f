"""The product's router over a DHT without a process, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from petals.client.config import ClientConfig
from petals.client.routing.sequence_manager import SequenceManagerState
from support.eventually import eventually
from support.fakedht import FakeDht
from support.fakeswarm import PREFIX, peer_id

from swarmctl.blocks import BlockRange
from swarmctl.routing import NoRoute
from swarmctl.upstream.router import Router

LIMIT_S = 10.0
ALL = BlockRange(0, 6)
NAMES = ("a", "b", "c", "d", "stranger")


def three_servers() -> FakeDht:
    """`a` and `b` have the first three blocks, `a` is the faster one; `c` has the others."""
    dht = FakeDht()
    dht.announce("a", "0:3", expires=100.0, inference_rps=500.0)
    dht.announce("b", "0:3", expires=100.0, inference_rps=100.0)
    dht.announce("c", "3:6", expires=100.0)
    return dht


@contextmanager
def routers_over(dht: FakeDht) -> Iterator[Callable[..., Router]]:
    """Makes routers that have read nothing yet; they end with the block."""
    made: list[Router] = []

    def make(**options: Any) -> Router:
        config = ClientConfig(initial_peers=(), dht_prefix=PREFIX, update_period=3600)
        uids = tuple(f"{PREFIX}.{block}" for block in range(6))
        made.append(Router(config, uids, dht=dht, state=SequenceManagerState(p2p=object()), **options))
        return made[-1]

    try:
        yield make
    finally:
        for router in made:
            router.shutdown()


def read_again(router: Router) -> None:
    """A refresh, and its pings."""
    rounds = router._pings.rounds
    assert router.refresh(timeout_s=LIMIT_S)

    def pinged() -> None:
        assert router._pings.rounds > rounds

    eventually(pinged, within_s=LIMIT_S, every_s=0.001)
    router._pings.stop(within_s=LIMIT_S)


def route(router: Router, need: BlockRange = ALL, **options: Any) -> str:
    """`a=0:3 c=3:6`, or `none` and what is missing."""
    found = router.route(need, avoid=frozenset(), cache_tokens=options.pop("cache_tokens", 0), **options)
    if isinstance(found, NoRoute):
        return " ".join(["none", *map(str, found.missing)])
    names = {peer_id(name): name for name in NAMES}
    return " ".join(f"{names[peer]}={blocks}" for peer, blocks in found.hops)
