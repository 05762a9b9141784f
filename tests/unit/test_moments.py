"""When a cell of `verify recovery` strikes, followed through made-up runs."""

from __future__ import annotations

import pytest

from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.events import Event, HedgeStarted, Hop, RouteChanged, RouteChosen, StepDone
from swarmctl.matrix import Cell, Fault, Moment, Victim
from swarmctl.operations.trials.casting import Cast, Part
from swarmctl.operations.trials.moments import Blow, Moments

STEPS = 8


def hop(name: str, start: int, end: int) -> Hop:
    return Hop(blocks=BlockRange(start, end), peer=PeerId(f"Qm{name}"), node=NodeName(name))


A, C, HEIR, SPARE = hop("a", 0, 3), hop("c", 3, 6), hop("h", 0, 3), hop("s", 0, 3)
ROUTE = RouteChosen(route=(A, C), took_ms=1.0)
CAST = Cast(
    route=(Part(node=NodeName("a"), blocks=A.blocks), Part(node=NodeName("c"), blocks=C.blocks)),
    victims=(NodeName("a"),),
    cover=(NodeName("h"),),
    reserve=(NodeName("s"),),
)


def moments(moment: Moment, *, fault: Fault = Fault.KILL, victim: Victim = Victim.FIRST, calls: int = 1) -> Moments:
    cell = Cell(family="llama", fault=fault, moment=moment, victim=victim)
    return Moments(cell=cell, cast=CAST, steps=STEPS, calls=calls)


def taken_over(was: Hop, now: Hop) -> RouteChanged:
    return RouteChanged(was=was, now=(now,), route=(now, C), took_ms=1.0)


def done(step: int, position: int) -> StepDone:
    return StepDone(step=step, position=position, tokens=1, batch=1, took_ms=10.0)


class Walk:
    """Plays a run: step after step through the hops, and notes where each blow fell."""

    def __init__(self, watched: Moments) -> None:
        self.watched = watched
        self.fell: list[tuple[str, Blow]] = []
        self.position = 0
        self.step = 0
        self.say("route", ROUTE)

    def say(self, where: str, event: Event) -> None:
        self._add(where, self.watched.note(event))

    def send(self, to: Hop, *, position: int | None = None, replay: bool = False) -> None:
        at = self.position if position is None else position
        self._add(f"request to {to.node} at {at}", self.watched.left(to, at, replay))
        self._add(f"answer of {to.node} at {at}", self.watched.answered(to, at, replay))

    def steps(self, count: int, *, route: tuple[Hop, ...] = (A, C)) -> Walk:
        for _ in range(count):
            for one in route:
                self.send(one)
            self.finish()
        return self

    def finish(self, tokens: int = 1) -> None:
        self.step += 1
        self.position += tokens
        self.say(f"after step {self.step}", done(self.step, self.position))

    def _add(self, where: str, blow: Blow | None) -> None:
        if blow is not None:
            self.fell.append((where, blow))

    @property
    def places(self) -> list[str]:
        return [where for where, _ in self.fell]


@pytest.mark.parametrize(
    ("moment", "where"),
    [
        (Moment.PREFILL, "request to a at 0"),
        (Moment.MID_STEP, "request to a at 4"),
        (Moment.BETWEEN, "after step 4"),
        (Moment.LAST, "request to a at 7"),
    ],
)
def test_blow_falls_once_at_the_moment_of_the_cell(moment: Moment, where: str):
    walk = Walk(moments(moment)).steps(STEPS)

    assert walk.places == [where]
    (blow,) = walk.watched.blows
    assert (blow.fault, blow.nodes) == (Fault.KILL, ("a",))
    assert blow.in_flight is (moment is not Moment.BETWEEN)
    assert walk.watched.missed is None


def test_later_chunk_of_the_prefill_is_the_moment_and_its_first_is_not():
    walk = Walk(moments(Moment.CHUNK))

    walk.send(A, position=0)
    walk.send(A, position=32)
    walk.send(A, position=64)

    assert walk.places == ["request to a at 32"]


def test_prefill_in_one_piece_misses_the_moment_of_a_later_chunk():
    walk = Walk(moments(Moment.CHUNK))

    walk.send(A)
    walk.finish(tokens=12)

    assert walk.watched.missed == "the moment chunk never came for a in 1 of 8 steps"


def test_late_server_is_struck_when_its_answer_has_come():
    walk = Walk(moments(Moment.MID_STEP, fault=Fault.LATE)).steps(STEPS)

    assert walk.places == ["answer of a at 4"]


