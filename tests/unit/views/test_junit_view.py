from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from support.outcomes import BATCHES, CHAT, KILL, MIXED, PAUSE, an_outcome, stock

from swarmctl.trial import Verdict
from swarmctl_cli.views import junit
from swarmctl_cli.views.recovery import Outcome


def parsed(outcomes) -> ElementTree.Element:
    return ElementTree.fromstring(junit.render(outcomes))


def case(root: ElementTree.Element, cell) -> ElementTree.Element:
    family, _, name = str(cell).partition("/")
    (found,) = (one for one in root.iter("testcase") if one.get("name") == name and family in str(one.get("classname")))
    return found


def test_each_cell_is_one_case_in_the_suite_of_its_family():
    root = parsed(MIXED)
    assert {suite.get("name"): suite.get("tests") for suite in root} == {"llama": "3", "bloom": "2"}
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("5", "1", "1")
    assert case(root, KILL).attrib == {
        "classname": "recovery.llama",
        "name": "kill/mid-step/first/same/greedy",
        "time": "2.500",
    }


def test_what_failed_is_a_failure_and_what_did_not_bite_is_skipped():
    root = parsed(MIXED)
    failure = case(root, PAUSE).find("failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("failed", "failed: no answer within 15 s")
    skipped = case(root, CHAT).find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not-hit: the session was never idle for 4 s"
    assert case(root, BATCHES).find("failure") is None


def test_a_difference_is_a_failure_of_its_own_type():
    (failure,) = parsed([an_outcome(KILL, Verdict.DIFFERENT, reason="token 4")]).iter("failure")
    assert failure.get("type") == "different"


def test_the_stock_clients_verdict_is_told_and_fails_nothing():
    root = parsed([an_outcome(KILL), stock(KILL)])
    assert (root.get("tests"), root.get("failures")) == ("1", "0")
    told = case(root, KILL).find("system-out")
    assert told is not None
    assert "stock client: failed: Broken input cache" in str(told.text)
    assert case(root, KILL).get("time") == "5.000"


def test_the_stock_client_alone_is_skipped_with_its_verdict():
    root = parsed([stock(KILL)])
    assert (root.get("failures"), root.get("skipped")) == ("0", "1")
    (skipped,) = root.iter("skipped")
    assert str(skipped.get("message")).endswith("failed: Broken input cache")


def test_a_cell_that_came_to_no_trial_took_no_known_time():
    root = parsed([Outcome(result=an_outcome(KILL, Verdict.FAILED, reason="x").result)])
    assert case(root, KILL).get("time") == "0.000"


@given(st.text())
def test_any_reason_makes_a_document_that_can_be_read(reason):
    failed = an_outcome(KILL, Verdict.FAILED, reason=reason)
    root = parsed([failed, replace(stock(KILL), result=replace(stock(KILL).result, reason=reason))])
    assert root.get("failures") == "1"
