"""Sessions that take a server's attention cache and do nothing with it."""

from __future__ import annotations

import torch

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.upstream.router import Router
from swarmctl.upstream.session import RecoverableSession


class Occupant:
    """Holds `cache_tokens` of each of one server's blocks until it is closed; a session has `max_length` at most.

    `router` is the client's; whom that one may ask plays no part here.

    Raises:
        RecoveryFailed: when the server has no room for it.
    """

    def __init__(
        self,
        router: Router,
        peer: PeerId,
        node: NodeName,
        blocks: BlockRange,
        *,
        hidden_size: int,
        cache_tokens: int,
        max_length: int,
    ) -> None:
        self._sessions: list[RecoverableSession] = []
        self._part = router[blocks.start : blocks.end]
        self._part.roster = {peer: node}
        whole, rest = divmod(cache_tokens, max_length)
        try:
            for batch, length in ((whole, max_length), (1, rest)):
                if batch and length:
                    self._hold(batch, length, hidden_size)
        except BaseException:
            self.close()
            raise

    def _hold(self, batch: int, length: int, hidden_size: int) -> None:
        session = RecoverableSession(self._part, length)
        self._sessions.append(session)
        with torch.inference_mode():
            session.step(torch.zeros(batch, 1, hidden_size))

    def close(self) -> None:
        """Let go of the cache; may be called twice."""
        while self._sessions:
            self._sessions.pop().close()
        self._part.shutdown()
