"""The bytes of a request, read back as petals' server reads them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from petals.server import block_functions, handler
from petals.utils.misc import is_dummy
from petals.utils.packaging import unpack_args_kwargs

from swarmctl.blocks import BlockRange
from swarmctl.errors import RequestInvalid
from swarmctl.upstream.requests import SessionShape, StepRequest, check_step, encode_request

PLAIN = StepRequest(batch=2, hidden=4, order=None, prompts=None)
PROMPTS = torch.arange(6 * 2 * 4, dtype=torch.float32).reshape(6, 1, 2, 4)


@dataclass(frozen=True)
class Arrived:
    """What a server makes of a request."""

    hidden: torch.Tensor
    prompts: torch.Tensor
    order: torch.Tensor
    metadata: dict[str, Any]
    uid: str


def sent(step: StepRequest = PLAIN, **changes: Any) -> Arrived:
    """A request over blocks 2:4 of six, through the wire."""
    arguments: dict[str, Any] = {
        "uids": ["tiny.2", "tiny.3"],
        "blocks": BlockRange(2, 4),
        "hidden": torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(2, 3, 4),
        "begin": 0,
        "replay": False,
        "opens": False,
        "max_length": 64,
        "alloc_timeout_s": 0.0,
        "wire_dtype": None,
    }
    message = encode_request(step, **{**arguments, **changes})
    message = runtime_pb2.ExpertRequest.FromString(message.SerializeToString())
    metadata = MSGPackSerializer.loads(message.metadata)
    tensors = [deserialize_torch_tensor(tensor) for tensor in message.tensors]
    (hidden, prompts, order), keywords = unpack_args_kwargs(tensors, metadata["args_structure"])
    assert keywords == {}
    return Arrived(hidden=hidden, prompts=prompts, order=order, metadata=metadata, uid=message.uid)


def test_a_plain_step_carries_hidden_states_and_two_dummies() -> None:
    arrived = sent()

    assert torch.equal(arrived.hidden, torch.arange(24, dtype=torch.float32).reshape(2, 3, 4))
    assert is_dummy(arrived.prompts)
    assert is_dummy(arrived.order)
    # the server asserts it before it looks whether it is a dummy
    assert arrived.order.dtype == torch.int64
    assert arrived.uid == "tiny.2 tiny.3"
    assert set(arrived.metadata) == {"step_id", "args_structure"}


def test_the_first_message_of_a_stream_has_what_the_server_sizes_its_cache_by() -> None:
    metadata = sent(opens=True, alloc_timeout_s=7.5).metadata

    assert (metadata["max_length"], metadata["alloc_timeout"], metadata["active_adapter"]) == (64, 7.5, "")
    assert isinstance(metadata["points"], float)


def test_every_message_has_a_step_id_of_its_own_and_every_stream_a_session_id() -> None:
    first, second = sent(opens=True).metadata, sent(opens=True).metadata

    assert first["step_id"] != second["step_id"]
    assert first["session_id"] != second["session_id"]


def test_the_server_reads_these_names_from_the_metadata() -> None:
    source = inspect.getsource(handler.TransformerConnectionHandler.rpc_inference)

    for name in ("max_length", "points", "session_id", "alloc_timeout", "args_structure"):
        assert f'metadata.get("{name}"' in source
    steps = inspect.getsource(handler.TransformerConnectionHandler._iterate_inference_steps)
    assert 'metadata.get("step_id")' in steps
    assert "while request.tensors" in steps
    assert "hidden_states, prompts, hypo_ids, *_ = flat_tensors" in inspect.getsource(block_functions)


def test_deep_prompts_of_the_servers_own_blocks_go_with_position_0_and_never_later() -> None:
    step = StepRequest(batch=2, hidden=4, order=None, prompts=PROMPTS)

    assert torch.equal(sent(step, begin=0).prompts, PROMPTS[2:4])
    assert torch.equal(sent(step, begin=0, replay=True).prompts, PROMPTS[2:4])
    assert is_dummy(sent(step, begin=1).prompts)
    assert is_dummy(sent(step, begin=3, replay=True).prompts)


def test_an_order_travels_with_a_step_and_not_with_a_replay() -> None:
    step = StepRequest(batch=2, hidden=4, order=torch.tensor([1, 1]), prompts=None)

    assert sent(step, begin=5).order.tolist() == [1, 1]
    replayed = sent(step, replay=True).order
    assert is_dummy(replayed)
    assert replayed.dtype == torch.int64


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_hidden_states_travel_in_what_the_server_computes_in(name: str) -> None:
    assert sent(wire_dtype=name).hidden.dtype == getattr(torch, name)


@pytest.mark.parametrize("name", ["int8", "bool", "complex64", "nn", "no such thing", "", None])
def test_a_record_that_names_no_floating_type_changes_nothing(name: str | None) -> None:
    assert sent(wire_dtype=name).hidden.dtype == torch.float32


def test_a_part_of_a_tensor_is_sent_as_that_part() -> None:
    whole = torch.arange(2 * 9 * 4, dtype=torch.float32).reshape(2, 9, 4)

    assert torch.equal(sent(hidden=whole[:, 3:5]).hidden, whole[:, 3:5])


SHAPE = SessionShape(num_blocks=6, max_length=10, position=0, inputs=None)


def test_a_first_step_may_have_any_batch_and_fill_the_session() -> None:
    check_step(SHAPE, torch.zeros(7, 10, 4), None, None)
    check_step(SHAPE, torch.zeros(3, 2, 4), PROMPTS.expand(6, 3, 2, 4), torch.tensor([2, 0, 0]))


def test_dummies_are_taken_for_nothing_at_any_position() -> None:
    later = SessionShape(num_blocks=6, max_length=10, position=5, inputs=(1, 4))

    check_step(later, torch.zeros(1, 1, 4), torch.empty(0), torch.empty(0, dtype=torch.int64))


def test_a_step_that_is_one_token_too_long_says_how_long_the_session_is() -> None:
    later = SessionShape(num_blocks=6, max_length=10, position=5, inputs=(1, 4))

    with pytest.raises(RequestInvalid) as caught:
        check_step(later, torch.zeros(1, 6, 4), None, None)

    assert caught.value.context == {"max_length": 10, "position": 5, "tokens": 6}
    assert str(caught.value) == "the session was opened for 10 tokens; 5 are cached and 6 more do not fit"


def test_a_step_of_another_batch_says_both() -> None:
    later = SessionShape(num_blocks=6, max_length=10, position=5, inputs=(2, 4))

    with pytest.raises(RequestInvalid) as caught:
        check_step(later, torch.zeros(3, 1, 4), None, None)

    assert caught.value.context == {"opened_with": 2, "got": 3}


def test_petals_still_adds_prompts_to_the_first_positions_of_whatever_carries_them() -> None:
    backend = Path(inspect.getfile(block_functions)).with_name("backend.py").read_text(encoding="utf-8")

    assert "hidden_states[:, : optional_prompt.shape[1]] += optional_prompt" in backend
