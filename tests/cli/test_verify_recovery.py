"""`verify recovery` with made-up trials: what it asks for, what it shows, how it ends. Real ones are in tests/swarm."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from support.interrupts import ctrl_c_interrupts
from support.outcomes import A_KILL
from support.shell import SWARM, Finished, Shell

from swarmctl.errors import NodeFailed, SwarmctlError
from swarmctl.matrix import QUICK, Fault, Traffic, full
from swarmctl.trial import Progress, Subject, Verdict
from swarmctl_cli.attempt import Attempt

STOCK = Subject.STOCK


def verify(shell: Shell, *words: str) -> Finished:
    return shell("verify", "recovery", *words)


@pytest.mark.parametrize("words", [["--family", "lama"], ["lama/kill/mid-step/first/same/greedy"]])
@pytest.mark.parametrize("more", [[], ["--list"]])
def test_an_unknown_family_is_answered_with_those_that_there_are_and_the_nearest(bare, trials, words, more):
    done = verify(bare, *words, *more)
    assert (done.code, done.out, trials.asked) == (2, "", [])
    assert done.err.splitlines()[:3] == [
        "error: no swarm here serves a model of the family lama",
        "  there is llama, bloom",
        "hint: did you mean llama?",
    ]
    assert "mean" not in verify(bare, "--family", "falcon").err


def test_all_cells_identical_is_a_yes(bare, trials):
    done = verify(bare)
    assert done.code == 0
    assert trials.attempt.cells == QUICK
    assert done.out.splitlines()[-1] == "10 of 10 cells identical; worst pause 156 ms, 3.9 normal steps"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.WITHIN], 0),
        ([Verdict.DIFFERENT], 4),
        ([Verdict.FAILED], 4),
        ([Verdict.NOT_HIT], 12),
        ([Verdict.NOT_HIT, Verdict.FAILED], 4),
    ],
)
def test_the_exit_code_is_that_of_the_worst_cell(bare, trials, verdicts, code):
    trials.verdicts = {(cell, Subject.SWARMCTL): verdict for cell, verdict in zip(QUICK, verdicts, strict=False)}
    done = verify(bare, "-o", "json")
    assert (done.code, done.document["error"] is None) == (code, code == 0)
    assert done.data["summary"]["proved"] == (code == 0)
    assert verify(bare).code == code


def test_where_something_failed_the_error_is_about_that_and_not_about_what_did_not_bite(bare, trials):
    trials.verdicts = {(QUICK[0], Subject.SWARMCTL): Verdict.NOT_HIT, (QUICK[1], Subject.SWARMCTL): Verdict.FAILED}
    error = verify(bare, "-o", "json").document["error"]
    assert (error["code"], error["reasons"]) == ("CheckFailed", [f"{QUICK[1]}: failed: it was failed"])
    del trials.verdicts[QUICK[1], Subject.SWARMCTL]
    error = verify(bare, "-o", "json").document["error"]
    assert (error["code"], error["message"]) == ("VerdictUnknown", "1 cell not known: the fault did not bite")


def test_the_stock_clients_failures_are_shown_and_change_nothing(bare, trials):
    trials.verdicts = {(cell, STOCK): Verdict.FAILED for cell in QUICK}
    done = verify(bare, "--client", "both")
    assert done.code == 0
    assert trials.attempt.subjects == (Subject.SWARMCTL, STOCK)
    assert done.out.splitlines()[-1].startswith("the stock client: 0 of 10 cells identical, 10 failed")
    assert verify(bare, "--client", "stock").code == 0
    assert trials.asked[1].subjects == (STOCK,)


def test_the_document_has_a_row_for_each_trial_and_a_summary(bare, trials):
    done = verify(bare, str(A_KILL), "--client", "both", "-o", "json")
    assert (done.document["kind"], done.document["swarm"]) == ("Recovery", None)
    assert [row["client"] for row in done.data["cells"]] == ["swarmctl", "stock"]
    assert list(done.data["cells"][0]) == [
        "family",
        "fault",
        "moment",
        "victim",
        "cover",
        "traffic",
        "client",
        "verdict",
        "detect_ms",
        "replay_ms",
        "pause_ms",
        "step_ms_median",
        "replayed_tokens",
        "tokens_lost",
        "reason",
    ]
    rows = [json.loads(line) for line in verify(bare, str(A_KILL), "-o", "jsonl").out.splitlines()]
    assert rows == done.data["cells"][:1]


def test_what_is_not_proved_comes_with_its_reason_and_the_command_that_repeats_it(bare, trials):
    trials.verdicts = {(QUICK[3], Subject.SWARMCTL): Verdict.DIFFERENT}
    done = verify(bare)
    assert done.out.splitlines()[-2:] == ["  it was different", f"  again: swarmctl verify recovery {QUICK[3]}"]
    error = verify(bare, "-o", "json").document["error"]
    assert error["message"] == "1 cell not recovered"
    assert error["reasons"] == [f"{QUICK[3]}: different: it was different"]
    assert error["hints"] == [f"swarmctl verify recovery {QUICK[3]}"]


def test_progress_goes_to_stderr_when_a_cell_begins_and_when_it_is_done(bare, trials):
    done = verify(bare, str(A_KILL))
    assert re.sub(r"\d+\.\d s", "0.0 s", done.err).splitlines() == [
        "llama: preparing 3 nodes: a, b, c",
        f"[1/1] {A_KILL}: begins, 0.0 s into the run",
        f"[1/1] ✓ identical  {A_KILL}  pause 156 ms, step 40 ms",
    ]
    assert verify(bare, str(A_KILL), "-q").err == ""


def test_on_a_terminal_the_running_cell_is_shown_until_it_is_done(bare, trials):
    bare.terminal = True
    bare.env.update(TERM="xterm", COLUMNS="200")
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", verify(bare, str(A_KILL)).err)
    assert f"⠋ [1/1] {A_KILL} 0:00:00" in told
    assert f"[1/1] ✓ identical  {A_KILL}  pause 156 ms, step 40 ms\n" in told


def test_cells_are_chosen_by_name_by_axis_or_in_full(bare, trials):
    verify(bare, str(QUICK[2]), str(QUICK[0]))
    verify(bare, "--fault", "pause", "--fault", "slow", "--family", "llama")
    verify(bare, "--full", "--traffic", "chat", "--family", "bloom")
    verify(bare, "--fault", "partition", "--traffic", "beams")
    named, axes, whole, made = (attempt.cells for attempt in trials.asked)
    assert named == (QUICK[2], QUICK[0])
    assert axes == tuple(cell for cell in QUICK if cell.fault in (Fault.PAUSE, Fault.SLOW))
    assert whole == tuple(cell for cell in full() if cell.family == "bloom" and cell.traffic is Traffic.CHAT)
    assert [(cell.fault, cell.traffic) for cell in made] == [(Fault.PARTITION, Traffic.BEAMS)]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["--fault", "partition", "--traffic", "beams"], 1),
        (["--fault", "pause"], 0),
        (["--full", "--fault", "pause"], 0),
        ([], 0),
    ],
)
def test_cells_that_are_in_neither_list_are_said_to_be_made(bare, trials, words, made):
    done = verify(bare, "--list", *words)
    assert done.err == ("1 cell made for these filters\n" if made else "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama/kil/mid-step/first/same/greedy"], "did you mean llama/kill/mid-step/first/same/greedy?"),
        (["llama/expire/mid-step/first/same/greedy"], "cannot be tried"),
        ([str(A_KILL), "--full"], "nothing for the other options to choose from"),
        ([str(A_KILL), "--fault", "kill"], "nothing for the other options to choose from"),
        (["--family", "falcon"], "no swarm here serves a model of the family falcon"),
        (["--fault", "expire", "--moment", "mid-step"], "no cell is like that"),
        (["--fault", "explode"], "'explode' is not one of 'kill'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(bare, trials, words, said):
    done = verify(bare, *words)
    assert (done.code, trials.asked) == (2, [])
    assert said in done.err


@pytest.mark.parametrize("word", ["--list", "--dry-run"])
def test_the_list_shows_the_cells_and_tries_none(bare, trials, word):
    done = verify(bare, word)
    assert (done.code, trials.asked) == (0, [])
    assert done.out.splitlines()[-1] == "10 cells"
    assert verify(bare, word, "-o", "name").out.split() == [str(cell) for cell in QUICK]
    first = verify(bare, word, "-o", "json").data["cells"][0]
    assert (first["name"], first["strikes"]) == (str(QUICK[0]), [])


def test_a_swarm_file_that_lies_about_is_never_used_without_being_named(bare, trials):
    (bare.folder / "swarm.yaml").write_text(SWARM)
    bare.env["SWARMCTL_CONFIG"] = str(bare.folder / "swarm.yaml")
    assert verify(bare).code == 0
    assert trials.attempt.site is None
    assert bare.fake is None


def test_histories_and_reports_go_where_they_are_asked_to(bare, trials):
    junit, html, save = (bare.folder / name for name in ("junit.xml", "page.html", "some/histories"))
    trials.verdicts = {(QUICK[0], Subject.SWARMCTL): Verdict.FAILED}
    done = verify(bare, "--junit", str(junit), "--html", str(html), "--save", str(save))
    assert done.code == 4
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert html.read_text().count("<figure>") == len(QUICK)
    assert (trials.attempt.save, save.is_dir()) == (save, True)
    assert f"to judge them again: swarmctl verify recovery --recheck {save}\n" in done.err
    assert f"wrote {html}" in done.err


@pytest.mark.parametrize("option", ["--junit", "--html", "--save"])
def test_a_report_that_cannot_be_written_stops_it_before_anything_starts(bare, trials, option):
    (bare.folder / "file").write_text("")
    done = verify(bare, option, str(bare.folder / "file" / "report"))
    assert (done.code, trials.asked) == (2, [])
    assert "file/report" in done.err
    assert verify(bare, "--html", str(bare.folder)).code == 2


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--list"]])
def test_a_file_where_the_histories_should_go_is_found_before_anything_starts(bare, trials, more):
    file = bare.folder / "file"
    file.write_text("")
    done = verify(bare, "--save", str(file), *more)
    assert (done.code, trials.asked, done.out) == (2, [], "")
    assert f"{file} is a file" in done.err


def test_a_dry_run_makes_no_folder_for_the_histories(bare, trials):
    assert verify(bare, "--save", str(bare.folder / "some/histories"), "--dry-run").code == 0
    assert not (bare.folder / "some").exists()


def test_two_reports_in_one_file_are_refused(bare, trials):
    same = ["--html", str(bare.folder / "report"), "--junit", str(bare.folder / "." / "report")]
    done = verify(bare, *same)
    assert (done.code, trials.asked) == (2, [])
    assert "name the same file" in done.err


def test_after_ctrl_c_what_was_tried_is_shown_and_written(bare, trials):
    trials.breaks = (2, KeyboardInterrupt())
    page = bare.folder / "page.html"
    done = verify(bare, "--html", str(page))
    assert done.code == 130
    assert "2 of 2 cells identical" in done.out
    assert str(QUICK[1]) in page.read_text()
    assert done.err.splitlines()[-2:] == [
        "error: interrupted",
        "  2 of 10 cells done; the swarms made for the run are gone",
    ]
    document = verify(bare, "-o", "json").document
    assert (document["error"]["code"], len(document["data"]["cells"])) == ("Interrupted", 2)


def test_ctrl_c_is_answered_before_the_swarms_are_down(bare):
    def interrupted(_attempt: Attempt, _tell: Callable[[Progress], None]) -> None:
        signal.raise_signal(signal.SIGINT)

    bare.try_cells = interrupted
    with ctrl_c_interrupts():
        done = verify(bare)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done.code == 130
    assert done.err.splitlines()[:2] == [
        "interrupted: taking the swarms down (a few seconds) …",
        "error: interrupted",
    ]


def test_a_cell_is_done_when_both_clients_were_tried_in_it(bare, trials):
    trials.breaks = (3, KeyboardInterrupt())
    assert "  1 of 10 cells done; " in verify(bare, "--client", "both").err


def test_a_swarm_that_does_not_start_leaves_what_was_tried_before(bare, trials):
    trials.breaks = (1, NodeFailed("node c on here ended before it was ready"))
    done = verify(bare, "-o", "json")
    assert (done.code, done.document["error"]["code"], len(done.data["cells"])) == (1, "NodeFailed", 1)
    trials.breaks = (0, NodeFailed("node c on here ended before it was ready"))
    done = verify(bare, "-o", "json")
    assert (done.code, done.data) == (1, None)


def test_an_error_of_the_operation_keeps_its_own_exit_code(bare, trials):
    trials.breaks = (0, SwarmctlError("no checkpoint could be made"))
    done = verify(bare)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == "error: no checkpoint could be made"
