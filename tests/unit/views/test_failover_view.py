from __future__ import annotations

from functools import reduce

from support.builders import peer_of

from swarmctl import events as ev
from swarmctl.blocks import NodeName, parse_range
from swarmctl_cli.views import failover, symbols


def hop(name: str, blocks: str) -> ev.Hop:
    return ev.Hop(blocks=parse_range(blocks), peer=peer_of(name), node=NodeName(name))


LEFT, RIGHT = hop("left-a", "0:15"), hop("right-a", "15:30")
FIRST, SECOND = hop("left-b1", "0:8"), hop("left-b2", "8:15")

STORY: tuple[ev.Event, ...] = (
    ev.RouteChosen(at_s=0.02, route=(LEFT, RIGHT), took_ms=3.6),
    ev.StepDone(at_s=0.9, step=0, position=12, tokens=12, batch=1, took_ms=410.0),
    ev.StepDone(at_s=1.80, step=19, position=31, tokens=1, batch=1, took_ms=52.0),
    ev.FaultInjected(at_s=1.82, fault="kill", node=NodeName("left-a"), token=19, in_flight=True),
    ev.PeerFailed(
        at_s=1.84, hop=LEFT, kind="lost", reason="connection closed", position=31, in_flight=True, detect_ms=16.2
    ),
    ev.RouteChanged(at_s=1.85, was=LEFT, now=(FIRST, SECOND), route=(FIRST, SECOND, RIGHT), took_ms=4.0),
    ev.ReplayStarted(at_s=1.86, hop=FIRST, tokens=31, chunks=1),
    ev.ReplayDone(at_s=1.91, hop=FIRST, tokens=31, took_ms=42.0),
    ev.ReplayStarted(at_s=1.92, hop=SECOND, tokens=31, chunks=1),
    ev.ReplayDone(at_s=1.97, hop=SECOND, tokens=31, took_ms=40.0),
    ev.RecoveryDone(at_s=2.02, position=32, failed=(LEFT.peer,), replayed_tokens=62, pause_ms=180.0, step_ms=232.0),
    ev.StepDone(at_s=2.02, step=20, position=32, tokens=1, batch=1, took_ms=232.0),
)


def after(count: int) -> failover.SessionView:
    return reduce(failover.reduce, STORY[:count], failover.SessionView())


def health(view: failover.SessionView) -> list[tuple[str, str]]:
    return [(span.hop.label, span.health.value) for span in view.route]


def test_a_failover_reads_as_one_sentence_an_event():
    lines = [said for event in STORY if (said := failover.line(event, 52.0)) is not None]
    assert lines == [
        "[  0.02 s] route left-a (0:15) > right-a (15:30), found in 3.6 ms",
        "[  1.82 s] drill: kill left-a at token 19, while a step is in flight",
        "[  1.84 s] left-a (0:15) lost in mid-step at position 31: connection closed, noticed after 16 ms",
        "[  1.85 s] taken over by left-b1 (0:8) + left-b2 (8:15)",
        "[  1.91 s] replayed 31 tokens to left-b1 in 42 ms",
        "[  1.97 s] replayed 31 tokens to left-b2 in 40 ms",
        "[  2.02 s] recovered in 180 ms (this step took 232 ms, a normal one takes 52 ms), 0 tokens lost",
    ]


def test_the_failed_span_is_marked_then_replaced_then_well_again():
    assert health(after(5)) == [("left-a", "failed"), ("right-a", "ok")]
    assert health(after(6)) == [("left-b1", "replaying"), ("left-b2", "replaying"), ("right-a", "ok")]
    assert health(after(8)) == [("left-b1", "ok"), ("left-b2", "replaying"), ("right-a", "ok")]
    assert health(after(len(STORY))) == [("left-b1", "ok"), ("left-b2", "ok"), ("right-a", "ok")]


def test_steps_drive_position_and_rate_but_the_prompt_does_not_count_for_the_rate():
    assert after(2).step_ms is None
    view = after(3)
    assert (view.position, view.step_ms) == (31, 52.0)


def test_the_step_that_met_a_failure_does_not_slow_the_shown_speed():
    assert after(len(STORY)).step_ms == 52.0
    assert after(len(STORY)).position == 32


def test_a_recovery_before_any_normal_step_is_not_compared_with_one():
    (done,) = (event for event in STORY if isinstance(event, ev.RecoveryDone))
    assert failover.line(done) == "[  2.02 s] recovered in 180 ms (this step took 232 ms), 0 tokens lost"


def test_a_suspected_span_is_cleared_by_the_next_step():
    view = failover.reduce(after(3), ev.PeerSuspected(hop=RIGHT, silent_ms=800.0))
    assert health(view)[1] == ("right-a", "suspected")
    view = failover.reduce(view, ev.StepDone(step=20, position=32, tokens=1, batch=1, took_ms=900.0))
    assert health(view)[1] == ("right-a", "ok")


def test_a_late_server_and_its_hedge_read_as_one_sentence_an_event():
    other = hop("right-b", "15:30")
    story = (
        ev.PeerSuspected(at_s=1.0, hop=RIGHT, silent_ms=510.0),
        ev.HedgeStarted(at_s=1.0, hop=RIGHT, now=(other,)),
        ev.HedgeDropped(at_s=1.1, hop=RIGHT, dropped=(other,), waited_ms=600.0),
        ev.PeerOvertaken(at_s=1.1, hop=RIGHT, position=31, silent_ms=600.0),
    )

    assert [failover.line(event) for event in story] == [
        "[  1.00 s] right-a (15:30) is late: no answer for 510 ms",
        "[  1.00 s] asking right-b (15:30) beside it: the first answer wins",
        "[  1.10 s] right-a (15:30) answered after 600 ms, and stays",
        "[  1.10 s] right-a (15:30) was overtaken: no answer for 600 ms",
    ]
    view = failover.reduce(after(3), story[0])
    assert health(failover.reduce(view, story[2]))[1] == ("right-a", "ok")
    assert health(failover.reduce(view, story[3]))[1] == ("right-a", "failed")


def test_a_session_that_waits_says_for_which_blocks_and_how_long():
    waiting = ev.WaitingForPeers(at_s=3.0, blocks=parse_range("0:15"), remaining_s=58.0)
    view = failover.reduce(after(5), waiting)
    assert view.waiting == "waiting for a server of blocks 0:15, 58 s left"
    said = failover.line(waiting)
    assert said is not None
    assert said.startswith("[  3.00 s] no server left for blocks 0:15: waiting up to 58 s for one")
    assert said.endswith("(swarmctl status shows why)")


def test_giving_up_names_blocks_position_and_peers_tried():
    given_up = ev.RecoveryGivenUp(
        at_s=61.9, blocks=parse_range("0:15"), position=31, tried=(LEFT.peer, FIRST.peer), waited_s=60.0
    )
    assert failover.line(given_up) == (
        "[ 61.90 s] given up at position 31: no server for blocks 0:15 after 1 m 00 s and 2 peers tried"
    )


def test_the_panel_in_the_middle_of_a_recovery(golden):
    golden("failover-replaying", failover.render(after(8), 100))


def test_the_panel_without_line_drawing_characters(golden):
    golden("failover-ascii", failover.render(after(5), 100, symbols.ASCII))


def test_a_long_route_is_broken_between_spans_and_never_inside_a_name(golden):
    hops = tuple(hop(f"server-{i:02d}", f"{8 * i}:{8 * i + 8}") for i in range(10))
    view = failover.reduce(failover.SessionView(), ev.RouteChosen(route=hops, took_ms=1.0))
    golden("failover-long-route", failover.render(view, 80))
