"""`verify recovery -c FILE` on a swarm of one's own, and `--recheck` on saved histories; no real trials."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from support.outcomes import A_KILL, a_trial
from support.shell import Finished, Shell

from swarmctl.matrix import Cell, Fault, Victim
from swarmctl.trial import encode_trial

OWN = """\
version: 1
swarm: lab
model: {source: lab/mine, blocks: 6, hidden_size: 64, dht_prefix: lab}
redundancy: {min: MIN, by: gpu}
defaults: {torch_dtype: float32}
nodes:
  left-a: {blocks: "0:3"}
  left-b: {blocks: "0:3"}
  right-a: {blocks: "3:6"}
  right-b: {blocks: "3:6"}
"""


def verify(shell: Shell, *words: str) -> Finished:
    return shell("verify", "recovery", *words)


def own(shell: Shell, minimum: int = 1) -> str:
    """A running swarm of the operator's own; its file."""
    path = shell.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", str(minimum)))
    assert shell("-c", str(path), "up").code == 0
    return str(path)


def test_ones_own_swarm_is_struck_only_after_a_yes(bare, trials):
    file = own(bare)
    done = verify(bare, "-c", file, "--fault", "kill")
    assert (done.code, trials.asked) == (5, [])
    assert "will strike right-a of swarm lab, one after another; each is started again" in done.err
    assert "nobody said yes" in done.err
    assert verify(bare, "-c", file, "--fault", "kill", "--yes").code == 0
    attempt = trials.attempt
    assert attempt.site is not None
    assert attempt.site.spec.name == "lab"
    assert {cell.family for cell in attempt.cells} == {"mine"}


@pytest.mark.parametrize(("typed", "code"), [("lab\n", 0), ("yes\n", 5), ("\n", 5)])
def test_on_a_terminal_the_yes_is_the_swarms_name(bare, trials, monkeypatch, typed, code):
    file = own(bare)
    bare.terminal = True
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert verify(bare, "-c", file, "--fault", "kill").code == code
    assert len(trials.asked) == (code == 0)


def test_who_would_be_struck_is_listed_before_anything_is(bare, trials):
    file = own(bare)
    done = verify(bare, "-c", file, "--list", "--fault", "kill", "-o", "json")
    assert (done.code, trials.asked, done.document["swarm"]) == (0, [], "lab")
    assert all(cell["strikes"] for cell in done.data["cells"])
    reasons = {one["name"].split("/")[3]: one["reason"] for one in done.data["left_out"]}
    assert "would have no replica instead of 2" in reasons[Victim.ALL.value]
    assert "STRIKES" in verify(bare, "-c", file, "--list", "--fault", "kill").out


def test_a_swarm_that_can_spare_nobody_is_refused_with_the_reasons(bare, trials):
    file = own(bare, minimum=2)
    done = verify(bare, "-c", file, "--fault", "kill", "--yes")
    assert (done.code, trials.asked, done.out) == (5, [], "")
    assert "error: swarm lab cannot be used for any of these cells; nothing was struck" in done.err
    assert "would have 1 replica instead of 2" in done.err
    assert f"hint: swarmctl -c {file} verify redundancy" in done.err


def test_a_cell_that_was_named_is_not_silently_left_out(bare, trials):
    file = own(bare)
    named = ["mine/kill/mid-step/first/same/greedy", "mine/kill/mid-step/all/same/greedy"]
    assert verify(bare, "-c", file, "--yes", *named).code == 5
    assert trials.asked == []
    assert verify(bare, "-c", file, "--yes", named[0]).code == 0
    assert verify(bare, "-c", file, "--yes", "llama/kill/mid-step/first/same/greedy").code == 2


def test_a_fault_that_ones_own_swarm_does_not_offer_is_left_out_with_the_reason(bare, trials):
    file = own(bare)
    done = verify(bare, "-c", file, "--fault", "partition", "--fault", "kill", "--list", "-o", "json")
    assert {cell["fault"] for cell in done.data["cells"]} == {"kill"}
    (reason,) = {one["reason"] for one in done.data["left_out"] if "/partition/" in one["name"]}
    assert reason.startswith("not offered")
    assert verify(bare, "-c", file, "--fault", "partition", "--yes").code == 5
    assert trials.asked == []


def test_a_swarm_that_does_not_run_is_refused(bare, trials):
    path = bare.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", "1"))
    done = verify(bare, "-c", str(path), "--yes")
    assert (done.code, trials.asked) == (5, [])
    assert f"hint: swarmctl -c {path} up" in done.err


def saved(folder: Path, *cells: Cell) -> Path:
    """A folder with a history of each cell."""
    folder.mkdir()
    for index, cell in enumerate(cells):
        (folder / f"{index}.jsonl").write_text(encode_trial(a_trial(cell)))
    return folder


def test_saved_histories_are_judged_again_without_trying_anything(bare, trials):
    folder = saved(bare.folder / "histories", A_KILL)
    done = verify(bare, "--recheck", str(folder), "-o", "json", "--html", str(bare.folder / "page.html"))
    assert trials.asked == []
    assert [(row["family"], row["fault"], row["client"]) for row in done.data["cells"]] == [
        ("llama", "kill", "swarmctl")
    ]
    assert done.data["cells"][0]["pause_ms"] == 156.0
    assert "<figure>" in (bare.folder / "page.html").read_text()


def test_saved_histories_are_shown_in_the_order_of_the_matrix(bare):
    cells = [Cell(family="llama", fault=fault) for fault in (Fault.RESTART, Fault.PAUSE, Fault.KILL)]
    folder = str(saved(bare.folder / "histories", Cell(family="zoo"), *cells))
    shown = verify(bare, "--recheck", folder, "-o", "name").out.split()
    assert shown == [*map(str, reversed(cells)), str(Cell(family="zoo"))]


def test_a_recheck_can_be_narrowed_to_some_cells(bare, trials):
    other = Cell(family="bloom", fault=Fault.STOP)
    folder = str(saved(bare.folder / "histories", A_KILL, other))
    assert verify(bare, "--recheck", folder, "--fault", "stop", "-o", "name").out.split() == [str(other)]
    assert verify(bare, "--recheck", folder, str(A_KILL), "-o", "name").out.split() == [str(A_KILL)]
    done = verify(bare, "--recheck", folder, "--fault", "late")
    assert done.code == 2
    assert "no saved history is of such a cell" in done.err


def test_a_damaged_history_is_named(bare):
    folder = saved(bare.folder / "histories", A_KILL)
    (folder / "1.jsonl").write_text("{")
    done = verify(bare, "--recheck", str(folder))
    assert done.code == 2
    assert "1 of 2 histories" in done.err
    assert "1.jsonl: " in done.err
    assert verify(bare, "--recheck", str(bare.folder / "none")).code == 2
