from __future__ import annotations

from functools import reduce

from support.builders import peer_of

from swarmctl import events as ev
from swarmctl.blocks import NodeName
from swarmctl_cli.views import rollout, symbols

BOOT, LEFT, RIGHT = NodeName("bootstrap-0"), NodeName("left-a"), NodeName("right-a")

STORY: tuple[ev.Event, ...] = (
    ev.NodeStarted(node=BOOT, pid=10, peer=peer_of("boot"), port=31337),
    ev.NodeReady(node=BOOT, took_s=3.2),
    ev.NodeStarted(node=LEFT, pid=11, peer=peer_of("left-a"), port=31400),
    ev.NodeStarted(node=RIGHT, pid=12, peer=peer_of("right-a"), port=31401),
    ev.NodePhase(node=LEFT, phase="loading", done=6, total=15),
    ev.NodePhase(node=RIGHT, phase="joining"),
)


def view_of(*events: ev.Event) -> rollout.RolloutView:
    return reduce(rollout.reduce, events, rollout.RolloutView())


def test_each_node_has_a_line_with_its_phase_and_a_bar_while_it_loads(golden):
    lost = ev.NodeLost(node=RIGHT, reason="exited with code 1", log_tail=("Traceback", "MemoryError"))
    golden("rollout", rollout.render(view_of(*STORY), 100, symbols.UNICODE))
    golden("rollout-lost", rollout.render(view_of(*STORY, lost), 100, symbols.ASCII))


def test_a_node_that_is_up_but_not_ready_says_what_it_waits_for():
    view = view_of(ev.NodePhase(node=LEFT, phase="online", done=15, total=15))
    text = rollout.render(view, 100, symbols.UNICODE).plain
    assert text == "  left-a  online, waiting for its record in the DHT and a first token"


def test_a_node_that_becomes_ready_says_how_long_it_took_and_how_fast_it_answers():
    ready = ev.NodeReady(node=LEFT, took_s=14.2, probe_ms=38.0)
    assert rollout.line(ready) == "left-a: online after 14 s, a token through it took 38 ms"


def test_a_lost_node_is_one_line_because_the_error_that_follows_brings_the_log():
    lost = ev.NodeLost(node=RIGHT, reason="exited with code 1", log_tail=("Traceback", "MemoryError"))
    assert rollout.line(lost) == "right-a: lost: exited with code 1"


def test_eighty_blocks_make_five_lines_of_loading():
    phases = [ev.NodePhase(node=LEFT, phase="loading", done=done, total=80) for done in range(81)]
    said = [line for phase in phases if (line := rollout.line(phase)) is not None]
    assert said == [f"left-a: loading, block {done} of 80" for done in (0, 20, 40, 60, 80)]


def test_stopping_says_what_was_done_or_that_there_was_nothing_to_do():
    stopped = ev.NodeStopped(node=LEFT, how="stopped", took_s=1.4)
    assert rollout.line(stopped) == "left-a: stopped in 1.4 s"
    assert rollout.line(ev.NodeStopped(node=LEFT, how="already", took_s=0.0)) == "left-a: was not running"


def test_events_of_a_session_leave_the_view_alone():
    view = view_of(*STORY)
    assert rollout.reduce(view, ev.StepDone(step=1, position=1, tokens=1, batch=1, took_ms=1.0)) is view
