"""Generating text through a running swarm, with drills."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from swarmctl import scratch
from swarmctl.blocks import NodeName, PeerId
from swarmctl.client.connect import connect
from swarmctl.client.generate import Client, Connection, Generation, Listener, Sampling
from swarmctl.client.story import Story, tell
from swarmctl.errors import UsageError
from swarmctl.events import Event, EventSink
from swarmctl.operations.drill import Drill, Kill
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """What to generate. `kills` are drills: nodes that are crashed on the way."""

    prompts: tuple[str, ...]
    sampling: Sampling
    chat: bool = False
    kills: tuple[Kill, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """What came out, and what happened. `missed`: drills whose moment never came."""

    generations: tuple[Generation, ...]
    story: Story
    missed: tuple[Kill, ...] = ()


def run(
    site: Site,
    request: GenerateRequest,
    *,
    sink: EventSink = lambda _event: None,
    text: Callable[[int, str], None] = lambda _index, _piece: None,
) -> GenerateResult:
    """Connect, generate, disconnect. `text` gets (prompt index, piece) as it comes.

    Raises:
        UsageError: no bootstrap peer runs. RequestInvalid: the request itself is wrong.
        RecoveryFailed: no server took a lost span over within the recover timeout; its context has, as `accepted`, the
            tokens and the text that had come out for each prompt.
    """
    with connected(site) as client:
        return generate(site, client, request, sink=sink, text=text)


def generate(
    site: Site,
    client: Client,
    request: GenerateRequest,
    *,
    sink: EventSink = lambda _event: None,
    text: Callable[[int, str], None] = lambda _index, _piece: None,
) -> GenerateResult:
    """As `run`, with a client that is connected already."""
    began = site.clock.monotonic()
    seen: list[Event] = []

    def note(event: Event) -> None:
        # One clock for the whole run: sessions and drills each know only their own beginning.
        event = replace(event, at_s=site.clock.monotonic() - began)
        seen.append(event)
        drill.note(event)
        sink(event)

    drill = Drill(site, request.kills, note)
    listener = Listener(sink=note, text=text, request=drill.on_request if request.kills else None)
    generations = client.generate(request.prompts, request.sampling, chat=request.chat, listener=listener)
    return GenerateResult(generations=generations, story=tell(seen), missed=drill.missed)


@contextmanager
def connected(site: Site) -> Iterator[Client]:
    """A client of the site's swarm."""
    scratch.sweep_clients(site.layout.run)
    with connect(connection_to(site, read_snapshot(site))) as client:
        yield client


def connection_to(site: Site, snapshot: Snapshot) -> Connection:
    """How a client reaches the swarm that `snapshot` shows.

    Raises:
        UsageError: when no bootstrap peer runs.
    """
    addresses = tuple(at for peer in snapshot.bootstraps if peer.process.running for at in peer.addresses)
    # A host that does not let operators in may still let clients in.
    addresses = addresses or tuple(at for peer in snapshot.bootstraps for at in peer.addresses)
    if not addresses:
        raise UsageError(
            f"no bootstrap peer of swarm {site.spec.name} runs, so there is no way into it", hints=["swarmctl up"]
        )
    limits, model = site.spec.client, site.spec.model
    return Connection(
        source=model.source,
        revision=model.revision,
        dht_prefix=model.dht_prefix,
        initial_peers=addresses,
        sockets=site.layout.run / f"client-{os.getpid()}",
        names=names_of(snapshot),
        allow_strangers=limits.allow_strangers,
        connect_timeout_s=limits.connect_timeout_s,
        step_timeout_s=limits.step_timeout_s,
        recover_timeout_s=limits.recover_timeout_s,
        alloc_timeout_s=limits.alloc_timeout_s,
        suspect_after_s=limits.suspect_after_s,
        max_length=limits.max_length,
        update_period_s=limits.update_period_s,
        replay_chunk_tokens=limits.replay_chunk_tokens,
    )


def names_of(snapshot: Snapshot) -> dict[PeerId, NodeName]:
    """The declared servers' peer ids and names; also of those that are down, for they may come back."""
    return {node.peer: node.name for node in snapshot.nodes if node.peer is not None}


def split_prompts(arguments: Sequence[str], standard_input: str | None) -> tuple[str, ...]:
    """The prompts of a command line; `-` stands for what came in on standard input.

    Raises:
        UsageError: when there is none.
    """
    prompts = tuple((standard_input or "").rstrip("\n") if word == "-" else word for word in arguments)
    if not prompts and standard_input:
        prompts = (standard_input.rstrip("\n"),)
    if not prompts:
        raise UsageError("there is no prompt", hints=['swarmctl generate "The capital of France is"'])
    return prompts
