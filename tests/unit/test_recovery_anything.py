"""The recovery machine in a swarm where anything fails at any time: the caches stay true, and it ends.

The swarm knows one thing only: a cache is the inputs that a server was sent, in order. The driver does what
`upstream.session` does, with lists for tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmctl.blocks import BlockRange, PeerId
from swarmctl.recovery import (
    Commit,
    DeadlinePassed,
    FailureKind,
    Fed,
    Feed,
    FindRoute,
    GiveUp,
    Happening,
    Idle,
    Late,
    LegFailed,
    RouteFound,
    RouteMissing,
    SessionState,
    StepAborted,
    StepRequested,
    Wait,
    WaitOver,
    advance,
)

# SLOW is the machine's own word for a server that was overtaken.
KINDS = tuple(kind for kind in FailureKind if kind is not FailureKind.SLOW)
WORTH_A_WAIT = tuple(kind for kind in KINDS if kind is not FailureKind.BROKEN)
# Instructions of one step: each failure costs a route and a replay of at most all legs, and few are injected.
BOUND = 400


def applied(block: int, inputs: list[int]) -> int:
    """What a block makes of its newest input: it depends on every input before, and on their order."""
    return hash((block, tuple(inputs)))


def answers(blocks: BlockRange, cache: list[int], new: int) -> list[int]:
    """The last `new` outputs of a server whose cache holds the inputs `cache`, the new ones included."""
    states = list(cache)
    for block in blocks:
        states = [applied(block, states[: end + 1]) for end in range(len(states))]
    return states[len(states) - new :]


def truth(num_blocks: int, tokens: list[int]) -> dict[int, list[int]]:
    """What the inputs at every block boundary must be."""
    return {at: answers(BlockRange(0, at), tokens, len(tokens)) if at else list(tokens) for at in range(num_blocks + 1)}


@dataclass
class Swarm:
    """Servers that fail as is drawn, in one of `kinds`, at most `faults` times; their caches by leg."""

    data: st.DataObject
    servers: dict[PeerId, BlockRange]
    faults: int
    kinds: tuple[FailureKind, ...] = KINDS
    caches: dict[int, list[int]] = field(default_factory=dict)
    dead: set[PeerId] = field(default_factory=set)

    def route(self, need: BlockRange, avoid: frozenset[PeerId]) -> Happening:
        able = {peer: blocks for peer, blocks in self.servers.items() if peer not in avoid | self.dead}
        hops = []
        at = need.start
        while at < need.end:
            holders = sorted(peer for peer, blocks in able.items() if at in blocks)
            if not holders:
                return RouteMissing(missing=(BlockRange(at, at + 1),))
            peer = self.data.draw(st.sampled_from(holders))
            end = self.data.draw(st.integers(at + 1, min(able[peer].end, need.end)))
            hops.append((peer, BlockRange(at, end)))
            at = end
        return RouteFound(hops=tuple(hops))

    def fails(self) -> FailureKind | None:
        """Whether the request that is being made fails, and how."""
        kind = self.data.draw(st.sampled_from((None, *self.kinds))) if self.faults else None
        self.faults -= kind is not None
        return kind

    def is_late(self) -> bool:
        """Whether the answer to the request that is being made is late; it may still come."""
        late = bool(self.faults) and self.data.draw(st.booleans())
        self.faults -= late
        return late

    def may_die(self, peer: PeerId, kind: FailureKind) -> None:
        """A server that is lost or silent is dead, or only slow."""
        if kind in (FailureKind.LOST, FailureKind.SILENT) and self.data.draw(st.booleans()):
            self.dead.add(peer)

    def some_return(self) -> None:
        """Time passes, and one or more of the dead are started again."""
        if self.dead:
            self.dead -= self.data.draw(st.sets(st.sampled_from(sorted(self.dead)), min_size=1))


class Interrupted(Exception):
    """The caller's Ctrl-C."""


