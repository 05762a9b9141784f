"""Logs of nodes on several hosts in memory: their order, and hosts that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.builders import a_server
from support.clock import FakeClock
from support.manyhosts import a_site

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import HostUnreachable, UsageError
from swarmctl.operations import logs
from swarmctl.operations.logs import NodeLine
from swarmctl.operations.selection import candidates, select
from swarmctl.operations.site import Site
from swarmctl.operations.up import up
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, SwarmSpec
from swarmctl.transport.base import HostedNode, LogChunk, LogPosition
from swarmctl.transport.fake import FakeTransport

NEAR, FAR = HostName("near"), HostName("far")
BOOT, A, B, C = NodeName("boot"), NodeName("a"), NodeName("b"), NodeName("c")
AWAY = "host far (ops@far): no answer within 10 s"


@dataclass
class Stage:
    """A swarm that is up: the bootstrap peer, a and c on one host, b on another."""

    site: Site
    hosts: dict[HostName, FakeTransport]
    clock: FakeClock
    heard: list[tuple[HostName, bool]] = field(default_factory=list)

    def read(self, *names: NodeName, **how: object) -> Iterator[NodeLine]:
        def heard(host: HostName, failure: HostUnreachable | None) -> None:
            self.heard.append((host, failure is None))

        return logs.read(self.site, names, heard=heard, **how)  # type: ignore[arg-type]

    def write(self, name: NodeName, text: str, *, after_s: float = 0.0) -> None:
        self.clock.sleep(after_s)
        self.hosts[FAR if name == B else NEAR].log(name, text)

    def at(self, delay_s: float, act: Callable[[], object]) -> None:
        self.clock.at(self.clock.elapsed_s + delay_s, act)

    def end(self, *names: NodeName) -> None:
        for name in names:
            self.hosts[FAR if name == B else NEAR].end(name, "stopped")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    spec = SwarmSpec(
        name="lab",
        model=ModelSpec(source="/models/tiny", dht_prefix="tiny", num_blocks=8, hidden_size=8),
        hosts={name: HostSpec(name=name, ssh=f"ops@{name}", address="192.0.2.1") for name in (NEAR, FAR)},
        bootstraps=(BootstrapSpec(name=BOOT, host=NEAR),),
        nodes={
            A: a_server("a", "0:8", host="near"),
            B: a_server("b", "0:8", host="far"),
            C: a_server("c", "0:8", host="near"),
        },
    )
    site, hosts, clock = a_site(spec, tmp_path)
    up(site, sink=lambda _event: None, deadline_s=300.0)
    clock.sleep(60)
    return Stage(site=site, hosts=hosts, clock=clock)


def texts(lines: Iterator[NodeLine]) -> list[str]:
    return [f"{line.node} {line.text}" for line in lines]


# --- once ----------------------------------------------------------------------------------------------------------


def test_lines_of_several_nodes_are_in_the_order_of_their_times(stage: Stage) -> None:
    for name, text in ((B, "one"), (A, "two"), (B, "three"), (A, "four")):
        stage.write(name, text, after_s=1)

    found = list(stage.read(A, B, tail=2))

    assert [(line.node, line.host, line.text) for line in found] == [
        (B, FAR, "one"),
        (A, NEAR, "two"),
        (B, FAR, "three"),
        (A, NEAR, "four"),
    ]
    assert [line.at for line in found] == sorted(line.at for line in found if line.at is not None)


def test_lines_of_one_moment_keep_the_order_of_the_nodes_and_of_each_log(stage: Stage) -> None:
    for name, text in ((B, "one"), (A, "two"), (B, "three"), (A, "four")):
        stage.write(name, text)

    assert texts(stage.read(A, B, tail=2)) == ["a two", "a four", "b one", "b three"]


def test_a_clock_that_was_set_back_does_not_tear_a_log_apart(stage: Stage) -> None:
    stage.write(A, "before")
    stage.hosts[NEAR].skew_s = -600.0
    stage.write(A, "set back", after_s=1)
    stage.write(B, "other", after_s=1)

    assert texts(stage.read(A, B, tail=2))[-3:] == ["a before", "a set back", "b other"]


def test_the_tail_is_counted_for_each_node_and_before_grep(stage: Stage) -> None:
    for number in range(4):
        stage.write(A, f"number {number}", after_s=1)
    stage.write(B, "number 9", after_s=1)

    assert texts(stage.read(A, B, tail=2, grep="number [019]")) == ["b number 9"]
    assert texts(stage.read(A, B, tail=None, grep="number [019]")) == ["a number 0", "a number 1", "b number 9"]


def test_since_leaves_older_lines_out(stage: Stage) -> None:
    stage.write(A, "old")
    stage.write(A, "new", after_s=600)

    assert texts(stage.read(A, B, since=stage.clock.now().timestamp() - 10)) == ["a new"]


def test_a_pattern_that_is_no_regular_expression_is_refused_before_anything_is_read(stage: Stage) -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        stage.read(A, grep="(")


def test_all_of_a_host_are_meant_by_its_name(stage: Stage) -> None:
    chosen = select(candidates(stage.site), ["@near"])

    assert chosen == (BOOT, A, C)
    assert {line.node for line in stage.read(*chosen)} == {BOOT, A, C}


def test_a_node_that_has_crashed_and_one_that_is_not_in_the_file_any_more_are_read(stage: Stage) -> None:
    stage.hosts[FAR].end(B, "killed by signal 9 (SIGKILL)")
    nodes = {name: node for name, node in stage.site.spec.nodes.items() if name != B}
    stage.site = replace(stage.site, spec=replace(stage.site.spec, nodes=nodes))

    assert B in select(candidates(stage.site), ["@far"])
    assert texts(stage.read(B))[-1] == "b killed by signal 9 (SIGKILL)"


def test_hosts_that_do_not_answer_are_an_error_after_the_lines_of_the_others(stage: Stage) -> None:
    stage.hosts[FAR].away = AWAY
    lines = stage.read(A, B, tail=1)

    assert next(lines).node == A
    with pytest.raises(HostUnreachable, match="host far"):
        next(lines)
    stage.hosts[NEAR].away = "host near (ops@near): no route to host"
    with pytest.raises(HostUnreachable, match="2 hosts do not answer") as failed:
        list(stage.read(A, B))
    assert failed.value.reasons == ("host near (ops@near): no route to host", AWAY)
    assert stage.heard == []


def test_a_host_that_has_none_of_the_nodes_may_be_away(stage: Stage) -> None:
    stage.hosts[FAR].away = AWAY

    assert len(list(stage.read(A, C, tail=1))) == 2
    stage.at(1, lambda: stage.end(A))
    assert texts(stage.read(A, tail=1, follow=True)) == ["a started server a", "a stopped"]
    assert stage.heard == []


class Brief(FakeTransport):
    """A host that returns two lines a call at most."""

    def read_log(
        self,
        node: NodeName,
        *,
        after: LogPosition | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        whole = super().read_log(node, after=after, tail=tail, since=since)
        if len(whole.entries) <= 2 or whole.position is None:
            return whole
        left = len(whole.entries) - 2
        position = replace(whole.position, offset=whole.position.offset - left)
        return replace(whole, entries=whole.entries[:2], position=position, more=True)


def test_a_log_that_comes_in_pieces_is_read_to_its_end_also_by_who_follows(stage: Stage) -> None:
    stage.hosts[NEAR].__class__ = Brief
    for number in range(7):
        stage.write(A, str(number), after_s=1)
        stage.write(B, str(number), after_s=1)
    pairs = [text for number in range(7) for text in (f"a {number}", f"b {number}")]

    assert texts(stage.read(A, B, tail=7)) == pairs

    def write_much_and_end() -> None:
        for number in range(9):
            stage.write(A, f"more {number}")
        stage.end(A)

    stage.at(1, write_much_and_end)
    assert texts(stage.read(A, tail=7, follow=True))[7:] == [*(f"a more {number}" for number in range(9)), "a stopped"]


# --- followed ------------------------------------------------------------------------------------------------------


def test_new_lines_come_as_they_are_written_until_nothing_is_left_of_any_node(stage: Stage) -> None:
    stage.at(1, lambda: stage.write(A, "new"))
    stage.at(2, lambda: stage.end(A))
    stage.at(3, lambda: stage.end(B))

    lines = texts(stage.read(A, B, tail=1, follow=True))

    assert sorted(lines[:2]) == ["a started server a", "b started server b"]
    assert lines[2:] == ["a new", "a stopped", "b stopped"]


def test_a_line_that_is_read_later_than_a_newer_one_still_comes_before_it(stage: Stage) -> None:
    # What far has written comes a look late, as over a slow line.
    stage.at(1.0, lambda: stage.write(A, "newer"))

    def late() -> None:
        stage.hosts[FAR].skew_s = -0.4
        stage.write(B, "older")

    stage.at(1.2, late)
    stage.at(3, lambda: stage.end(A, B))

    assert texts(stage.read(A, B, tail=1, follow=True))[2:4] == ["b older", "a newer"]


def test_a_host_that_stops_answering_is_told_once_and_the_others_go_on_until_it_is_back(stage: Stage) -> None:
    far = stage.hosts[FAR]
    stage.at(1, lambda: setattr(far, "away", AWAY))
    stage.at(2, lambda: stage.write(A, "meanwhile"))
    stage.at(3, lambda: (stage.write(B, "unseen"), stage.end(A)))
    stage.at(5, lambda: setattr(far, "away", None))
    stage.at(6, lambda: stage.end(B))

    lines = texts(stage.read(A, B, tail=1, follow=True))

    assert lines[2:] == ["a meanwhile", "a stopped", "b unseen", "b stopped"]
    assert stage.heard == [(FAR, False), (FAR, True)]


def test_a_host_that_is_away_from_the_beginning_is_told_and_its_nodes_are_read_when_it_is_back(stage: Stage) -> None:
    far = stage.hosts[FAR]
    for number in range(5):
        stage.write(B, str(number))
    far.away = AWAY
    stage.at(2, lambda: setattr(far, "away", None))
    stage.at(4, lambda: stage.end(A, B))

    lines = texts(stage.read(A, B, tail=2, follow=True))

    assert lines[1:3] == ["b 3", "b 4"]
    assert stage.heard == [(FAR, False), (FAR, True)]


def test_a_host_that_hangs_keeps_nobody_elses_lines_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.05)
    far = stage.hosts[FAR]
    hangs, released = threading.Event(), threading.Event()

    def survey(_names: object = None) -> tuple[HostedNode, ...]:
        hangs.set()
        assert released.wait(30)
        return FakeTransport.survey(far, [B])

    stage.at(1, lambda: setattr(far, "survey", survey))
    stage.at(2, lambda: stage.write(A, "meanwhile"))
    lines = stage.read(A, B, tail=1, follow=True)

    assert [next(lines).text for _ in range(3)][-1] == "meanwhile"
    assert hangs.is_set()
    stage.write(B, "at last")
    stage.end(A, B)
    released.set()
    assert sorted(texts(lines)) == ["a stopped", "b at last", "b stopped"]


def test_a_node_that_is_started_while_its_log_is_followed_is_read_from_then_on(stage: Stage) -> None:
    launch = next(node.launch for node in stage.hosts[FAR].survey([B]))
    assert launch is not None
    stage.end(B)
    stage.hosts[FAR].clear(B, purge=True)
    stage.at(1, lambda: stage.hosts[FAR].start_runner(launch))
    stage.at(2, lambda: stage.end(A, B))

    lines = texts(stage.read(A, B, tail=1, follow=True))

    assert lines[:2] == ["a started server a", "b started server b"]
    assert sorted(lines[2:]) == ["a stopped", "b stopped"]


def test_a_node_that_starts_on_another_host_is_followed_there(stage: Stage) -> None:
    launch = next(node.launch for node in stage.hosts[FAR].survey([B]))
    assert launch is not None
    stage.hosts[FAR].end(B, "stopped")
    stage.hosts[FAR].clear(B, purge=True)
    stage.hosts[NEAR].start_runner(launch)
    stage.hosts[NEAR].log(B, "here")

    def move() -> None:
        stage.hosts[NEAR].end(B, "gone from here")
        stage.hosts[FAR].start_runner(launch)
        stage.hosts[FAR].log(B, "there")

    stage.at(1, move)
    stage.at(3, lambda: stage.hosts[FAR].end(B, "stopped"))

    lines = [(line.host, line.text) for line in stage.read(B, tail=2, follow=True)]

    assert lines == [
        (NEAR, "started server b"),
        (NEAR, "here"),
        (NEAR, "gone from here"),
        (FAR, "started server b"),
        (FAR, "there"),
        (FAR, "stopped"),
    ]


def test_a_node_that_is_removed_while_it_is_followed_ends_that(stage: Stage) -> None:
    def remove() -> None:
        stage.end(B)
        stage.hosts[FAR].clear(B, purge=True)

    stage.at(1, remove)

    assert texts(stage.read(B, tail=1, follow=True)) == ["b started server b"]


def test_a_fault_of_a_host_that_is_no_silence_ends_it(stage: Stage) -> None:
    class Broken(Exception):
        pass

    def survey(_names: object = None) -> tuple[HostedNode, ...]:
        raise Broken

    stage.at(1, lambda: setattr(stage.hosts[FAR], "survey", survey))
    with pytest.raises(Broken):
        list(stage.read(A, B, follow=True))
