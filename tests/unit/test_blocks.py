from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.blocks import BlockRange, parse_range, ranges_of

RANGES = st.tuples(st.integers(0, 12), st.integers(1, 12)).map(lambda pair: BlockRange(pair[0], pair[0] + pair[1]))


def test_a_range_is_half_open_and_counts_its_blocks() -> None:
    blocks = BlockRange(2, 5)
    assert list(blocks) == [2, 3, 4]
    assert len(blocks) == 3
    assert [block for block in range(7) if block in blocks] == [2, 3, 4]
    assert "3" not in blocks


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("8:4", "8:4 is empty; the end must be greater than the start"),
        ("4:4", "4:4 is empty; the end must be greater than the start"),
        ("4", "'4' is not a block range; write START:END, for example 0:8"),
        ("-1:4", "'-1:4' is not a block range; write START:END, for example 0:8"),
        ("0:8:2", "'0:8:2' is not a block range; write START:END, for example 0:8"),
        ("", "'' is not a block range; write START:END, for example 0:8"),
    ],
)
def test_a_text_that_is_no_range_is_refused_with_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        parse_range(text)


def test_a_range_below_block_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="-1:4 starts below block 0"):
        BlockRange(-1, 4)


def test_spaces_around_a_range_are_ignored() -> None:
    assert parse_range(" 0 : 8 ") == BlockRange(0, 8)


@given(RANGES)
def test_a_range_reads_back_from_its_text(blocks: BlockRange) -> None:
    assert parse_range(str(blocks)) == blocks


@given(RANGES, RANGES)
def test_intersection_and_covers_agree_with_sets_of_blocks(one: BlockRange, other: BlockRange) -> None:
    common = one.intersection(other)
    assert set(common or ()) == set(one) & set(other)
    assert one.covers(other) == (set(other) <= set(one))


@given(st.lists(st.integers(0, 20)))
def test_ranges_of_blocks_hold_exactly_these_blocks_and_never_touch(blocks: list[int]) -> None:
    runs = ranges_of(blocks)
    assert [block for run in runs for block in run] == sorted(set(blocks))
    assert all(left.end < right.start for left, right in pairwise(runs))
