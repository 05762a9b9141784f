"""Deep prompts on petals' own mixin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from petals.client.ptune import PTuneMixin

from swarmctl.upstream.tuning import deep_prompts

BLOCKS, HIDDEN, POSITIONS = 2, 4, 3


class Inner(PTuneMixin, torch.nn.Module):
    """What of petals' model has to do with prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(tuning_mode=None, pre_seq_len=0, hidden_size=HIDDEN, num_hidden_layers=BLOCKS)
        self.word_embeddings = torch.nn.Embedding(50, HIDDEN)
        self.init_prompts(self.config)


def opened() -> Any:
    return SimpleNamespace(model=SimpleNamespace(transformer=Inner()))


def prompts_of(opened: Any, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    with deep_prompts(opened, positions=POSITIONS, seed=seed):
        return opened.model.transformer.get_prompt(2)


def test_prompts_are_for_every_block_and_depend_on_the_seed_alone():
    model = opened()

    first, deep = prompts_of(model, seed=1)
    again, deep_again = prompts_of(model, seed=1)
    _, other = prompts_of(model, seed=2)

    assert first.shape == (2, POSITIONS, HIDDEN)
    assert deep.shape == (BLOCKS, 2, POSITIONS, HIDDEN)
    assert torch.equal(first, again)
    assert torch.equal(deep, deep_again)
    assert not torch.equal(deep, other)
    assert deep.std() > 0.1, "prompts that are nearly nothing would be missed by nobody"


def test_model_is_as_it_was_afterwards():
    model = opened()
    inner = model.model.transformer
    before = (vars(inner.config).copy(), {name for name, _ in inner.named_parameters()})

    def fail() -> None:
        with deep_prompts(model, positions=POSITIONS):
            assert inner.config.pre_seq_len == POSITIONS
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert (vars(inner.config), {name for name, _ in inner.named_parameters()}) == before
    assert not hasattr(inner, "prefix_tokens")
