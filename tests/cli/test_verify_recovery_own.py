"""`verify recovery -c FILE` on a swarm of one's own, and `--recheck` on saved histories; no real trials."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.outcomes import A_KILL, a_trial
from support.shell import Finished, Shell
from support.tales import Incident, tell

from swarmctl.blocks import NodeName
from swarmctl.matrix import QUICK, Cell, Fault, Victim
from swarmctl.trial import Subject, encode_trial

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


def test_a_list_needs_no_running_swarm(bare, trials):
    path = bare.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", "1"))
    done = verify(bare, "-c", str(path), "--list", "-o", "json")
    assert (done.code, done.document["error"], trials.asked) == (0, None, [])
    names = [cell["name"] for cell in done.data["cells"]]
    assert set(names) == {str(replace(cell, family="mine")) for cell in QUICK}
    assert [one["name"] for one in done.data["unjudged"]] == names
    assert (done.data["left_out"], {tuple(cell["strikes"]) for cell in done.data["cells"]}) == ([], {()})
    words = verify(bare, "-c", str(path), "--list")
    assert (words.code, words.err) == (0, "")
    assert (
        "\nNone can be judged without the running swarm: what runs of swarm lab is not what its file says" in words.out
    )
    assert verify(bare, "-c", str(path), "--list", "-o", "name").out.split() == names
    narrow = verify(bare, "-c", str(path), "--list", "--fault", "kill", "-o", "name").out.split()
    assert narrow == [name for name in names if name.startswith("mine/kill/")]


def test_a_dry_run_on_a_swarm_that_does_not_run_shows_the_cells_and_ends_as_the_run_would(bare, trials):
    path = bare.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", "1"))
    done = verify(bare, "-c", str(path), "--dry-run")
    assert (done.code, trials.asked) == (5, [])
    assert "None can be judged without the running swarm: " in done.out
    assert f"hint: swarmctl -c {path} up" in done.err
    document = verify(bare, "-c", str(path), "--dry-run", "-o", "json").document
    assert (document["error"]["code"], len(document["data"]["unjudged"])) == ("Refused", len(document["data"]["cells"]))


def test_a_swarm_that_can_spare_nobody_has_a_list_with_the_reasons_and_a_dry_run_that_is_refused(bare, trials):
    file = own(bare, minimum=2)
    for option, code in (("--list", 0), ("--dry-run", 5)):
        done = verify(bare, "-c", file, "--fault", "kill", option)
        assert (done.code, trials.asked) == (code, [])
        assert "\nLeft out:\n  mine/kill/" in done.out
        assert "would have 1 replica instead of 2" in done.out
        assert ("nothing was struck" in done.err) == (code == 5)
    document = verify(bare, "-c", file, "--fault", "kill", "--dry-run", "-o", "json").document
    assert (document["error"]["code"], document["data"]["cells"]) == ("Refused", [])
    assert document["data"]["left_out"]
    assert document["data"]["unjudged"] == []


def test_a_swarm_that_does_not_run_is_refused(bare, trials):
    path = bare.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", "1"))
    done = verify(bare, "-c", str(path), "--yes")
    assert (done.code, trials.asked) == (5, [])
    assert f"hint: swarmctl -c {path} up" in done.err


def test_a_swarm_of_which_nobody_serves_yet_is_refused_with_each_nodes_state(bare, trials):
    path = bare.folder / "mine.yaml"
    path.write_text(OWN.replace("MIN", "1"))
    assert bare("-c", str(path), "plan").code == 0
    bare.host.stuck = {NodeName(name): "joining" for name in ("left-a", "left-b", "right-a", "right-b")}
    assert bare("-c", str(path), "up", "--timeout", "30").code == 6
    done = verify(bare, "-c", str(path), "--yes")
    assert (done.code, trials.asked, done.out) == (5, [], "")
    assert "error: no node of swarm lab serves yet\n  left-a: JOINING\n  left-b: JOINING\n" in done.err
    assert f"hint: swarmctl -c {path} status" in done.err


def test_a_cell_that_is_made_for_ones_own_swarm_is_said_to_be(bare, trials):
    file = own(bare)
    done = verify(bare, "-c", file, "--list", "--fault", "kill", "--traffic", "chat", "--victim", "last")
    assert (done.code, done.err) == (0, "1 cell made for these filters\n")
    assert "made" not in verify(bare, "-c", file, "--list", "--fault", "kill").err


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


def proved(folder: Path) -> Path:
    """A folder with a history that is judged to be identical."""
    folder.mkdir()
    (folder / "0.jsonl").write_text(encode_trial(a_trial(A_KILL, tell([Incident.QUIET, Incident.LOST]).run())))
    return folder


def test_a_damaged_history_is_named_and_the_others_are_judged(bare):
    folder = proved(bare.folder / "histories")
    (folder / "1.jsonl").write_text("{")
    done = verify(bare, "--recheck", str(folder))
    assert (done.code, "1 of 1 cell identical" in done.out) == (8, True)
    assert f"warning: cannot be read: {folder / '1.jsonl'}: line 1: not JSON" in done.err
    document = verify(bare, "--recheck", str(folder), "-o", "json").document
    assert (document["error"]["code"], len(document["data"]["cells"])) == ("PartialFailure", 1)


def test_a_cell_that_is_not_proved_outweighs_a_damaged_history(bare):
    folder = saved(bare.folder / "histories", A_KILL)
    (folder / "1.jsonl").write_text("{")
    done = verify(bare, "--recheck", str(folder))
    assert (done.code, "1.jsonl: line 1: " in done.err) == (4, True)


def test_where_every_history_is_damaged_nothing_is_judged(bare):
    folder = bare.folder / "histories"
    folder.mkdir()
    (folder / "1.jsonl").write_text("{")
    done = verify(bare, "--recheck", str(folder))
    assert (done.code, done.out) == (1, "")
    assert f"  {folder / '1.jsonl'}: line 1: not JSON" in done.err


def test_where_there_are_no_histories_the_way_on_fits_what_is_there(bare):
    (bare.folder / "file.jsonl").write_text("")
    (bare.folder / "empty").mkdir()
    absent = verify(bare, "--recheck", str(bare.folder / "none"))
    file = verify(bare, "--recheck", str(bare.folder / "file.jsonl"))
    empty = verify(bare, "--recheck", str(bare.folder / "empty"))
    assert (absent.code, file.code, empty.code) == (2, 2, 2)
    assert "there is no such folder" in absent.err
    assert "none" not in absent.err.partition("hint: ")[2]
    assert f"that is a file; name its folder: {bare.folder}\n" in file.err
    assert f"hint: swarmctl verify recovery --save {bare.folder / 'empty'}" in empty.err


def test_of_two_histories_of_a_cell_the_newer_one_counts(bare):
    folder = proved(bare.folder / "histories")
    (folder / "again.jsonl").write_text(encode_trial(a_trial(A_KILL)))
    os.utime(folder / "again.jsonl", (1, 1))
    done = verify(bare, "--recheck", str(folder))
    assert (done.code, "1 of 1 cell identical" in done.out) == (0, True)
    assert f"warning: {folder / 'again.jsonl'} does not count: {folder / '0.jsonl'} is newer" in done.err
    os.utime(folder / "0.jsonl", (0, 0))
    assert verify(bare, "--recheck", str(folder)).code == 4


def test_a_recheck_judges_the_clients_that_are_asked_for_and_else_all(bare):
    folder = proved(bare.folder / "histories")
    only_ours = verify(bare, "--recheck", str(folder), "--client", "stock")
    assert only_ours.code == 2
    assert "no history of the stock client is in" in only_ours.err
    (folder / "stock.jsonl").write_text(encode_trial(a_trial(A_KILL, subject=Subject.STOCK)))

    def clients(*words: str) -> list[str]:
        return [row["client"] for row in verify(bare, "--recheck", str(folder), "-o", "json", *words).data["cells"]]

    assert clients() == clients("--client", "both") == ["swarmctl", "stock"]
    assert clients("--client", "stock") == ["stock"]
    assert clients("--client", "swarmctl") == ["swarmctl"]


@pytest.mark.parametrize("more", [["--save", "elsewhere"], ["-c", "mine.yaml"]])
def test_a_recheck_takes_nothing_that_is_for_a_run(bare, trials, more):
    folder = proved(bare.folder / "histories")
    done = verify(bare, "--recheck", str(folder), *more)
    assert (done.code, done.out) == (2, "")
    assert more[0] in done.err
    assert not (bare.folder / "elsewhere").exists()
