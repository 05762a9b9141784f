"""One call of transformers' `generate` over a session: ids in, new ids out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swarmctl.upstream.model import ClientModel
from swarmctl.upstream.session import RecoverableSession


def generate_ids(
    opened: ClientModel,
    batch: Sequence[Sequence[int]],
    *,
    session: dict[str, Any],
    arguments: dict[str, Any],
    seed: int | None,
    streamer: Any,
) -> list[list[int]]:
    """New token ids for prompts of one length, `[batch][tokens]`.

    `session` are keyword arguments of `RecoverableSession`, `arguments` those of `generate`. `streamer` gets the
    tokens as they come; None for beam search, which has none before its end.

    Raises:
        RequestInvalid, RecoveryFailed: see `RecoverableSession.step`.
    """
    inputs = torch.tensor([list(ids) for ids in batch])
    if seed is not None:
        torch.manual_seed(seed)
    length = inputs.shape[1] + int(arguments["max_new_tokens"])
    with RecoverableSession(opened.router, length, **session) as opening, torch.inference_mode():
        output = opened.model.generate(
            inputs, session=opening, attention_mask=torch.ones_like(inputs), streamer=streamer, **arguments
        )
    return [[int(token) for token in row] for row in output[:, inputs.shape[1] :]]
