"""A session over fake servers, and beside it the truth: the same blocks in one place, which nothing happens to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from support.fakeswarm import HIDDEN, FakeRouter, FakeServer, block_outputs, peer_id, servers_of

from swarmctl.blocks import NodeName
from swarmctl.events import Event
from swarmctl.upstream.legs import SessionSettings
from swarmctl.upstream.session import RecoverableSession

QUICK = SessionSettings(connect_timeout_s=2.0, step_timeout_s=2.0, recover_timeout_s=0.2, replay_chunk_tokens=64)


class Reference:
    """All blocks, with their caches; beams and deep prompts as petals' servers treat them.

    `made`: how many numbers `inputs` has given out. Who wants the same ones again sets it back.
    """

    def __init__(self, num_blocks: int) -> None:
        self.caches: list[torch.Tensor | None] = [None] * num_blocks
        self.made = 0

    def inputs(self, tokens: int = 1, batch: int = 1) -> torch.Tensor:
        """New inputs, no two numbers alike: `[batch, tokens, HIDDEN]`."""
        count = batch * tokens * HIDDEN
        self.made += count
        return torch.arange(self.made - count, self.made, dtype=torch.float64).reshape(batch, tokens, HIDDEN)

    def step(
        self, inputs: torch.Tensor, prompts: torch.Tensor | None = None, hypo_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        hidden = inputs.double()
        for block, cache in enumerate(self.caches):
            if prompts is not None:
                prefix = prompts.shape[2]
                hidden = torch.cat([hidden[:, :prefix] + prompts[block], hidden[:, prefix:]], dim=1)
            if cache is not None:
                held = cache if hypo_ids is None else cache[hypo_ids]
                hidden = torch.cat([held, hidden], dim=1)
            self.caches[block] = hidden
            hidden = block_outputs(block, hidden)[:, -inputs.shape[1] :]
        return hidden

    def cut(self, position: int) -> None:
        """Back to an earlier position."""
        self.caches = [None if cache is None or position == 0 else cache[:, :position] for cache in self.caches]


class Bench:
    """A session over the servers of `texts` (see `servers_of`); `step` checks every answer against the truth."""

    def __init__(self, *texts: str, num_blocks: int = 6, max_length: int = 64, **options: Any) -> None:
        self.servers: dict[str, FakeServer] = {server.name: server for server in servers_of(*texts)}
        self.router = FakeRouter(list(self.servers.values()), num_blocks)
        self.events: list[Event] = []
        settings = options.pop("settings", QUICK)
        options.setdefault("sink", self.events.append)
        self.session = RecoverableSession(
            self.router,  # type: ignore[arg-type]
            max_length,
            settings=settings,
            names={peer_id(name): NodeName(name) for name in self.servers},
            **options,
        )
        self.reference = Reference(num_blocks)

    def __getitem__(self, name: str) -> FakeServer:
        return self.servers[name]

    def inputs(self, tokens: int = 1, batch: int = 1) -> torch.Tensor:
        """See `Reference`."""
        return self.reference.inputs(tokens, batch)

    def step(
        self,
        tokens: int = 1,
        *,
        batch: int = 1,
        prompts: torch.Tensor | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """A step, and its answer is right."""
        inputs = self.inputs(tokens, batch)
        hypo_ids = None if order is None else torch.tensor(order)
        answer = self.session.step(inputs, prompts, hypo_ids)
        assert torch.equal(answer, self.reference.step(inputs, prompts, hypo_ids))

    def told(self, *names: str) -> list[str]:
        """The kinds of the events so far, only those of `names` if there are any."""
        kinds = [type(event).__name__ for event in self.events]
        return [kind for kind in kinds if not names or kind in names]

    def route(self) -> list[str]:
        """`a=0:2` for each span in use."""
        return [f"{hop.node}={hop.blocks}" for hop in self.session.route]

    def seen(self, name: str) -> list[str]:
        """What a server was sent: `0+5` is five tokens into an empty cache."""
        return [f"{request.begin}+{request.tokens}" for request in self.servers[name].received]

    def forget(self) -> None:
        """Forget what was recorded so far."""
        self.events.clear()
        self.router.failures.clear()
        for server in self.servers.values():
            server.received.clear()
