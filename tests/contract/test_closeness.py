"""The numbers that trials are judged by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from swarmctl.upstream.closeness import distances, margins

HIDDEN = 4


def steps(*values: float) -> list[torch.Tensor]:
    return [torch.full((1, 1, HIDDEN), value) for value in values]


def test_distance_of_each_step_is_a_part_of_the_runs_largest_value():
    assert distances(steps(1.0, 2.5, -4.0), steps(1.0, 2.0, -4.0)) == (0.0, 0.125, 0.0)


def test_distances_end_where_the_runs_do_not_compute_the_same_steps():
    other = [*steps(1.0), torch.zeros(1, 2, HIDDEN), *steps(4.0)]

    assert distances(other, steps(1.0, 2.0, 4.0)) == (0.0,)
    assert distances(steps(1.0), steps(1.0, 4.0)) == (0.0,)
    assert distances([], []) == ()


def test_margin_is_the_lead_of_the_best_token_and_the_closest_choice_of_a_batch():
    head = torch.eye(HIDDEN)
    model: Any = SimpleNamespace(
        model=SimpleNamespace(
            lm_head=lambda hidden: hidden @ head, transformer=SimpleNamespace(ln_f=lambda hidden: hidden)
        )
    )
    clear, close = [8.0, 2.0, 0.0, 0.0], [4.0, 3.0, 0.0, 0.0]
    ignored = [0.0, 0.0, 0.0, 0.0]

    found = margins(model, [torch.tensor([[ignored, clear]]), torch.tensor([[clear], [close]])])

    assert found == (6 / 8, 1 / 8)
