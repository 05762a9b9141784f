from __future__ import annotations

import json
from dataclasses import replace

from support.outcomes import (
    BATCHES,
    CHAT,
    KILL,
    KILLED,
    MIXED,
    PAUSE,
    REPLAY,
    a_result,
    a_run,
    a_trial,
    an_outcome,
    stock,
)

from swarmctl.blocks import parse_range
from swarmctl.events import WaitingForPeers
from swarmctl.trial import Verdict
from swarmctl_cli.views import recovery, symbols
from swarmctl_cli.views.recovery import Outcome

COMMAND = "swarmctl verify recovery"
BOTH = tuple(one for ours in MIXED for one in (ours, stock(ours.result.cell)))


def drawn(outcomes, *, width=120, chosen=symbols.UNICODE):
    return recovery.render(outcomes, command=COMMAND, width=width, symbols=chosen)


def test_cells_stand_by_family_with_a_summary_and_the_command_for_each_that_is_not_proved(golden):
    golden("recovery-mixed", drawn(MIXED))


def test_the_stock_clients_verdict_stands_beside_ours(golden):
    golden("recovery-both", drawn(BOTH))


def test_a_narrow_terminal_keeps_every_name_and_verdict(golden):
    golden("recovery-narrow", drawn(BOTH, width=80))


def test_without_line_drawing_characters_every_verdict_has_a_sign_of_its_own(golden):
    worse = an_outcome(replace(KILL, family="bloom"), Verdict.DIFFERENT, reason="token 4 is 17 instead of 9")
    golden("recovery-ascii", drawn((*MIXED, worse), chosen=symbols.ASCII))


def test_the_stock_client_alone_stands_in_a_column_of_its_own_name(golden):
    golden("recovery-stock", drawn([stock(KILL), stock(CHAT, Verdict.NOT_HIT, "it has no such moment")]))


def test_families_that_alternate_are_brought_together():
    rows = recovery.rows_of([an_outcome(KILL), an_outcome(CHAT), an_outcome(PAUSE)])
    assert [row.cell for row in rows] == [KILL, PAUSE, CHAT]


def test_the_worst_pause_is_told_in_that_cells_own_steps():
    quick = replace(a_result(KILL, pause_ms=300.0), step_ms_median=10.0)
    slow = replace(a_result(REPLAY, pause_ms=412.0), step_ms_median=65.4)
    told = recovery.conclusions([Outcome(result=quick), Outcome(result=slow)])
    assert told == ("2 of 2 cells identical; worst pause 412 ms, 6.3 normal steps",)


def test_a_pause_in_which_a_server_had_to_come_back_is_told_apart():
    waiting = (*KILLED, WaitingForPeers(at_s=0.3, blocks=parse_range("0:3"), remaining_s=3.0))
    waited = Outcome(result=a_result(REPLAY, pause_ms=8000.0), trial=a_trial(REPLAY, a_run(waiting)))
    (told,) = recovery.conclusions([an_outcome(KILL), waited])
    assert told.endswith("; worst pause 156 ms, 3.9 normal steps; worst wait for a server 8.00 s, 200.0 normal steps")


def test_where_the_fault_did_not_bite_no_time_of_a_failover_is_told():
    missed = Outcome(result=a_result(CHAT, Verdict.NOT_HIT, pause_ms=9000.0, reason="it answered first"))
    assert recovery.numbers(missed.result)[:4] == ("-", "-", "-", "40 ms")
    assert recovery.fields(missed.result)["pause_ms"] is None
    (told,) = recovery.conclusions([an_outcome(KILL), missed])
    assert told == "1 of 2 cells identical, 1 not-hit; worst pause 156 ms, 3.9 normal steps"
    summary = recovery.document([a_result(KILL), missed.result])["summary"]
    assert summary["worst_pause_ms"] == 156.0


def test_a_run_without_a_pause_says_nothing_of_one():
    assert recovery.conclusions([an_outcome(KILL, pause_ms=None)]) == ("1 of 1 cell identical",)


def test_only_our_own_client_can_leave_something_unproved():
    assert [result.cell for result in recovery.unproved(one.result for one in BOTH)] == [PAUSE, CHAT]


def test_a_cell_of_the_document_has_the_fields_of_the_contract():
    assert json.loads(json.dumps(recovery.fields(a_result(BATCHES)))) == {
        "family": "bloom",
        "fault": "kill",
        "moment": "mid-step",
        "victim": "first",
        "cover": "same",
        "traffic": "batches",
        "client": "swarmctl",
        "verdict": "identical",
        "detect_ms": 22.0,
        "replay_ms": 90.0,
        "pause_ms": 156.0,
        "step_ms_median": 40.0,
        "replayed_tokens": 34,
        "tokens_lost": 0,
        "reason": "",
    }


def test_the_list_of_cells_says_what_is_left_out_and_why(golden):
    left_out = {REPLAY: "nobody is left to take 0:2 over from b1"}
    golden("recovery-cells", recovery.render_cells([KILL, CHAT], left_out, strikes={}, width=100))


def test_on_a_swarm_of_ones_own_the_list_names_who_is_struck(golden):
    strikes = {KILL: ("left-a",), PAUSE: ("left-a", "right-b")}
    golden("recovery-strikes", recovery.render_cells([KILL, PAUSE], {}, strikes=strikes, width=100))
