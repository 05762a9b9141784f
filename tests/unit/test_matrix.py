"""Cells: their names, which of them make sense, and which are run."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmctl.errors import UsageError
from swarmctl.matrix import (
    QUICK,
    Cell,
    Cover,
    Fault,
    Moment,
    Traffic,
    Victim,
    full,
    impossible,
    parse_cell,
    select,
)

FULL = full()
CELLS = st.builds(
    Cell,
    family=st.sampled_from(["llama", "bloom", "falcon-7b"]),
    fault=st.sampled_from(Fault),
    moment=st.sampled_from(Moment),
    victim=st.sampled_from(Victim),
    cover=st.sampled_from(Cover),
    traffic=st.sampled_from(Traffic),
)


def names(cells: tuple[Cell, ...]) -> list[str]:
    """The cells as people write them."""
    return [str(cell) for cell in cells]


def all_cells(family: str) -> list[Cell]:
    """Every combination, possible or not."""
    return [
        Cell(family=family, fault=fault, moment=moment, victim=victim, cover=cover, traffic=traffic)
        for fault, moment, victim, cover, traffic in product(Fault, Moment, Victim, Cover, Traffic)
    ]


POSSIBLE = [cell for family in ("llama", "bloom") for cell in all_cells(family) if impossible(cell) is None]

# --- names ------------------------------------------------------------------------------------------------------


@given(CELLS)
def test_a_cell_is_found_again_by_its_name(cell: Cell) -> None:
    assert parse_cell(str(cell)) == cell


def test_a_misspelt_cell_is_refused_with_every_wrong_part_and_the_cell_that_was_meant() -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell("llama/kil/midstep/first/same/greedy")
    fault, moment = caught.value.reasons
    assert fault.startswith("'kil' is no fault; there are kill, kill-main, stop")
    assert moment.startswith("'midstep' is no moment; there are prefill, chunk")
    assert caught.value.hints == ("did you mean llama/kill/mid-step/first/same/greedy?",)


def test_a_part_that_is_like_no_word_gets_no_guess() -> None:
    with pytest.raises(UsageError) as caught:
        parse_cell("llama/kill/mid-step/first/same/0815")
    assert caught.value.hints == ()


@pytest.mark.parametrize(
    "text", ["", "llama", "llama/kill/mid-step", "/kill/mid-step/first/same/greedy", "a/b/c/d/e/f/g"]
)
def test_a_name_with_parts_missing_or_too_many_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="is no cell") as caught:
        parse_cell(text)
    assert "FAMILY/FAULT/MOMENT/VICTIM/COVER/TRAFFIC" in caught.value.reasons[0]


# --- what makes sense -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("expire/mid-step/first/same/chat", "idle or old"),
        ("kill/aged/first/same/chat", "idle is a moment"),
        ("late/between/first/same/greedy", "no answer is on its way"),
        ("late/idle/first/same/chat", "no answer is on its way"),
        ("slow/idle/first/same/chat", "while nobody asks"),
        ("stop/last/first/same/greedy", "answers what it has begun"),
        ("forget/last/first/same/greedy", "later steps only"),
        ("forget/replay/first/same/greedy", "nobody takes over"),
        ("forget/mid-step/heir/same/greedy", "nobody takes over"),
        ("restart/replay/first/same/greedy", "its own place"),
        ("full/replay/first/same/greedy", "never fed"),
        ("full/mid-step/heir/same/greedy", "never fed"),
        ("slow/mid-step/heir/same/greedy", "may answer first"),
        ("slow/mid-step/all/same/greedy", "still there"),
        ("forget/between/all/same/greedy", "still there"),
        ("full/mid-step/all/same/greedy", "lack room"),
        ("kill/replay/all/same/greedy", "could be fed"),
        ("kill/replay/two/same/greedy", "one is struck"),
        ("expire/idle/last/same/chat", "write first"),
        ("kill/mid-step/all/split/greedy", "nobody is left to take over"),
        ("restart/between/first/split/greedy", "write same"),
        ("kill/mid-step/first/longer/greedy", "before the first block"),
        ("kill/mid-step/two/longer/greedy", "before the first block"),
        ("kill/chunk/first/same/greedy", "only long traffic"),
        ("kill/idle/first/same/greedy", "only a chat"),
        ("expire/aged/first/same/beams", "only a chat"),
        ("kill/prefill/first/same/crowd", "in common"),
        ("kill/last/first/same/crowd", "in common"),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused_with_the_reason(name: str, why: str) -> None:
    assert why in (impossible(parse_cell(f"llama/{name}")) or "")


@pytest.mark.parametrize(
    "name",
    [
        "kill/mid-step/first/same/greedy",
        "kill/replay/heir/split/greedy",
        "slow/replay/last/longer/greedy",
        "slow/between/two/same/several",
        "late/replay/first/same/beams",
        "forget/idle/middle/same/chat",
        "restart/last/all/same/greedy",
        "restart/idle/first/same/chat",
        "full/last/two/split/greedy",
        "expire/aged/first/same/chat",
        "kill/chunk/all/same/long",
        "kill/mid-step/first/same/crowd",
        "kill/last/last/longer/beams",
        "pause-main/idle/heir/same/chat",
    ],
)
def test_a_combination_that_makes_sense_is_possible(name: str) -> None:
    assert impossible(parse_cell(f"llama/{name}")) is None


def test_every_value_of_every_axis_is_possible_in_some_cell() -> None:
    for axis, kind in (
        ("fault", Fault),
        ("moment", Moment),
        ("victim", Victim),
        ("cover", Cover),
        ("traffic", Traffic),
    ):
        assert {getattr(cell, axis) for cell in POSSIBLE} == set(kind)


# --- the lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [QUICK, FULL], ids=["quick", "full"])
def test_a_list_has_possible_cells_once_each_with_a_familys_together_and_its_victims_apart(
    cells: tuple[Cell, ...],
) -> None:
    assert [impossible(cell) for cell in cells] == [None] * len(cells)
    assert len(set(cells)) == len(cells)
    families = [cell.family for cell in cells]
    assert families == sorted(families, reverse=True), "llama, then bloom"
    neighbours = [(one, other) for one, other in pairwise(cells) if one.family == other.family]
    assert [str(other) for one, other in neighbours if one.victim is other.victim] == []


@pytest.mark.parametrize(
    "filters",
    [
        {"faults": [Fault.KILL], "moments": [Moment.MID_STEP]},
        {"faults": [Fault.KILL], "moments": [Moment.BETWEEN]},
        {"faults": [Fault.KILL], "moments": [Moment.REPLAY], "covers": [Cover.SPLIT]},
        {"faults": [Fault.PAUSE]},
        {"faults": [Fault.LATE]},
        {"faults": [Fault.STOP]},
        {"families": ["llama"], "traffics": [Traffic.BEAMS]},
        {"traffics": [Traffic.BATCHES]},
        {"faults": [Fault.EXPIRE], "moments": [Moment.IDLE], "traffics": [Traffic.CHAT]},
        {"victims": [Victim.ALL]},
    ],
    ids=str,
)
def test_the_quick_list_has_what_matters_most(filters: dict[str, list[object]]) -> None:
    assert set(select(QUICK, **filters)) <= set(QUICK)  # type: ignore[arg-type]


def test_the_quick_list_is_quick() -> None:
    assert len(QUICK) == 10
    assert {cell.family for cell in QUICK} == {"llama", "bloom"}


def test_the_full_list_shows_every_value_in_both_families() -> None:
    for axis in ("fault", "moment", "victim", "cover", "traffic"):
        wanted = {(cell.family, getattr(cell, axis)) for cell in POSSIBLE}
        assert {(cell.family, getattr(cell, axis)) for cell in FULL} == wanted


@pytest.mark.parametrize("axis", ["moment", "victim"])
def test_the_full_list_shows_each_fault_with_each_moment_and_victim_in_llama(axis: str) -> None:
    wanted = {(cell.fault, getattr(cell, axis)) for cell in POSSIBLE}
    assert {(cell.fault, getattr(cell, axis)) for cell in FULL if cell.family == "llama"} == wanted


def test_the_full_list_shows_each_traffic_with_a_kill_in_both_families() -> None:
    killed = {(cell.family, cell.traffic) for cell in FULL if cell.fault is Fault.KILL}
    assert killed == set(product(("llama", "bloom"), Traffic))


def test_the_full_list_is_as_short_as_it_can_be() -> None:
    def least(fault: Fault) -> int:
        cells = [cell for cell in POSSIBLE if cell.fault is fault]
        axes = ["moment", "victim", *(["traffic"] if fault is Fault.KILL else [])]
        return max(len({getattr(cell, axis) for cell in cells}) for axis in axes)

    # Bloom needs a cell for each other fault, and one for each traffic with a kill.
    assert len(FULL) == sum(map(least, Fault)) + len(Fault) - 1 + len(Traffic)


# --- selection --------------------------------------------------------------------------------------------------


def test_without_filters_all_cells_are_selected_in_their_order() -> None:
    assert select(FULL) == FULL


def test_values_of_one_axis_add_up_and_axes_narrow_down() -> None:
    found = select(FULL, families=["llama"], faults=[Fault.PAUSE, Fault.STOP], moments=[Moment.REPLAY])
    assert found == tuple(
        cell
        for cell in FULL
        if cell.family == "llama" and cell.fault in (Fault.PAUSE, Fault.STOP) and cell.moment is Moment.REPLAY
    )
    assert len(found) == 2


def test_a_combination_that_the_list_lacks_gets_a_cell_of_its_own() -> None:
    found = select(QUICK, faults=[Fault.PARTITION], traffics=[Traffic.BEAMS])
    assert names(found) == ["llama/partition/mid-step/first/same/beams"]


def test_a_cell_of_its_own_changes_as_few_other_values_as_it_needs() -> None:
    assert names(select(QUICK, moments=[Moment.AGED])) == ["llama/expire/aged/first/same/chat"]
    assert names(select(QUICK, faults=[Fault.RESTART])) == ["llama/restart/mid-step/first/same/greedy"]
    assert names(select(QUICK, moments=[Moment.CHUNK])) == ["llama/kill/chunk/first/same/long"]
    assert names(select((), covers=[Cover.LONGER])) == ["llama/kill/mid-step/middle/longer/greedy"]


def test_of_several_combinations_those_in_the_list_come_first_and_impossible_ones_are_left_out() -> None:
    found = select(QUICK, families=["bloom"], faults=[Fault.LATE, Fault.KILL], moments=[Moment.BETWEEN, Moment.REPLAY])
    assert names(found) == [
        "bloom/kill/between/last/same/batches",
        "bloom/late/replay/first/same/greedy",
        "bloom/kill/replay/first/same/greedy",
    ]


def test_a_family_that_is_not_in_the_list_gets_the_lists_cells() -> None:
    found = select(QUICK, families=["falcon"])
    assert {cell.family for cell in found} == {"falcon"}
    assert [(cell.fault, cell.moment, cell.victim, cell.cover, cell.traffic) for cell in found] == [
        (cell.fault, cell.moment, cell.victim, cell.cover, cell.traffic) for cell in QUICK
    ]


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"faults": [Fault.KILL], "moments": [Moment.AGED]}, "kill, aged: age by itself is expire"),
        ({"faults": [Fault.EXPIRE], "traffics": [Traffic.GREEDY]}, "expire, greedy: only a chat"),
        ({"faults": [Fault.EXPIRE], "covers": [Cover.SPLIT]}, "expire, split: nobody takes over"),
        ({"moments": [Moment.LAST], "traffics": [Traffic.CROWD]}, "last, crowd: eight sessions"),
    ],
    ids=str,
)
def test_a_selection_that_is_impossible_is_refused_with_the_reason_that_no_other_value_mends(
    filters: dict[str, list[object]], reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(QUICK, **filters)  # type: ignore[arg-type]
    assert len(caught.value.reasons) == 1
    assert caught.value.reasons[0].startswith(reason)


def test_each_impossible_combination_gets_its_reason() -> None:
    with pytest.raises(UsageError) as caught:
        select(QUICK, faults=[Fault.FULL, Fault.SLOW], victims=[Victim.ALL])
    assert [reason.split(":")[0] for reason in caught.value.reasons] == ["full, all", "slow, all"]


@given(
    st.lists(st.sampled_from(Fault), max_size=2, unique=True),
    st.lists(st.sampled_from(Moment), max_size=2, unique=True),
    st.lists(st.sampled_from(Victim), max_size=2, unique=True),
    st.lists(st.sampled_from(Traffic), max_size=2, unique=True),
)
def test_what_is_selected_is_what_was_asked_for_and_possible(
    faults: list[Fault], moments: list[Moment], victims: list[Victim], traffics: list[Traffic]
) -> None:
    def asked(cell: Cell) -> bool:
        pairs = ((cell.fault, faults), (cell.moment, moments), (cell.victim, victims), (cell.traffic, traffics))
        return all(not wanted or value in wanted for value, wanted in pairs)

    try:
        found = select(QUICK, faults=faults, moments=moments, victims=victims, traffics=traffics)
    except UsageError:
        assert not [cell for cell in POSSIBLE if asked(cell)]
        return
    assert found
    assert all(asked(cell) and impossible(cell) is None for cell in found)
    assert {cell for cell in QUICK if asked(cell)} <= set(found)
