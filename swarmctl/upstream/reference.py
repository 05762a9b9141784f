"""The same generation by `transformers` alone, on this machine: what a swarm's output is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from swarmctl.upstream.compat import quiet_transformers
from swarmctl.upstream.threads import spare_threads


def generate_locally(
    source: str, batch: Sequence[Sequence[int]], *, pad: int, stops: Sequence[int], **arguments: Any
) -> list[tuple[int, ...]]:
    """New token ids for prompts of one length, from the whole checkpoint in float32; needs the memory for all of it."""
    quiet_transformers()
    inputs = torch.tensor([list(ids) for ids in batch])
    with warnings.catch_warnings(), torch.inference_mode(), spare_threads():
        warnings.simplefilter("ignore", FutureWarning)
        model = AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.float32)
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            pad_token_id=pad,
            eos_token_id=list(stops) or None,
            **arguments,
        )
    return [tuple(int(token) for token in row) for row in output[:, inputs.shape[1] :]]
