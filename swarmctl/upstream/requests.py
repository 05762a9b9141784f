"""One inference request: what a caller may ask for, and its bytes as petals' servers read them (both versions)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from petals.data_structures import CHAIN_DELIMITER
from petals.utils.misc import is_dummy
from petals.utils.packaging import pack_args_kwargs

from swarmctl.blocks import BlockRange
from swarmctl.errors import RequestInvalid


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """What a step carries besides its hidden states.

    `order: [batch], int64`: how the sequences continue (beam search), None to leave them. `prompts`:
    `[num_blocks, batch or 1, prefix, hidden_size]`, the session's deep prompts, None if it has none. `batch`, `hidden`:
    the sizes of every tensor of hidden states in the session.
    """

    batch: int
    hidden: int
    order: torch.Tensor | None
    prompts: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class SessionShape:
    """What a session was opened for, and where it is. `inputs`: batch and hidden size, None before its first step."""

    num_blocks: int
    max_length: int
    position: int
    inputs: tuple[int, int] | None


def check_step(
    shape: SessionShape, inputs: torch.Tensor, prompts: torch.Tensor | None, hypo_ids: torch.Tensor | None
) -> None:
    """Refuse a step that every server would refuse, before any of them is asked; see `RecoverableSession.step`.

    Raises:
        RequestInvalid: says what does not fit.
    """
    if inputs.ndim != 3 or inputs.shape[1] == 0:
        raise RequestInvalid(f"a step takes [batch, tokens, hidden_size] with one token at least, got {_of(inputs)}")
    batch, tokens, hidden = inputs.shape
    opened_batch, opened_hidden = shape.inputs or (batch, hidden)
    if batch != opened_batch:
        raise RequestInvalid(
            f"the session was opened for a batch of {opened_batch}, this step has {batch}",
            reasons=["servers size a session's attention cache at its first step"],
            hints=["open another session for another batch size"],
            context={"opened_with": opened_batch, "got": batch},
        )
    if hidden != opened_hidden:
        raise RequestInvalid(f"the session has a hidden size of {opened_hidden}, this step has {hidden}")
    if shape.position + tokens > shape.max_length:
        raise RequestInvalid(
            f"the session was opened for {shape.max_length} tokens; "
            f"{shape.position} are cached and {tokens} more do not fit",
            hints=["open the session with a larger max_length"],
            context={"max_length": shape.max_length, "position": shape.position, "tokens": tokens},
        )
    if hypo_ids is not None and not is_dummy(hypo_ids):
        _check_order(hypo_ids, batch)
    if prompts is not None and not is_dummy(prompts):
        _check_prompts(shape, inputs, prompts)


def _check_order(hypo_ids: torch.Tensor, batch: int) -> None:
    if hypo_ids.ndim != 1 or len(hypo_ids) != batch:
        raise RequestInvalid(f"hypo_ids has {hypo_ids.numel()} entries for a batch of {batch}")
    if hypo_ids.dtype != torch.int64 or not bool(((hypo_ids >= 0) & (hypo_ids < batch)).all()):
        raise RequestInvalid(f"hypo_ids must be int64 numbers of sequences, 0 to {batch - 1}")


def _check_prompts(shape: SessionShape, inputs: torch.Tensor, prompts: torch.Tensor) -> None:
    batch, tokens, hidden = inputs.shape
    if shape.position > 0:
        raise RequestInvalid(f"deep prompts come with the first step; the session is at position {shape.position}")
    fits = prompts.ndim == 4 and (prompts.shape[0], prompts.shape[3]) == (shape.num_blocks, hidden)
    if not fits or prompts.shape[1] not in (1, batch):
        raise RequestInvalid(
            f"deep prompts take [{shape.num_blocks}, {batch} or 1, prefix, {hidden}], got {_of(prompts)}",
            reasons=["that is blocks, batch, prefix and hidden size"],
        )
    if prompts.shape[2] > tokens:
        raise RequestInvalid(
            f"deep prompts of {prompts.shape[2]} positions do not fit into a first step of {tokens} tokens"
        )


def _of(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def encode_request(  # noqa: PLR0913 - one argument a field of the message
    step: StepRequest,
    *,
    uids: Sequence[str],
    blocks: BlockRange,
    hidden: torch.Tensor,
    begin: int,
    replay: bool,
    opens: bool,
    max_length: int,
    alloc_timeout_s: float,
    wire_dtype: str | None,
) -> runtime_pb2.ExpertRequest:
    """The message for positions `[begin, begin + tokens)` of `hidden: [batch, tokens, hidden_size]`.

    `opens`: the first message of a stream, which sizes the server's cache for `max_length` positions. With `replay`
    the history is in its present order already and no order travels with it. Deep prompts are added by the server
    to the first positions of the chunk that carries them, so they go with position 0 and never again.
    """
    dtype = getattr(torch, wire_dtype, None) if wire_dtype else None
    prompts = torch.empty(0)
    if step.prompts is not None and begin == 0:
        prompts = step.prompts[blocks.start : blocks.end]
    order = torch.empty(0, dtype=torch.int64) if replay or step.order is None else step.order
    # The name comes from a record that anybody can write.
    hidden = hidden.to(dtype) if isinstance(dtype, torch.dtype) and dtype.is_floating_point else hidden
    tensors, structure = pack_args_kwargs(hidden, prompts, order)
    metadata: dict[str, object] = {"step_id": str(uuid.uuid4()), "args_structure": structure}
    if opens:
        metadata |= {
            "session_id": str(uuid.uuid4()),
            "max_length": max_length,
            "points": 0.0,
            "active_adapter": "",
            "alloc_timeout": alloc_timeout_s,
        }
    return runtime_pb2.ExpertRequest(
        uid=CHAIN_DELIMITER.join(uids),
        tensors=[serialize_torch_tensor(tensor.contiguous()) for tensor in tensors],
        metadata=MSGPackSerializer.dumps(metadata),
    )
