"""The bytes of one inference request, as petals' servers read them (both versions)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from petals.data_structures import CHAIN_DELIMITER
from petals.utils.packaging import pack_args_kwargs

from swarmctl.blocks import BlockRange


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """What a step carries besides its hidden states.

    `order: [batch], int64`: how the sequences continue (beam search), None to leave them. `prompts`:
    `[num_blocks, batch or 1, prefix, hidden_size]`, the session's deep prompts, None if it has none.
    """

    order: torch.Tensor | None
    prompts: torch.Tensor | None


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
    hidden = hidden.to(dtype) if isinstance(dtype, torch.dtype) else hidden
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
