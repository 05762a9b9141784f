"""What a session lets its owner see, and lose, while a step runs: for drills, trials and recordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarmctl.events import Hop


def _nothing(_hop: Hop, _position: int, _replay: bool) -> None:
    return


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Each is called in the course of a step; what it raises is raised by the step, but for `answer`'s losses.

    `request(hop, position, replay)`: a request has left and is not answered; on hivemind's event loop, while the
    session's thread waits. `answer(hop, position, replay)`: its answer has come; on the session's thread; a
    `ConnectionError` raised by it stands for an answer that was lost on its way. `output(hidden)`: a step is
    committed; the hidden states after the last block, `[batch, tokens, hidden_size]`, not to be changed.
    """

    request: Callable[[Hop, int, bool], None] = _nothing
    answer: Callable[[Hop, int, bool], None] = _nothing
    output: Callable[[torch.Tensor], None] = lambda _hidden: None
