"""A language model of ten digits over fake servers: petals' and transformers' own `generate`, and nothing to wait for.

A token's embedding is its number; the next token depends on the last block's whole output for the last position, so
on every token before it. `LocalModel` is the same model in one piece, which keeps no cache and knows no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from petals.client.remote_generation import RemoteGenerationMixin, RemotePastKeyValues
from petals.client.remote_sequential import RemoteSequential
from support.fakeswarm import HIDDEN, FakeRouter, block_outputs
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

STOP, PAD = 0, 9
_DIGITS = 8  # 8 is never chosen, nor 9
_SCALE = 0.4  # flat enough that draws differ


class Digits:
    """A tokenizer of digits; the stop has no text. A chat's messages are set in stops."""

    pad_token_id = PAD
    chat_template = "yes"

    def __call__(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[int(letter) for letter in text])

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        assert not clean_up_tokenization_spaces
        return "".join(str(token) for token in ids if token != STOP or not skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        roles = {"user": "6", "assistant": "7"}
        return "".join(f"{roles[one['role']]}{one['content'].strip()}{STOP}" for one in messages) + roles["assistant"]


def _config() -> PretrainedConfig:
    return PretrainedConfig(num_hidden_layers=1, eos_token_id=5, pad_token_id=PAD)


class _Toy(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(_config())
        self.anchor = torch.nn.Parameter(torch.zeros(1))  # transformers asks it where the model is
        self.generation_config.eos_token_id = STOP

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids.double().unsqueeze(2).expand(-1, -1, HIDDEN)

    def answer(self, hidden: torch.Tensor) -> CausalLMOutputWithPast:
        wanted = hidden.sum(dim=2, keepdim=True).div(7, rounding_mode="floor") % _DIGITS
        far = (wanted - torch.arange(10)).abs()
        scores = -_SCALE * torch.minimum(far, _DIGITS - far)
        scores[:, :, _DIGITS:] = -torch.inf
        return CausalLMOutputWithPast(logits=scores, past_key_values=RemotePastKeyValues())


class _Whole(_Toy):
    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_given: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids}


class _Steps(_Toy):
    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **_given: Any,
    ) -> dict[str, Any]:
        step = input_ids if past_key_values is None else input_ids[:, -1:]
        return {"input_ids": step, "attention_mask": attention_mask, "past_key_values": past_key_values}


class LocalModel(_Whole):
    """The whole model in one place, generated from by transformers alone."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.num_blocks = num_blocks

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_given: Any
    ) -> CausalLMOutputWithPast:
        hidden = self.embed(input_ids)
        for block in range(self.num_blocks):
            hidden = block_outputs(block, hidden)
        done = self.answer(hidden)
        done.past_key_values = None
        return done

    def new_ids(self, batch: Sequence[Sequence[int]], **arguments: Any) -> list[list[int]]:
        """What follows on each sequence, `[batch][tokens]`."""
        inputs = torch.tensor([list(row) for row in batch])
        output = self.generate(
            inputs, attention_mask=torch.ones_like(inputs), pad_token_id=PAD, eos_token_id=STOP, **arguments
        )
        return [[int(token) for token in row] for row in output[:, inputs.shape[1] :]]


class RemoteModel(RemoteGenerationMixin, _Steps):
    """The same with its blocks on servers, as petals makes it; `batches` are the shapes of what was fed."""

    def __init__(self, router: FakeRouter) -> None:
        super().__init__()
        self.transformer = SimpleNamespace(h=RemoteSequential(self.config, sequence_manager=router), config=self.config)
        self.batches: list[tuple[int, int]] = []

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: RemotePastKeyValues | None = None,
        **_given: Any,
    ) -> CausalLMOutputWithPast:
        assert attention_mask is None or bool(attention_mask.all())
        self.batches.append((input_ids.shape[0], input_ids.shape[1]))
        order = None if past_key_values is None else past_key_values.hypo_ids
        return self.answer(self.transformer.h(self.embed(input_ids), hypo_ids=order))
