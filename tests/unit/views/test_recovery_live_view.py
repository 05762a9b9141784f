from __future__ import annotations

from support.outcomes import KILL, PAUSE, a_result

from swarmctl.trial import CellDone, CellStarting, StageStarting, Subject, Verdict
from swarmctl_cli.views import recovery_live, symbols
from swarmctl_cli.views.recovery_live import NodeUp

STAGE = StageStarting(family="llama", nodes=("a", "b1", "c"))
STARTING = CellStarting(cell=KILL, subject=Subject.SWARMCTL, index=2, total=20)


def said(progress, chosen=symbols.UNICODE) -> str | None:
    line = recovery_live.line(progress, chosen)
    return None if line is None else line.plain


def test_a_swarm_that_is_prepared_is_said_with_its_nodes_where_they_are_known():
    assert said(STAGE) == "llama: preparing 3 nodes: a, b1, c"
    assert said(StageStarting(family="bloom", nodes=())) == "bloom: preparing a swarm"
    assert recovery_live.running(STAGE) == "llama: preparing a swarm"


def test_the_running_cell_is_shown_and_leaves_no_line():
    assert said(STARTING) is None
    assert recovery_live.running(STARTING) == "[ 3/20] llama/kill/mid-step/first/same/greedy"


def test_only_the_beginning_of_a_cell_gets_a_line_of_its_own_in_a_log():
    assert recovery_live.begins(STARTING, 75.2) == f"{recovery_live.running(STARTING)}: begins, 1 m 15 s into the run"
    assert recovery_live.begins(STAGE, 75.2) is None


def test_a_node_that_is_ready_is_counted_while_its_swarm_is_prepared():
    assert said(NodeUp(node="a", took_s=14.2, ready=1, total=3)) == "a is ready after 14 s, 1 of 3"
    assert said(NodeUp(node="a", took_s=14.2)) == "a is ready after 14 s"


def test_a_cell_whose_fault_did_not_bite_tells_no_pause():
    result = a_result(KILL, Verdict.NOT_HIT, reason="it answered first")
    assert said(CellDone(result=result, index=0, total=1), symbols.ASCII) == (
        "[1/1] ? not-hit  llama/kill/mid-step/first/same/greedy  step 40 ms  it answered first"
    )


def test_a_cell_that_is_done_is_one_line_with_its_numbers():
    done = CellDone(result=a_result(KILL), index=2, total=20)
    assert said(done) == "[ 3/20] ✓ identical  llama/kill/mid-step/first/same/greedy  pause 156 ms, step 40 ms"
    assert recovery_live.running(done) is None


def test_a_cell_that_failed_says_why_and_whose_client_it_was():
    result = a_result(PAUSE, Verdict.FAILED, subject=Subject.STOCK, pause_ms=None, reason="no answer in 12 s")
    done = CellDone(result=result, index=0, total=2)
    assert said(done, symbols.ASCII) == (
        "[1/2] x failed  llama/pause/mid-step/first/same/beams (stock)  no answer in 12 s"
    )
