from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from support.outcomes import B1, B2, KILLED, LATE, A, C, D, steps

from swarmctl import events as ev
from swarmctl.blocks import NodeName, parse_range
from swarmctl_cli.views import timeline, timeline_svg
from swarmctl_cli.views.lanes import Mark, Part


def labels(one: timeline.Failover) -> list[str]:
    return [lane.hop.label for lane in one.lanes]


def parts(one: timeline.Failover, label: str) -> list[tuple[str, float, float]]:
    (lane,) = (lane for lane in one.lanes if lane.hop.label == label)
    return [(bar.part.value, round(bar.start_s, 3), round(bar.end_s, 3)) for bar in lane.bars]


def test_a_run_in_which_nothing_happened_has_no_failover():
    quiet = (ev.RouteChosen(route=(A, C), took_ms=1.0), *steps(1, 20, at_s=0.1))
    assert timeline.failovers(quiet) == ()


def test_a_killed_server_stands_above_the_two_that_replace_it():
    (one,) = timeline.failovers(KILLED)
    assert labels(one) == ["a", "b1", "b2", "c"]
    notes = [", ".join(lane.notes) for lane in one.lanes]
    assert notes == ["lost, known after 22 ms", "replayed 17 tokens in 40 ms", "replayed 17 tokens in 50 ms", ""]
    assert parts(one, "b2") == [("serving", 0.33, 0.37), ("replaying", 0.37, 0.42), ("serving", 0.42, 0.58)]
    assert one.lanes[0].marks == ((0.326, Mark.FAILED),)


def test_three_quiet_steps_stand_before_and_after_the_one_that_met_the_fault():
    (one,) = timeline.failovers(KILLED)
    assert [step.disturbed for step in one.steps] == [False] * 3 + [True] + [False] * 3
    assert one.faults == ((0.31, "kill a"),)
    assert one.zero_s == 0.31


def test_two_faults_far_apart_are_two_failovers_and_two_close_ones_are_one():
    def lost(at_s: float) -> tuple[ev.Event, ...]:
        failed = ev.PeerFailed(at_s=at_s, hop=A, kind="lost", reason="gone", position=3, in_flight=True, detect_ms=5.0)
        return (failed, ev.StepDone(at_s=at_s + 0.1, step=1, position=4, tokens=1, batch=1, took_ms=105.0))

    route = ev.RouteChosen(route=(A, C), took_ms=1.0)
    apart = (route, *lost(1.0), *steps(2, 9, at_s=1.2), *lost(2.0))
    close = (route, *lost(1.0), *steps(2, 2, at_s=1.2), *lost(1.4))
    assert len(timeline.failovers(apart)) == 2
    assert len(timeline.failovers(close)) == 1


def test_a_late_server_that_answers_first_stays_and_the_spare_is_let_go():
    (one,) = timeline.failovers(LATE)
    assert labels(one) == ["a", "d", "c"]
    assert [part for part, _, _ in parts(one, "a")] == ["serving", "late", "serving"]
    assert parts(one, "d") == [("replaying", 0.64, 0.7)]
    assert one.lanes[1].marks == ((0.7, Mark.LEFT),)
    assert [lane.notes for lane in one.lanes] == [("answered first, after 440 ms",), ("not needed",), ()]


def test_an_overtaken_server_leaves_and_the_one_beside_it_serves():
    overtaken = (
        ev.RouteChosen(route=(A, C), took_ms=1.0),
        *steps(1, 3, at_s=0.1),
        ev.PeerSuspected(at_s=0.6, hop=A, silent_ms=360.0),
        ev.HedgeStarted(at_s=0.61, hop=A, now=(D,)),
        ev.PeerOvertaken(at_s=0.7, hop=A, position=15, silent_ms=460.0),
        ev.RecoveryDone(at_s=0.72, position=16, failed=(A.peer,), replayed_tokens=0, pause_ms=120.0, step_ms=480.0),
        ev.StepDone(at_s=0.72, step=4, position=16, tokens=1, batch=1, took_ms=480.0),
        *steps(5, 3, at_s=0.76),
    )
    (one,) = timeline.failovers(overtaken)
    assert one.lanes[0].marks == ((0.7, Mark.LEFT),)
    assert one.lanes[0].notes == ("overtaken after 460 ms of silence",)
    assert [part for part, _, _ in parts(one, "d")] == ["serving"]


