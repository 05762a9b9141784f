"""Sessions of a trial over fake servers: when blows fall, what is kept, and that every play ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.clients import a_client
from support.fakeswarm import Die, FakeRouter, servers_of
from support.toymodel import LocalModel, RemoteModel

from swarmctl.blocks import BlockRange, NodeName
from swarmctl.client.generate import Sampling
from swarmctl.clock import SystemClock
from swarmctl.errors import DeadlineExceeded
from swarmctl.events import Event, PeerFailed, RecoveryDone, RecoveryGivenUp, RouteChosen, StepDone, TokensEmitted
from swarmctl.matrix import Cell, Fault, Moment, Victim
from swarmctl.operations.trials.casting import Cast, Part
from swarmctl.operations.trials.moments import Blow, Moments
from swarmctl.operations.trials.playing import Direction, Take, play
from swarmctl.operations.trials.traffic import Script, Turn

BLOCKS = 3
PROMPT = (1, 0, 3)
TOKENS = 10
LOCAL = LocalModel(BLOCKS)


class Directing(Direction):
    """Kills whom a blow names, and notes what the sessions asked for."""

    def __init__(self, bench: Bench, *, comebacks: int = 0) -> None:
        self.bench = bench
        self.blows: list[Blow] = []
        self.pauses: list[int] = []
        self.comebacks = comebacks
        self.heard_of: list[Event] = []

    def heard(self, event: Event, take: Take) -> None:
        self.heard_of.append(event)

    def strike(self, blow: Blow, take: Take) -> None:
        self.blows.append(blow)
        for server in self.bench.servers:
            if server.name in blow.nodes:
                server.kill()

    def pause(self, call: int, take: Take) -> None:
        self.pauses.append(call)

    def again(self, take: Take) -> bool:
        self.comebacks -= 1
        for server in self.bench.servers:
            server.alive = True
        return self.comebacks >= 0


class Bench:
    """A client of servers a and b, which both have all blocks."""

    def __init__(self, **limits: Any) -> None:
        self.servers = servers_of(f"a=0:{BLOCKS}", f"b=0:{BLOCKS}")
        self.router = FakeRouter(self.servers, BLOCKS)
        self.client = a_client(self.router, RemoteModel(self.router), **{"recover_timeout_s": 0.1, **limits})

    def play(self, *takes: Take, at_once: bool = False, within_s: float = 30.0) -> None:
        play(self.client, takes, at_once=at_once, clock=SystemClock(), within_s=within_s)


def script(*turns: tuple[int, ...], tokens: int = TOKENS) -> Script:
    given = turns or (PROMPT,)
    return Script(turns=tuple(Turn(ids=(ids,), sampling=Sampling(max_new_tokens=tokens)) for ids in given))


def followed(
    moment: Moment, *, fault: Fault = Fault.KILL, victims: tuple[str, ...] = ("a",), calls: int = 1
) -> Moments:
    cell = Cell(family="toy", fault=fault, moment=moment, victim=Victim.FIRST)
    cast = Cast(route=(Part(node=NodeName("a"), blocks=BlockRange(0, BLOCKS)),), victims=tuple(map(NodeName, victims)))
    return Moments(cell=cell, cast=cast, steps=TOKENS, calls=calls)


def alone(*said: tuple[int, ...]) -> tuple[int, ...]:
    whole: list[int] = []
    came: list[int] = []
    for ids in said:
        whole += ids
        (new,) = LOCAL.new_ids([whole], max_new_tokens=TOKENS, do_sample=False)
        whole += new
        came += new
    return tuple(came)


def of(take: Take, kind: type[Event]) -> list[Any]:
    return [event for event in take.events if isinstance(event, kind)]


@pytest.mark.parametrize("moment", [Moment.PREFILL, Moment.MID_STEP, Moment.BETWEEN])
def test_blow_falls_once_and_the_session_goes_on(moment: Moment):
    bench = Bench()
    directing = Directing(bench)
    take = Take(script=script(), direction=directing, moments=followed(moment))

    bench.play(take)

    assert take.ids == (alone(PROMPT),)
    assert [(blow.nodes, blow.fault) for blow in directing.blows] == [(("a",), Fault.KILL)]
    assert [event.hop.node for event in of(take, PeerFailed)] == ["a"]
    assert len(of(take, RecoveryDone)) == 1


def test_answer_is_lost_when_a_late_server_dies():
    bench = Bench()
    directing = Directing(bench)
    take = Take(script=script(), direction=directing, moments=followed(Moment.MID_STEP, fault=Fault.LATE))

    bench.play(take)

    assert take.ids == (alone(PROMPT),)
    served = [(received.begin, received.tokens) for received in bench.servers[0].received]
    (failure,) = of(take, PeerFailed)
    assert (failure.position, 1) == served[-1], "the lost request was computed"


def test_takes_without_moments_are_left_alone():
    bench = Bench()
    directing = Directing(bench)
    takes = [Take(script=script(), direction=directing), Take(script=script((4, 4)), direction=directing)]

    bench.play(*takes)

    assert [take.ids for take in takes] == [(alone(PROMPT),), (alone((4, 4)),)]
    assert not directing.blows
    assert [type(event) for event in directing.heard_of].count(RouteChosen) == 2


def test_hidden_states_of_every_step_are_kept_and_events_have_one_clock():
    bench = Bench()
    takes = [Take(script=script()), Take(script=script())]

    bench.play(*takes)

    for take in takes:
        assert [tuple(step.shape[:2]) for step in take.outputs] == [(1, 3), *[(1, 1)] * (TOKENS - 1)]
        assert len(of(take, StepDone)) == TOKENS
    times = [event.at_s for take in takes for event in take.events]
    assert times == sorted(times)


def test_tokens_of_several_calls_are_numbered_through():
    bench = Bench()
    directing = Directing(bench)
    take = Take(script=script(PROMPT, (2, 2), (1,)), direction=directing)

    bench.play(take)

    assert take.ids == (alone(PROMPT, (2, 2), (1,)),)
    assert [event.index for event in of(take, TokensEmitted)] == list(range(len(take.ids[0])))
    assert directing.pauses == [1, 2]


def test_blow_of_an_idle_session_falls_between_two_calls():
    bench = Bench()
    directing = Directing(bench)
    take = Take(script=script(PROMPT, (2, 2)), direction=directing, moments=followed(Moment.IDLE, calls=2))

    bench.play(take)

    assert take.ids == (alone(PROMPT, (2, 2)),)
    (blow,) = directing.blows
    assert not blow.in_flight


def test_session_without_servers_goes_on_when_they_are_back():
    bench = Bench()
    directing = Directing(bench, comebacks=1)
    take = Take(script=script(), direction=directing, moments=followed(Moment.MID_STEP, victims=("a", "b")))

    bench.play(take)

    assert take.ids == (alone(PROMPT),)
    assert len(of(take, RecoveryGivenUp)) == 1


def test_session_without_servers_ends_with_its_error_and_those_after_it_are_not_played():
    bench = Bench()
    take = Take(script=script(), direction=Directing(bench), moments=followed(Moment.MID_STEP, victims=("a", "b")))
    after = Take(script=script())

    bench.play(take, after)

    assert take.ids is None
    assert take.error is not None
    assert "no server for blocks 0:3" in take.error
    assert (after.ids, after.error, after.events) == (None, None, [])


def test_error_of_the_direction_ends_the_session_that_met_it():
    class Broken(Direction):
        def strike(self, blow: Blow, take: Take) -> None:
            raise LookupError("there is no such node")

    take = Take(script=script(), direction=Broken(), moments=followed(Moment.MID_STEP))

    Bench().play(take)

    assert take.error == "LookupError: there is no such node"


def test_sessions_of_a_crowd_are_played_at_once():
    bench = Bench()
    gathering = threading.Barrier(4)

    class Gathers(Direction):
        def heard(self, event: Event, take: Take) -> None:
            if isinstance(event, StepDone) and event.step == 2:
                gathering.wait(20)

    prompts = [(at, 1, 3) for at in range(1, 20) if len(alone((at, 1, 3))) == TOKENS][:4]
    takes = [Take(script=script(prompt), direction=Gathers()) for prompt in prompts]

    bench.play(*takes, at_once=True)

    assert [take.ids for take in takes] == [(alone(prompt),) for prompt in prompts]


def test_session_that_does_not_end_in_time_is_told_to_stop():
    bench = Bench(recover_timeout_s=60.0)
    for server in bench.servers:
        server.will(Die)
    take = Take(script=script())

    with pytest.raises(DeadlineExceeded, match="waiting for 1 of 1 sessions"):
        bench.play(take, within_s=0.2)

    assert take.ids is None
