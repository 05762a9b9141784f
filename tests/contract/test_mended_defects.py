"""Defects of petals' client that ours does not share, where no other file has the test; see `test_stock_defects`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from support.fakeswarm import HIDDEN, Distort
from support.sessions import Bench
from support.stockswarm import JoinedBytes

from swarmctl.blocks import BlockRange, PeerId
from swarmctl.upstream.requests import StepRequest, encode_request

TESTS = Path(__file__).parents[1]
OPENING = {"step_id", "args_structure", "session_id", "max_length", "points", "active_adapter", "alloc_timeout"}


# --- D11: the cost of the history -------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_a_step_copies_nothing_of_the_history(beams: int) -> None:
    bench = Bench("a=0:3", "b=3:6", max_length=100)
    bench.step(5, batch=beams)
    orders = [None] * 40 if beams == 1 else [[2, 0, 1], [0, 0, 1]] * 20
    with JoinedBytes() as joined:
        for order in orders:
            bench.session.step(bench.inputs(batch=beams), hypo_ids=None if order is None else torch.tensor(order))

    assert bench.session.position == 45
    assert joined.written == 0


# --- D14: server-to-server push ---------------------------------------------------------------------------------


def test_no_request_asks_a_server_to_push() -> None:
    bench = Bench("a=0:3", "b=3:6")
    for _ in range(3):
        bench.step()

    sent = [request.metadata.keys() for server in bench.servers.values() for request in server.received]

    assert sent == [OPENING, {"step_id", "args_structure"}, {"step_id", "args_structure"}] * 2


# --- D16: one server speaks for all -----------------------------------------------------------------------------


def test_every_server_is_sent_what_it_computes_in_itself() -> None:
    bench = Bench("a=0:2", "b=2:4", "c=4:6")
    says = {"a": "float16", "b": "bfloat16", "c": None}
    arrived: dict[str, torch.dtype] = {}

    def note(name: str) -> Distort:
        def look(outputs: torch.Tensor) -> torch.Tensor:
            arrived[name] = outputs.dtype
            return outputs

        return Distort(look)

    def record_of(peer: PeerId) -> SimpleNamespace:
        return SimpleNamespace(torch_dtype=says[bench.router.servers[peer].name])

    bench.router.record_of = record_of  # type: ignore[method-assign]
    for name in "abc":
        bench[name].will(note(name))

    bench.session.step(torch.ones(1, 2, HIDDEN))

    # c says nothing, and is sent what b has answered.
    assert arrived == {"a": torch.float16, "b": torch.bfloat16, "c": torch.bfloat16}


# --- D19: room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_our_session_asks_for_the_room_of_the_whole_batch(batch: int) -> None:
    bench = Bench("a=0:6", max_length=64)
    asked: list[int] = []
    choose = bench.router.route

    def route(need: BlockRange, **options: Any) -> Any:
        asked.append(options["cache_tokens"])
        return choose(need, **options)

    bench.router.route = route  # type: ignore[method-assign]

    bench.step(3, batch=batch)

    assert asked == [64 * batch]


# --- D27: the first request's structure is that of all -----------------------------------------------------------


@pytest.mark.parametrize("prompts", [None, torch.ones(6, 1, 2, HIDDEN)])
@pytest.mark.parametrize("order", [None, torch.tensor([1, 0])])
@pytest.mark.parametrize("opens", [True, False])
def test_all_requests_have_the_structure_by_which_a_server_reads_the_first_one(
    prompts: torch.Tensor | None, order: torch.Tensor | None, opens: bool
) -> None:
    def structure(
        order: torch.Tensor | None = None, prompts: torch.Tensor | None = None, *, opens: bool = True, begin: int = 0
    ) -> Any:
        message: runtime_pb2.ExpertRequest = encode_request(
            StepRequest(batch=2, hidden=HIDDEN, order=order, prompts=prompts),
            uids=["tiny.0", "tiny.1"],
            blocks=BlockRange(0, 2),
            hidden=torch.ones(2, 3, HIDDEN),
            max_length=64,
            alloc_timeout_s=0.0,
            wire_dtype=None,
            opens=opens,
            begin=begin,
            replay=False,
        )
        return MSGPackSerializer.loads(message.metadata)["args_structure"]

    assert structure(order, prompts, opens=opens, begin=0 if opens else 3) == structure()


# --- the page ---------------------------------------------------------------------------------------------------


def test_every_test_that_holds_a_defect_is_there() -> None:
    page = (TESTS.parent / "docs" / "recovery.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| D\d+ ", line)]
    named = {row: re.findall(r"`(\w+/\w+\.py)::(\w+)`", row) for row in rows}

    assert len(rows) > 20
    assert not [row[:40] for row, tests in named.items() if not tests]
    for file, name in {test for tests in named.values() for test in tests}:
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file} has no {name}"