def test_a_suspected_server_that_answers_in_time_is_late_only_until_then():
    answered = (*LATE[:7], ev.StepDone(at_s=0.7, step=6, position=18, tokens=1, batch=1, took_ms=440.0))
    (one,) = timeline.failovers(answered)
    assert parts(one, "a")[-1][:2] == ("late", 0.62)
    (one,) = timeline.failovers((*answered, *steps(7, 3, at_s=0.74)))
    assert [part for part, _, _ in parts(one, "a")] == ["serving", "late", "serving"]


def test_the_same_server_again_is_one_lane():
    expired = (
        ev.RouteChosen(route=(A, C), took_ms=1.0),
        ev.PeerFailed(at_s=5.0, hop=A, kind="expired", reason="ended", position=15, in_flight=True, detect_ms=2.0),
        ev.RouteChanged(at_s=5.01, was=A, now=(A,), route=(A, C), took_ms=1.0),
        ev.ReplayStarted(at_s=5.01, hop=A, tokens=15, chunks=1),
        ev.ReplayDone(at_s=5.05, hop=A, tokens=15, took_ms=40.0),
        ev.StepDone(at_s=5.1, step=4, position=16, tokens=1, batch=1, took_ms=102.0),
    )
    (one,) = timeline.failovers(expired)
    assert labels(one) == ["a", "c"]
    assert [part for part, _, _ in parts(one, "a")][-2:] == ["replaying", "serving"]


def test_a_fault_long_before_the_step_that_met_it_does_not_squeeze_what_is_to_be_seen():
    idle = (
        ev.RouteChosen(route=(A, C), took_ms=1.0),
        *steps(1, 3, at_s=0.1),
        ev.FaultInjected(at_s=0.5, fault="kill", node=NodeName("a"), token=3, in_flight=False),
        *(ev.PeerFailed(at_s=9.01, hop=A, kind="lost", reason="x", position=15, in_flight=True, detect_ms=10.0),),
        ev.StepDone(at_s=9.2, step=4, position=16, tokens=1, batch=1, took_ms=200.0),
    )
    (one,) = timeline.failovers(idle)
    assert one.start_s >= 8.9
    assert one.faults == ((one.start_s, "kill a, 8.5 s before"),)
    assert [step.disturbed for step in one.steps] == [True]


def test_a_session_that_was_given_up_shows_a_step_without_an_answer():
    failed = ev.PeerFailed(at_s=1.0, hop=A, kind="lost", reason="x", position=15, in_flight=True, detect_ms=10.0)
    waiting = ev.WaitingForPeers(at_s=1.01, blocks=parse_range("0:3"), remaining_s=3.0)
    given_up = ev.RecoveryGivenUp(at_s=4.0, blocks=parse_range("0:3"), position=15, tried=(A.peer,), waited_s=3.0)
    (one,) = timeline.failovers((ev.RouteChosen(route=(A, C), took_ms=1.0), failed, waiting, given_up))
    assert [(step.done, round(step.start_s, 2), step.end_s) for step in one.steps] == [(False, 0.99, 4.0)]
    assert "no answer after 3.01 s" in timeline_svg.draw(one, title="all")


def test_nobody_is_late_any_more_once_the_step_is_given_up():
    given_up = ev.RecoveryGivenUp(at_s=2.0, blocks=parse_range("3:6"), position=15, tried=(), waited_s=1.0)
    later = ev.FaultInjected(at_s=5.0, fault="kill", node=NodeName("c"), token=9, in_flight=True)
    (one,) = timeline.failovers((*LATE[:8], given_up, later))
    assert ("late", 0.62, 2.0) in parts(one, "a")
    assert [part for part, _, _ in parts(one, "a")] == ["serving", "late", "serving"]
    assert [part for part, _, _ in parts(one, "d")] == []


