"""The history of a boundary, against tensors that are joined and permuted at once."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.upstream.history import History


def chunk(first: int, tokens: int, batch: int = 2) -> torch.Tensor:
    """`[batch, tokens, 2]`; every number says which sequence and position it was made for."""
    positions = torch.arange(first, first + tokens, dtype=torch.float32)
    return torch.stack([torch.stack([positions, torch.full((tokens,), float(row))], dim=1) for row in range(batch)])


def test_what_was_added_is_read_back_in_any_range() -> None:
    history = History()
    history.extend(0, chunk(0, 3))
    history.extend(3, chunk(3, 1))
    history.extend(4, chunk(4, 4))

    whole = chunk(0, 8)
    for begin in range(8):
        for end in range(begin + 1, 9):
            assert torch.equal(history.read(begin, end), whole[:, begin:end])


def test_what_is_held_already_is_left_out() -> None:
    history = History()
    history.extend(0, chunk(0, 3))

    history.extend(1, chunk(100, 4))
    history.extend(0, chunk(200, 2))

    assert history.end == 5
    assert torch.equal(history.read(0, 5), torch.cat([chunk(0, 3), chunk(102, 2)], dim=1))


def test_a_chunk_that_would_leave_a_hole_is_refused() -> None:
    history = History()
    history.extend(0, chunk(0, 3))

    with pytest.raises(ValueError, match="positions 3:5 are missing"):
        history.extend(5, chunk(5, 1))


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (2, 2), (3, 4), (2, 1)])
def test_reading_what_is_not_held_is_refused(begin: int, end: int) -> None:
    history = History()
    history.extend(0, chunk(0, 3))

    with pytest.raises(ValueError, match="are not held"):
        history.read(begin, end)


def test_a_history_that_begins_later_drops_what_comes_before_it() -> None:
    history = History(base=4)

    history.extend(0, chunk(0, 3))
    history.extend(3, chunk(3, 3))

    assert (history.base, history.end) == (4, 6)
    assert torch.equal(history.read(4, 6), chunk(4, 2))
    with pytest.raises(ValueError, match="are not held"):
        history.read(3, 6)


def test_an_order_applies_to_what_was_there_when_it_was_made_and_not_to_what_comes_later() -> None:
    history = History()
    history.extend(0, chunk(0, 2))
    history.reorder(torch.tensor([1, 1]))
    history.extend(2, chunk(2, 1))

    assert torch.equal(history.read(0, 3), torch.cat([chunk(0, 2)[torch.tensor([1, 1])], chunk(2, 1)], dim=1))


def test_a_step_that_is_not_completed_leaves_no_trace() -> None:
    history = History()
    history.extend(0, chunk(0, 2))
    history.reorder(torch.tensor([1, 0]))
    history.extend(2, chunk(2, 1))
    before = history.read(0, 3)

    mark = history.mark()
    history.reorder(torch.tensor([0, 0]))
    history.extend(3, chunk(3, 5))
    history.restore(mark)

    assert history.end == 3
    assert torch.equal(history.read(0, 3), before)


def test_a_step_that_added_nothing_yet_takes_back_no_order_but_its_own() -> None:
    history = History()
    history.extend(0, chunk(0, 3))
    history.reorder(torch.tensor([1, 0]))
    history.truncate(2)
    before = history.read(0, 2)

    history.restore(history.mark())
    assert torch.equal(history.read(0, 2), before)

    mark = history.mark()
    history.reorder(torch.tensor([1, 1]))
    history.restore(mark)
    assert torch.equal(history.read(0, 2), before)


@pytest.mark.parametrize("line", range(6))
def test_a_chunk_whose_arrival_was_interrupted_leaves_no_trace(line: int) -> None:
    history = History()
    history.extend(0, chunk(0, 3))
    mark, left = history.mark(), line

    def press(frame: FrameType, kind: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code is not History.extend.__code__:
            return None
        left -= kind == "line"
        if left < 0:
            raise KeyboardInterrupt
        return press

    tracing = sys.gettrace()
    sys.settrace(press)
    with contextlib.suppress(KeyboardInterrupt):
        history.extend(3, chunk(100, 2))
    sys.settrace(tracing)
    history.restore(mark)

    history.extend(3, chunk(3, 2))
    assert torch.equal(history.read(0, 5), chunk(0, 5))


def test_a_piece_of_a_long_replay_does_not_hold_the_memory_of_all_of_it() -> None:
    history = History()
    history.extend(0, chunk(0, 9))

    history.extend(0, chunk(0, 10))

    newest = history.read(9, 10)
    assert newest.untyped_storage().nbytes() == newest.numel() * newest.element_size()


def test_the_newest_position_is_read_without_a_walk_through_the_whole_history() -> None:
    class Counted(list[torch.Tensor]):
        looked_at = 0

        def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
            self.looked_at += 1
            return super().__getitem__(index)

    history = History()
    for position in range(50):
        history.extend(position, chunk(position, 1))
        history.reorder(torch.tensor([1, 0]))
    counted = Counted(history._chunks)
    history._chunks = counted

    history.read(49, 50)

    assert counted.looked_at == 1


def test_a_gradient_is_not_kept_with_the_history() -> None:
    history = History()
    history.extend(0, chunk(0, 2).requires_grad_())

    assert not history.read(0, 2).requires_grad


def test_its_size_counts_the_bytes_of_what_is_held() -> None:
    history = History()
    history.extend(0, chunk(0, 3))
    history.extend(1, chunk(1, 3))

    assert history.size_bytes == 2 * 4 * 2 * 4


@given(st.data())
def test_any_sequence_of_operations_reads_like_one_tensor_that_is_cut_joined_and_permuted(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4))
    history, eager, made = History(), chunk(0, 0, batch), 0

    for _ in range(data.draw(st.integers(1, 14))):
        match data.draw(st.sampled_from(("extend", "extend", "extend", "reorder", "reorder", "truncate", "step"))):
            case "extend":
                begin, tokens = data.draw(st.integers(0, history.end)), data.draw(st.integers(1, 4))
                new, made = chunk(1000 + made, tokens, batch), made + tokens
                eager = torch.cat([eager, new[:, history.end - begin :]], dim=1)
                history.extend(begin, new)
            case "reorder":
                order = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch)))
                history.reorder(order)
                eager = eager[order]
            case "truncate":
                end = data.draw(st.integers(0, history.end))
                history.truncate(end)
                eager = eager[:, :end]
            case "step":
                mark = history.mark()
                if data.draw(st.booleans()):
                    history.reorder(torch.zeros(batch, dtype=torch.int64))
                for _ in range(data.draw(st.integers(0, 2))):
                    history.extend(history.end, chunk(5000, 2, batch))
                history.restore(mark)

        assert history.end == eager.shape[1]
        if history.end:
            begin = data.draw(st.integers(0, history.end - 1))
            end = data.draw(st.integers(begin + 1, history.end))
            assert torch.equal(history.read(begin, end), eager[:, begin:end])
