"""How far the hidden states of two runs are apart, and how clearly tokens were chosen: numbers for the judge."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swarmctl.upstream.model import ClientModel


def distances(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """For each step, the largest difference, as a part of the largest value in all of `expected`.

    A step is `[batch, tokens, hidden_size]`. The result ends before the first step whose shape is another one: from
    there on the runs do not compute the same thing.
    """
    scale = max((float(step.float().abs().max()) for step in expected), default=0.0) or 1.0
    found: list[float] = []
    for step, wanted in zip(outputs, expected, strict=False):
        if step.shape != wanted.shape:
            break
        found.append(float((step.float() - wanted.float()).abs().max()) / scale)
    return tuple(found)


def margins(opened: ClientModel, outputs: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """For each step, by how much the best next token led over the second, as a part of the run's largest logit.

    A step is `[batch, tokens, hidden_size]`; its last position chooses, and of a batch the closest choice counts.
    """
    model = opened.model
    with torch.inference_mode():
        logits = [model.lm_head(model.transformer.ln_f(step[:, -1:]))[:, 0].float() for step in outputs]
    scale = max((float(step.abs().max()) for step in logits), default=0.0) or 1.0
    leads = [step.topk(2, dim=-1).values for step in logits]
    return tuple(float((lead[:, 0] - lead[:, 1]).min()) / scale for lead in leads)