STOCK = (
    ev.RouteChosen(route=(A, C), took_ms=1.0),
    *steps(1, 5, at_s=0.1),
    ev.FaultInjected(at_s=0.3, fault="kill", node=NodeName("a"), token=5, in_flight=True),
    ev.RouteChanged(at_s=4.3, was=A, now=(D,), route=(D, C), took_ms=1.0),
    ev.RouteChanged(at_s=5.3, was=D, now=(D,), route=(D, C), took_ms=1.0),
)
"""What can be told of petals' own client: it says when it changes its route, and nothing of failures."""


def test_a_session_without_an_answer_ends_in_a_step_that_failed():
    (one,) = timeline.failovers(STOCK, answered=False)
    assert [step.done for step in one.steps] == [True, True, True, False]
    assert (one.steps[-1].start_s, one.end_s) == (0.3, 5.3)
    assert all(step.done for found in timeline.failovers(STOCK) for step in found.steps)


def test_who_is_not_in_the_new_route_is_let_go_even_if_nobody_told_of_a_failure():
    (one,) = timeline.failovers(STOCK, answered=False)
    assert labels(one) == ["a", "d", "c"]
    assert one.lanes[0].marks == ((4.3, Mark.LEFT),)
    assert parts(one, "c") == [("serving", 0.14, 5.3)]


def test_a_fault_while_a_step_is_in_flight_belongs_to_it_however_late_it_is_noticed():
    (one,) = timeline.failovers(STOCK, answered=False)
    assert (one.zero_s, one.faults) == (0.3, ((0.3, "kill a"),))


def test_what_was_lost_may_be_told_in_other_pieces_than_were_served():
    start = (ev.RouteChosen(route=(B1, B2, C), took_ms=1.0), *steps(1, 3, at_s=0.1))
    both = ev.RouteChanged(at_s=0.33, was=A, now=(D,), route=(D, C), took_ms=4.0)
    (one,) = timeline.failovers((*start, both))
    assert labels(one) == ["b1", "b2", "d", "c"]


def test_a_server_that_was_fed_beside_and_then_takes_over_is_one_lane():
    taken = ev.RouteChanged(at_s=0.71, was=A, now=(D,), route=(D, C), took_ms=4.0)
    overtaken = ev.PeerOvertaken(at_s=0.7, hop=A, position=15, silent_ms=460.0)
    (one,) = timeline.failovers((*LATE[:9], overtaken, taken))
    assert labels(one) == ["a", "d", "c"]


def test_the_picture_is_well_formed_and_names_every_server_and_fault():
    (one,) = timeline.failovers(KILLED)
    picture = ElementTree.fromstring(timeline_svg.draw(one, title="<a & b>"))
    texts = [element.text for element in picture.iter() if element.text]
    assert picture.get("aria-label") == "<a & b>"
    assert {"steps", "a 0:3", "b1 0:2", "b2 2:3", "c 3:6", "kill a", "the step took 156 ms"} <= set(texts)
    classes = [element.get("class") for element in picture]
    assert (classes.count("met"), classes.count("step"), classes.count("replaying")) == (1, 6, 2)


def test_times_count_from_the_fault():
    (one,) = timeline.failovers(KILLED)
    picture = ElementTree.fromstring(timeline_svg.draw(one, title="x"))
    zero = [float(e.get("x", "")) for e in picture if e.tag == "text" and e.text == "0"]
    (fault,) = (float(e.get("x1", "")) for e in picture if e.get("class") == "fault")
    assert zero == [fault]


@given(
    st.lists(
        st.sampled_from(
            KILLED + LATE + (ev.HedgeStarted(hop=A, now=(D,)), ev.PeerOvertaken(hop=A, position=1, silent_ms=1.0))
        ),
        max_size=25,
    )
)
def test_any_events_at_all_are_drawn_inside_the_picture(events):
    for one in timeline.failovers(events):
        assert one.start_s < one.end_s
        for lane in one.lanes:
            assert all(isinstance(bar.part, Part) and bar.start_s < bar.end_s for bar in lane.bars)
        picture = ElementTree.fromstring(timeline_svg.draw(one, title="x"))
        for element in picture:
            assert 0 <= float(element.get("x") or element.get("x1") or 0) <= 960
