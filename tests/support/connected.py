"""A client of a live swarm that keeps the history of each generation, and what its tokens are compared with."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from support.eventually import eventually
from support.history import History
from support.swarm import LiveSwarm
from transformers import AutoModelForCausalLM

from swarmctl.blocks import NodeName
from swarmctl.client.connect import address_of
from swarmctl.client.generate import Client, Connection, Listener, Sampling
from swarmctl.events import Event, FaultInjected, Hop, TokensEmitted
from swarmctl.operations import generate as generating
from swarmctl.operations.drill import parse_kill
from swarmctl.operations.kill import kill
from swarmctl.upstream.model import ClientModel, open_model


class Strike:
    """SIGKILLs a server while a request is under way, once: at the first request that `when` is true of.

    `when` gets the hop, the request's first position, and whether it is a replay. `whom` names the server; without
    it, it is the one that the request went to.
    """

    def __init__(
        self,
        swarm: LiveSwarm,
        when: Callable[[Hop, int, bool], bool],
        *,
        whom: Callable[[], NodeName | None] | None = None,
    ) -> None:
        self.victim: NodeName | None = None
        self._swarm = swarm
        self._when = when
        self._whom = whom

    def __call__(self, hop: Hop, position: int, replay: bool) -> None:
        if self.victim is not None or not self._when(hop, position, replay):
            return
        self.victim = self._whom() if self._whom is not None else hop.node
        assert self.victim is not None
        self._swarm.doomed.add(self.victim)
        kill(self._swarm.site, self.victim, sink=lambda _event: None, wait=False)


class LocalModel:
    """The whole checkpoint in this process, by transformers alone; loaded once, because that takes seconds."""

    def __init__(self, source: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._model = AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.float32)
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def generate(self, ids: Sequence[int], tokens: int, num_beams: int = 1) -> tuple[int, ...]:
        """The new tokens after `ids`."""
        asked = (tuple(ids), tokens, num_beams)
        if asked not in self._known:
            inputs = torch.tensor([list(ids)])
            limits = {"max_new_tokens": tokens, "num_beams": num_beams, "do_sample": False, "pad_token_id": 0}
            output = self._model.generate(inputs, attention_mask=torch.ones_like(inputs), **limits)
            self._known[asked] = tuple(output[0, len(ids) :].tolist())
        return self._known[asked]


@dataclass
class ConnectedClient:
    """A client of a live swarm. `histories`: what it has done in the running test."""

    swarm: LiveSwarm
    opened: ClientModel
    connection: Connection
    reference: LocalModel
    histories: list[History] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """The product's client on this connection."""
        return Client(self.opened, self.connection)

    def limited(self, **limits: float) -> ConnectedClient:
        """The same client with other limits of `swarmctl.spec.ClientSpec`."""
        return replace(self, connection=replace(self.connection, **limits))

    def generate(
        self,
        *prompts: str,
        tokens: int = 24,
        kills: Sequence[str] = (),
        between: Mapping[int, Callable[[], object]] | None = None,
        on_event: Callable[[Event], object] = lambda _event: None,
        request: Callable[[Hop, int, bool], None] | None = None,
        **sampling: float,
    ) -> History:
        """Continue the prompts, and keep the history, also of a generation that fails.

        `kills` are drills as on the command line (`first@10`). `between`: what to do when so many tokens have come
        and the next step has not begun. `request` sees each request that has left, in place of the drills.
        """
        history = History(about=f"{prompts} {tokens} tokens, kills {list(kills)}, {sampling}")
        self.histories.append(history)
        due = dict(between or {})

        def sink(event: Event) -> None:
            history.events.append(event)
            on_event(event)
            if isinstance(event, FaultInjected):
                self.swarm.doomed.add(event.node)
            if isinstance(event, TokensEmitted) and event.index + 1 in due:
                due.pop(event.index + 1)()

        chosen = Sampling(max_new_tokens=tokens, **sampling)
        try:
            if request is not None:
                done = self.client.generate(prompts, chosen, listener=Listener(sink=sink, request=request))
            else:
                drills = tuple(parse_kill(text, self.swarm.nodes) for text in kills)
                asked = generating.GenerateRequest(prompts=prompts, sampling=chosen, kills=drills)
                result = generating.generate(self.swarm.site, self.client, asked, sink=sink)
                assert not result.missed, f"these drills never came: {result.missed}"
                done = result.generations
        except Exception as error:
            history.error = str(error)
            raise
        assert not due, f"the generation ended before {sorted(due)} tokens"
        history.ids = tuple(one.ids for one in done)
        return history

    def locally(self, *prompts: str, tokens: int = 24, num_beams: int = 1) -> tuple[tuple[int, ...], ...]:
        """What transformers alone makes of each prompt, from the same checkpoint."""
        encoded = [self.client.encode(prompt, chat=False) for prompt in prompts]
        return tuple(self.reference.generate(ids, tokens, num_beams) for ids in encoded)

    def banned(self) -> set[NodeName | None]:
        """The nodes that this client leaves alone at this moment."""
        return {self.connection.names.get(peer) for peer in self.opened.router.bans.banned(time.monotonic())}

    def steer(self, node: str) -> None:
        """Let the next route begin with this node: the others of its blocks are left alone, as after a failure.

        Which of two servers is nearer is a matter of milliseconds, and a test that kills by name must not depend on it.
        """
        mine = self.swarm.site.spec.nodes[NodeName(node)].blocks
        for peer, name in self.connection.names.items():
            if name != node and self.swarm.site.spec.nodes[name].blocks.intersection(mine) is not None:
                self.opened.router.bans.record_failure(peer, time.monotonic(), "lost")

    def ready(self, *names: str) -> None:
        """As `LiveSwarm.ready`; then wait until this client would use these nodes, whatever it has seen of them."""
        self.swarm.ready(*names)
        wanted = set(names or self.swarm.nodes)
        for peer, name in self.connection.names.items():
            if name in wanted:
                self.opened.router.bans.record_success(peer)

        def look() -> None:
            self.opened.router.refresh(timeout_s=2.0)
            known = {self.connection.names[record.peer]: record.state.value for record in self.opened.router.records()}
            assert {name for name, state in known.items() if state == "ONLINE"} >= wanted, f"it knows {known}"
            # A server that was down counts as far away until it is pinged again, and routes would avoid it.
            pings = {
                self.connection.names.get(peer.to_base58()): rtt
                for peer, rtt in self.opened.router.ping_aggregator.to_dict().items()
            }
            assert all(math.isfinite(pings.get(name, 0.0)) for name in wanted), f"its pings are {pings}"

        eventually(look, within_s=30)


@contextmanager
def connected_client(swarm: LiveSwarm) -> Iterator[ConnectedClient]:
    """A client that is connected as the program's own is."""
    connection = generating.connection_to(swarm.site, swarm.snapshot())
    with open_model(address_of(connection)) as opened:
        reference = LocalModel(swarm.site.spec.model.source)
        yield ConnectedClient(swarm=swarm, opened=opened, connection=connection, reference=reference)