@dataclass
class Driver:
    """`upstream.session` without tensors, streams and time."""

    swarm: Swarm
    state: SessionState
    chunk: int
    patience: int = 3
    output: list[int] = field(default_factory=list)
    waits: int = 0
    histories: dict[int, list[int]] = field(default_factory=lambda: {0: []})
    pending: dict[int, Feed] = field(default_factory=dict)  # what is late: asked, and not answered

    def step(self, tokens: list[int], *, interruptible: bool = False) -> bool:
        """True if it was committed; the session stays where it was if not."""
        start, before = self.state.committed, set(self.histories)
        self.waits = 0
        self.histories[0] += tokens
        self.histories[self.state.num_blocks] = [0] * start
        feeding: set[int] = set()
        self.pending.clear()
        happening: Happening = StepRequested(tokens=len(tokens))
        for _ in range(BOUND):
            self.state, instruction = advance(self.state, happening)
            self.let_go()
            feeding = set(self.pending)
            match instruction:
                case FindRoute():
                    happening = self.swarm.route(instruction.need, instruction.avoid)
                case Feed():
                    feeding.add(instruction.leg.id)
                    try:
                        happening = self.feed(instruction, start, interruptible=interruptible)
                    except Interrupted:
                        break
                case Wait():
                    happening = self.wait()
                case Commit():
                    assert instruction.position == self.state.committed == start + len(tokens)
                    assert not self.pending
                    self.output = self.histories[self.state.num_blocks][start:]
                    kept = self.state.boundaries | {0}
                    self.histories = {at: held for at, held in self.histories.items() if at in kept}
                    return True
                case GiveUp():
                    break
                case Idle():
                    raise AssertionError("nothing to do in the middle of a step")
        else:
            raise AssertionError("the step does not end")
        self.state, _ = advance(self.state, StepAborted(in_flight=frozenset(feeding)))
        self.histories = {at: held[:start] for at, held in self.histories.items() if at in before}
        return False

    def let_go(self) -> None:
        """The streams of legs that are not wanted any more are closed."""
        wanted = {leg.id for leg in self.state.open_legs}
        self.pending = {leg: feed for leg, feed in self.pending.items() if leg in wanted}

    def feed(self, feed: Feed, committed: int, *, interruptible: bool) -> Happening:
        """What happens first: to this leg, or to one that is late."""
        if feed.leg.id in self.pending:
            assert self.pending.pop(feed.leg.id) == feed, "a leg that is waited for is asked for the same"
        elif self.pending and self.swarm.data.draw(st.booleans()):
            _, feed = self.pending.popitem()
        elif not self.pending and self.swarm.is_late():
            self.pending[feed.leg.id] = feed
            return Late(leg=feed.leg.id)
        return self.answer(feed, committed, interruptible=interruptible)

    def answer(self, feed: Feed, committed: int, *, interruptible: bool) -> Happening:
        leg = feed.leg
        held = self.swarm.caches.setdefault(leg.id, [])
        assert len(held) == feed.begin == leg.fed, "a live leg is sent what it lacks, a fresh one everything"
        assert feed.begin in (0, committed), "only new tokens travel to a live leg"
        for begin in range(feed.begin, feed.end, self.chunk):
            end = min(feed.end, begin + self.chunk)
            chunk = self.histories[leg.blocks.start][begin:end]
            assert len(chunk) == end - begin, "the history has what is sent"
            if interruptible and self.swarm.data.draw(st.booleans()):
                if self.swarm.data.draw(st.booleans()):
                    held += chunk
                raise Interrupted
            kind = self.swarm.fails()
            if kind is not None or leg.peer in self.swarm.dead:
                kind = kind or FailureKind.LOST
                del self.swarm.caches[leg.id]
                self.swarm.may_die(leg.peer, kind)
                return LegFailed(leg=leg.id, kind=kind)
            held += chunk
            output = self.histories.setdefault(leg.blocks.end, [])
            assert begin <= len(output), "no boundary has a hole"
            output += answers(leg.blocks, held, len(chunk))[len(output) - begin :]
        return Fed(leg=leg.id, upto=feed.end)

    def wait(self) -> Happening:
        self.waits += 1
        if self.waits > self.patience:
            return DeadlinePassed()
        self.swarm.some_return()
        return WaitOver()


@st.composite
def swarms(draw: st.DrawFn) -> tuple[int, dict[PeerId, BlockRange]]:
    """A model, and servers of which each block has one at least."""
    num_blocks = draw(st.integers(1, 6))
    ranges = [BlockRange(0, num_blocks)]
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, num_blocks - 1))
        ranges.append(BlockRange(start, draw(st.integers(start + 1, num_blocks))))
    return num_blocks, {PeerId(f"p{index}"): blocks for index, blocks in enumerate(ranges)}


@given(data=st.data(), swarm=swarms(), chunk=st.integers(1, 4), faults=st.integers(0, 8))
def test_caches_hold_the_true_prefix_after_every_step_whatever_fails(
    data: st.DataObject, swarm: tuple[int, dict[PeerId, BlockRange]], chunk: int, faults: int
) -> None:
    num_blocks, servers = swarm
    world = Swarm(data=data, servers=servers, faults=faults)
    driver = Driver(swarm=world, state=SessionState(num_blocks=num_blocks), chunk=chunk)
    tokens: list[int] = []

    for number in range(data.draw(st.integers(1, 4))):
        new = [1000 * number + index for index in range(data.draw(st.integers(1, 5)))]
        done = driver.step(new, interruptible=data.draw(st.booleans()))

        tokens += new if done else []
        true = truth(num_blocks, tokens)
        assert driver.state.committed == len(tokens)
        for leg in driver.state.legs:
            assert leg.fed == len(tokens)
            assert world.caches.get(leg.id, []) == true[leg.blocks.start]
        for at, held in driver.histories.items():
            assert held == true[at]
        if done:
            assert driver.output == true[num_blocks][-len(new) :]
            assert [block for leg in driver.state.legs for block in leg.blocks] == list(range(num_blocks))


@given(data=st.data(), swarm=swarms(), faults=st.integers(0, 12))
@settings(max_examples=60)
def test_a_step_is_completed_when_servers_return_in_time(
    data: st.DataObject, swarm: tuple[int, dict[PeerId, BlockRange]], faults: int
) -> None:
    num_blocks, servers = swarm
    world = Swarm(data=data, servers=servers, faults=faults, kinds=WORTH_A_WAIT)
    driver = Driver(swarm=world, state=SessionState(num_blocks=num_blocks), chunk=3, patience=BOUND)

    for _ in range(2):
        assert driver.step([1, 2])
