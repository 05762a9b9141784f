"""petals' own client as it is installed, with eyes: the negative control of a trial.

Nothing of its behaviour is replaced. Its session is subclassed to tell what it does, and its queues to tell when a
request has been written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hivemind.p2p import PeerID
from petals.client.inference_session import InferenceSession

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.events import Hop
from swarmctl.upstream.model import ClientModel


@dataclass(frozen=True, kw_only=True)
class Eyes:
    """What is told. `left(hop, position, replay)`: a request was written; on hivemind's event loop.

    `routed(was, route)`: a route was chosen, or, with the span that is replaced, changed. `stepped(position, tokens,
    batch)`: a step is done. `chosen(ids)`: a token a sequence; not in beam search.
    """

    left: Callable[[Hop, int, bool], None]
    routed: Callable[[Hop | None, tuple[Hop, ...]], None]
    stepped: Callable[[int, int, int], None]
    chosen: Callable[[tuple[int, ...]], None]


class StockSession:
    """A session of petals' own for several calls; a context."""

    def __init__(self, opened: ClientModel, max_length: int, names: Mapping[PeerId, NodeName], eyes: Eyes) -> None:
        self._opened = opened
        self._eyes = eyes
        self._stops = _stops(opened.model)
        pad = opened.tokenizer.pad_token_id
        self._pad = int(pad if pad is not None else next(iter(self._stops), 0))
        self._session = _Watched(opened.router, max_length, names, eyes)

    def __enter__(self) -> StockSession:
        self._session.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._session.__exit__(*error)

    def say(
        self, ids: Sequence[Sequence[int]], arguments: Mapping[str, Any], *, seed: int | None
    ) -> list[tuple[int, ...]]:
        """Add `ids: [batch][tokens]` and generate: the new tokens of each sequence, up to its stop.

        `arguments` are those of transformers' `generate`; `seed` is torch's, for one that draws.

        Raises:
            Exception: whatever petals makes of what happens to it.
        """
        said = torch.tensor([list(row) for row in ids])
        before = 0 if self._session.output_ids is None else self._session.output_ids.shape[1]
        whole = before + said.shape[1]
        if seed is not None:
            torch.manual_seed(seed)
        beams = arguments.get("num_beams", 1) > 1
        with torch.inference_mode():
            output = self._opened.model.generate(
                said,
                session=self._session,
                attention_mask=torch.ones(said.shape[0], whole, dtype=torch.int64),
                pad_token_id=self._pad,
                streamer=None if beams else _Streamer(self._eyes.chosen),
                **arguments,
            )
        return [self._until_stop(row) for row in output[:, said.shape[1] :].tolist()]

    def _until_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        end = next((at + 1 for at, token in enumerate(ids) if token in self._stops), len(ids))
        return tuple(ids[:end])


def admit(opened: ClientModel, peers: Collection[PeerId]) -> None:
    """Let petals' client use these servers and no others from its next look at the DHT on, which begins now."""
    manager: Any = opened.router
    manager.allowed_servers = {PeerID.from_base58(peer) for peer in peers}
    manager.update(wait=False)


def _stops(model: Any) -> frozenset[int]:
    given = getattr(model.generation_config, "eos_token_id", None) or model.config.eos_token_id
    return frozenset([given] if isinstance(given, int) else given or [])


class _Watched(InferenceSession):
    def __init__(self, manager: Any, max_length: int, names: Mapping[PeerId, NodeName], eyes: Eyes) -> None:
        super().__init__(manager, max_length)
        self._names = names
        self._eyes = eyes

    def step(self, inputs: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        outputs = super().step(inputs, *arguments, **named)
        self._eyes.stepped(self.position, inputs.shape[1], inputs.shape[0])
        return outputs

    def _update_sequence(self, server_idx: int, *arguments: Any) -> Any:
        lost = self._hop(self._server_sessions[server_idx].span) if self._server_sessions else None
        result = super()._update_sequence(server_idx, *arguments)
        self._eyes.routed(lost, tuple(self._hop(one.span) for one in self._server_sessions))
        return result

    def _enter_server_sessions(self, chosen_spans: list[Any]) -> list[Any]:
        sessions = super()._enter_server_sessions(chosen_spans)
        for one in sessions:
            _watch(one._inputs_queue, partial(self._left, one))
        return sessions

    def _left(self, one: Any) -> None:
        self._eyes.left(self._hop(one.span), one._position, one._position == 0 and self._position > 0)

    def _hop(self, span: Any) -> Hop:
        peer = PeerId(span.peer_id.to_base58())
        return Hop(blocks=BlockRange(span.start, span.end), peer=peer, node=self._names.get(peer))


def _watch(queue: Any, left: Callable[[], None]) -> None:
    """Call `left` when a message of the queue has been written: hivemind takes the next one only then."""
    put, get = queue.put, queue.get
    added = told = 0

    async def put_and_count(message: Any) -> None:
        nonlocal added
        # The empty message, which ends a session, is no request.
        added += bool(message.uid)
        await put(message)

    async def get_and_tell() -> Any:
        nonlocal told
        if added - queue.qsize() > told:
            told += 1
            left()
        return await get()

    queue.put, queue.get = put_and_count, get_and_tell


class _Streamer:
    """transformers': the prompt first, then a token a sequence and step."""

    def __init__(self, chosen: Callable[[tuple[int, ...]], None]) -> None:
        self._chosen = chosen
        self._began = False

    def put(self, value: torch.Tensor) -> None:
        if self._began:
            self._chosen(tuple(int(token) for token in value.reshape(-1)))
        self._began = True

    def end(self) -> None:
        return