def test_replay_is_provoked_by_a_kill_and_its_server_gets_the_fault():
    walk = Walk(moments(Moment.REPLAY, fault=Fault.PAUSE)).steps(4)
    walk.send(A)
    walk.say("taken over", taken_over(A, HEIR))
    walk.send(HEIR, position=0, replay=True)
    walk.say("taken over", taken_over(HEIR, SPARE))
    walk.send(SPARE, position=0, replay=True)

    assert walk.places == ["request to a at 4", "request to h at 0"]
    assert [(blow.fault, blow.nodes) for _, blow in walk.fell] == [(Fault.KILL, ("a",)), (Fault.PAUSE, ("h",))]
    assert walk.watched.missed is None


def test_late_server_of_a_replay_is_struck_when_its_answer_has_come():
    walk = Walk(moments(Moment.REPLAY, fault=Fault.LATE)).steps(4)
    walk.send(A)
    walk.say("taken over", taken_over(A, HEIR))
    walk.send(HEIR, position=0, replay=True)

    assert walk.places == ["request to a at 4", "answer of h at 0"]


def test_replay_that_never_comes_is_missed():
    walk = Walk(moments(Moment.REPLAY)).steps(STEPS)

    assert walk.watched.missed == "nobody took over, and the moment to strike there never came"


def test_heir_is_struck_in_a_later_step_of_the_same_kind():
    walk = Walk(moments(Moment.MID_STEP, victim=Victim.HEIR)).steps(4)
    walk.send(A)
    walk.say("taken over", taken_over(A, HEIR))
    walk.send(HEIR, position=0, replay=True)
    walk.send(C)
    walk.finish()
    walk.steps(2, route=(HEIR, C))

    assert walk.places == ["request to a at 4", "request to h at 5"]
    assert [blow.nodes for _, blow in walk.fell] == [("a",), ("h",)]


def test_heir_between_two_steps_is_struck_after_the_step_that_made_it_one():
    walk = Walk(moments(Moment.BETWEEN, victim=Victim.HEIR)).steps(4)
    walk.say("taken over", taken_over(A, HEIR))
    walk.send(HEIR, position=0, replay=True)
    walk.finish()
    walk.steps(1, route=(HEIR, C))

    assert walk.places == ["after step 4", "after step 5"]
    assert walk.watched.blows[1].nodes == ("h",)


@pytest.mark.parametrize("moment", [Moment.PREFILL, Moment.LAST])
def test_heir_is_struck_at_once_where_no_later_step_is_of_that_kind(moment: Moment):
    walk = Walk(moments(moment, victim=Victim.HEIR))
    walk.steps(0 if moment is Moment.PREFILL else STEPS - 1)
    walk.send(A)
    walk.say("taken over", taken_over(A, HEIR))
    walk.send(HEIR, position=0, replay=moment is Moment.LAST)

    assert walk.places[-1] == "request to h at 0"


def test_server_that_is_fed_beside_a_paused_one_counts_as_its_heir():
    walk = Walk(moments(Moment.MID_STEP, fault=Fault.PAUSE, victim=Victim.HEIR)).steps(4)
    walk.send(A)
    walk.say("hedged", HedgeStarted(hop=A, now=(HEIR,)))
    walk.send(HEIR, position=0, replay=True)
    walk.finish()
    walk.steps(1, route=(HEIR, C))

    assert walk.places == ["request to a at 4", "request to h at 5"]


def test_change_of_route_before_the_blow_makes_nobody_an_heir():
    walk = Walk(moments(Moment.MID_STEP, victim=Victim.HEIR))
    walk.say("taken over", taken_over(C, C))
    walk.steps(STEPS)

    assert walk.places == ["request to a at 4"]


def test_several_victims_are_struck_together():
    both = Cast(route=CAST.route, victims=(NodeName("a"), NodeName("c")))
    cell = Cell(family="llama", victim=Victim.TWO)
    walk = Walk(Moments(cell=cell, cast=both, steps=STEPS)).steps(STEPS)

    assert [blow.nodes for _, blow in walk.fell] == [("a", "c")]


@pytest.mark.parametrize("moment", [Moment.IDLE, Moment.AGED])
def test_idle_session_meets_the_fault_between_two_calls_once(moment: Moment):
    watched = moments(moment, fault=Fault.EXPIRE, calls=4)
    Walk(watched).steps(STEPS)

    fell = [call for call in (1, 2, 3) if watched.paused(call) is not None]

    assert len(fell) == 1
    assert watched.blows[0].fault is Fault.EXPIRE
    assert not watched.blows[0].in_flight


def test_aged_session_is_as_old_as_it_gets_when_it_meets_the_fault():
    watched = moments(Moment.AGED, fault=Fault.EXPIRE, calls=5)

    assert [call for call in (1, 2, 3, 4) if watched.paused(call) is not None] == [4]


def test_other_moments_are_not_between_two_calls():
    watched = moments(Moment.MID_STEP, calls=4)

    assert [watched.paused(call) for call in (1, 2, 3)] == [None, None, None]
