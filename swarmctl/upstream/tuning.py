"""Deep prompts on a loaded model: petals' own prompt tuning, with made-up prompts, for as long as it is wanted.

A model of petals' reads from its configuration whether it adds prompts, and petals makes them when the model is loaded.
Here a loaded one is switched, so that one connection serves sessions with prompts and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from swarmctl.upstream.model import ClientModel

_PARTS = ("prompt_embeddings", "intermediate_prompt_embeddings", "pre_seq_len", "prefix_tokens")


@contextmanager
def deep_prompts(opened: ClientModel, *, positions: int, seed: int = 0) -> Iterator[None]:
    """Each new session of the model begins with so many made-up positions, and prompts of as many go to every block.

    They depend on `seed` alone and are as large as the model's own embeddings, so that a cache without them is far
    from one with them. A session needs `positions` more in its `max_length`. Not while sessions run.
    """
    inner = opened.model.transformer
    before = (inner.config.tuning_mode, inner.config.pre_seq_len)
    inner.config.tuning_mode, inner.config.pre_seq_len = "deep_ptune", positions
    try:
        inner.init_prompts(inner.config)
        inner.requires_grad_(False)
        scale = float(inner.word_embeddings.weight.float().std())
        generator = torch.Generator().manual_seed(seed)
        for part in (inner.prompt_embeddings, inner.intermediate_prompt_embeddings):
            part.weight.copy_(torch.randn(part.weight.shape, generator=generator) * scale)
        yield
    finally:
        inner.config.tuning_mode, inner.config.pre_seq_len = before
        _forget(inner)


def _forget(inner: Any) -> None:
    for part in _PARTS:
        if hasattr(inner, part):
            delattr(inner, part)
