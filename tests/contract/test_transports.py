"""What every transport must do, whichever way it reaches its host."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from support import sshd
from support.needed import unless

from swarmctl import __version__, build, ports
from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.clock import SystemClock
from swarmctl.errors import DeadlineExceeded, Locked
from swarmctl.poll import Pending, wait_until
from swarmctl.store import Launch, Layout
from swarmctl.transport.base import KILLED, HostedNode, LogPosition, Order, Transport
from swarmctl.transport.fake import FakeTransport
from swarmctl.transport.hosted import Runtime
from swarmctl.transport.journal import Entry, EntryChunk
from swarmctl.transport.local import LocalTransport
from swarmctl.transport.oplock import LockNote
from swarmctl.transport.reach import Reach
from swarmctl.transport.ssh import SshTransport

T = TypeVar("T")
A, B = NodeName("a"), NodeName("b")

CHILD = """
import json, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("the child says hello", flush=True)
pathlib.Path("progress.json").write_text(json.dumps({"phase": "online", "done": 1, "total": 1}))
while True: signal.pause()
"""


@dataclass
class Case:
    """A transport and a folder that is its alone."""

    transport: Transport
    folder: Path

    def launch(self, node: NodeName = A) -> Launch:
        files = self.transport.layout.node(node)
        (port,) = ports.choose("127.0.0.1", [0])
        return Launch(
            kind="server",
            swarm="lab",
            node=node,
            peer=PeerId(f"Qm{node}"),
            port=port,
            listen_ip="127.0.0.1",
            announce_ip="127.0.0.1",
            initial_peers=("/ip4/127.0.0.1/tcp/1/p2p/QmBoot",),
            identity=str(files.identity),
            sockets=str(files.sockets),
            progress=str(files.progress),
            observed=str(files.observed),
            model_source="/nowhere",
            dht_prefix="lab-hf",
            num_blocks=4,
            hidden_size=8,
            blocks="0:4",
            settings={},
        )

    def look(self, node: NodeName = A) -> HostedNode:
        (seen,) = self.transport.survey([node])
        return seen

    def started(self, node: NodeName = A) -> HostedNode:
        self.transport.start_runner(self.launch(node))
        return eventually(lambda: (s := self.look(node)).progress and s.progress.phase == "online" and s)

    def settled(self, node: NodeName = A) -> HostedNode:
        return eventually(lambda: (s := self.look(node)).settled and s)


def eventually(check: Callable[[], T]) -> T:
    """The first true value of `check`."""

    def observe() -> T | Pending:
        return check() or Pending(reasons=())

    return wait_until(observe, what="the node", within_s=20, clock=SystemClock(), every_s=0.02)


@pytest.fixture(
    params=[
        "fake",
        pytest.param("local", marks=pytest.mark.process),
        pytest.param("ssh", marks=pytest.mark.process),
    ]
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    layout = Layout(state=folder / "state", run=folder / "run", swarm="lab")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if request.param == "fake":
            yield Case(transport=FakeTransport(layout, SystemClock()), folder=folder)
            return
        child = (sys.executable, "-c", CHILD)
        if request.param == "local":
            transport: Transport = LocalTransport(layout, Runtime(python=sys.executable, child=child))
        else:
            transport = SshTransport(_reach(stack, folder, layout), "lab", child=child)
        case = Case(transport=transport, folder=folder)
        stack.callback(transport.close)
        stack.callback(_end_all, case)
        yield case


def _reach(stack: ExitStack, folder: Path, layout: Layout) -> Reach:
    unless(sshd.why_not())
    there = folder / "sshd"
    there.mkdir()
    folders = {"SWARMCTL_STATE": str(layout.state), "SWARMCTL_RUN": str(layout.run)}
    served = stack.enter_context(sshd.serving(there, folders))
    return Reach(host=HostName("far"), destination=served.destination, python=sys.executable, command=served.command)


def _end_all(case: Case) -> None:
    for seen in case.transport.survey():
        case.transport.signal(seen.name, Order.END)
        case.settled(seen.name)


def test_a_started_node_is_seen_from_the_first_moment_until_it_is_ready(case: Case) -> None:
    launch = case.launch()
    case.transport.start_runner(launch)

    first = case.look()
    assert first.running
    assert not first.settled
    assert first.launch == launch
    last = eventually(lambda: (s := case.look()).progress and s.progress.phase == "online" and s)
    assert last.record is not None
    assert last.runner_alive
    assert (last.record.peer, last.record.port, last.record.blocks) == (launch.peer, launch.port, "0:4")
    assert last.record.addresses == (f"/ip4/127.0.0.1/tcp/{launch.port}/p2p/Qma",)
    assert {last.record.runner_pid, last.record.child_pid} <= {process.pid for process in last.processes}
    assert last.ended is None


def test_the_record_says_where_others_reach_the_node(case: Case) -> None:
    launch = replace(case.launch(), announce_ip="203.0.113.5", announce_port=31340)

    case.transport.start_runner(launch)

    record = eventually(lambda: case.look().record)
    assert record.addresses == ("/ip4/203.0.113.5/tcp/31340/p2p/Qma",)
    assert record.port == launch.port != 31340


def test_a_node_that_runs_is_not_started_again(case: Case) -> None:
    before = case.started()

    with pytest.raises(Locked, match="node a has a runner already"):
        case.transport.start_runner(case.launch())

    assert case.look().record == before.record


def test_a_node_that_is_asked_to_stop_has_stopped_in_good_order(case: Case) -> None:
    case.started()

    assert case.transport.signal(A, Order.STOP)

    after = case.settled()
    assert after.record is not None
    assert (after.ended, after.record.asked_to_stop) == ("stopped", True)
    assert not after.running
    assert after.processes == ()


def test_a_killed_node_has_crashed_on_purpose(case: Case) -> None:
    case.started()

    assert case.transport.signal(A, Order.KILL)

    after = case.settled()
    assert after.record is not None
    assert (after.ended, after.record.asked_to_stop) == (KILLED, False)


def test_a_node_that_is_ended_leaves_nothing(case: Case) -> None:
    case.started()

    assert case.transport.signal(A, Order.END)

    assert case.settled().ended is not None


@pytest.mark.parametrize("order", Order)
def test_an_order_to_nobody_is_taken_by_nobody(case: Case, order: Order) -> None:
    assert not case.transport.signal(A, order)
    case.started()
    case.transport.signal(A, Order.STOP)
    case.settled()

    assert not case.transport.signal(A, order)


def test_a_node_that_runs_is_not_cleared(case: Case) -> None:
    case.started()

    assert case.transport.clear(A) == ("the runner of a is still there",)

    assert case.look().record is not None


def test_a_cleared_node_has_no_record_and_can_start_again(case: Case) -> None:
    case.started()
    case.transport.signal(A, Order.STOP)
    case.settled()

    assert case.transport.clear(A) == ()

    after = case.look()
    assert after.record is None
    assert after.launch is not None
    assert not after.running
    assert case.started().running


def test_a_purged_node_has_never_been(case: Case) -> None:
    case.started()
    case.transport.signal(A, Order.STOP)
    case.settled()

    assert case.transport.clear(A, purge=True) == ()

    assert case.transport.survey() == ()
    assert case.transport.survey([A]) == ()
    assert case.transport.clear(A) == ()


def test_a_survey_names_all_nodes_or_those_that_are_asked_for(case: Case) -> None:
    case.started(B)
    case.started(A)

    assert [seen.name for seen in case.transport.survey()] == [A, B]
    assert [seen.name for seen in case.transport.survey([B])] == [B]
    assert [seen.name for seen in case.transport.survey([NodeName("z")])] == []


def test_a_log_is_read_from_its_end_and_then_on(case: Case) -> None:
    case.started()

    first = case.transport.read_log(A, tail=1)
    assert len(first.lines) == 1
    assert case.transport.read_log(A, after=first.position).lines == ()
    case.transport.signal(A, Order.STOP)
    case.settled()

    later = case.transport.read_log(A, after=first.position)
    assert later.lines[-1].endswith("stopped")
    assert not later.more
    assert case.transport.read_log(A).entries[-len(later.entries) :] == later.entries


def test_lines_of_a_log_have_a_time_from_which_it_is_read_on(case: Case) -> None:
    begin = time.time() - 0.001
    case.started()
    case.transport.signal(A, Order.STOP)
    case.settled()

    entries = case.transport.read_log(A).entries

    times = [entry.at for entry in entries if entry.at is not None]
    assert len(times) == len(entries)
    assert begin <= times[0] <= times[-1] <= time.time()
    assert times == sorted(times)
    assert case.transport.read_log(A, since=begin).entries == entries
    last = tuple(entry for entry in entries if entry.at == times[-1])
    assert case.transport.read_log(A, since=times[-1]).entries == last
    assert case.transport.read_log(A, since=times[-1], tail=1).entries == last[-1:]
    assert case.transport.read_log(A, since=time.time() + 60).entries == ()


def test_a_node_without_a_log_has_no_lines(case: Case) -> None:
    position = LogPosition(file=1, offset=2)

    assert case.transport.read_log(NodeName("z")).lines == ()
    assert case.transport.read_log(NodeName("z"), after=position).position == position


def test_a_host_says_who_it_is_and_where_its_files_are(case: Case) -> None:
    facts = case.transport.facts()

    assert (facts.version, facts.build) == (__version__, build.digest())
    assert (facts.state, facts.run) == (str(case.folder / "state"), str(case.folder / "run"))
    assert case.transport.layout == Layout(state=case.folder / "state", run=case.folder / "run", swarm="lab")


def test_the_lock_is_one_operators_until_it_lets_go(case: Case) -> None:
    note = LockNote(who="ada@desk", doing="up", since="2026-01-02T03:04:05+00:00", why="a test")

    assert case.transport.take_lock(note) is None
    assert case.transport.has_lock()
    other = case.transport.take_lock(replace(note, who="bob@desk"))

    assert other is not None
    assert (other.who, other.doing, other.since, other.why) == ("ada@desk", "up", note.since, "a test")
    assert case.transport.has_lock()
    case.transport.release_lock()
    assert not case.transport.has_lock()
    assert case.transport.read_lock() is None
    assert case.transport.take_lock(note) is None


def test_a_lock_that_is_broken_is_lost_to_its_holder_and_free_for_the_next(case: Case) -> None:
    note = LockNote(who="ada@desk", doing="up", since="2026-01-02T03:04:05+00:00")
    case.transport.take_lock(note)

    broken = case.transport.break_lock()

    assert broken is not None
    assert broken.who == "ada@desk"
    assert not case.transport.has_lock()
    assert case.transport.read_lock() is None
    assert case.transport.break_lock() is None


def test_events_are_read_in_the_order_in_which_they_were_written_and_then_on(case: Case) -> None:
    first = Entry(at=1.5, type="started", who="ada@desk", doing="up", node="a", host="far", after="port 1")
    second = Entry(at=2.5, type="killed", who="bob@desk", doing="kill", why="a drill", node="a")
    assert case.transport.read_events() == EntryChunk(entries=(), offset=0)

    case.transport.append_events([first])
    begin = case.transport.read_events()
    case.transport.append_events([second])

    assert begin.entries == (first,)
    assert case.transport.read_events(begin.offset).entries == (second,)
    assert case.transport.read_events().entries == (first, second)


def test_a_swarm_is_dropped_with_its_events_but_not_with_its_nodes(case: Case) -> None:
    case.started()
    case.transport.signal(A, Order.STOP)
    case.settled()
    case.transport.append_events([Entry(at=1.0, type="stopped", who="ada@desk", doing="down")])
    case.transport.drop_swarm()
    assert [seen.name for seen in case.transport.survey()] == [A]

    case.transport.clear(A, purge=True)
    case.transport.drop_swarm()

    assert case.transport.read_events().entries == ()


def test_ports_are_chosen_by_a_command(case: Case) -> None:
    done = case.transport.run([sys.executable, "-m", "swarmctl.ports", "127.0.0.1", "0", "0"], timeout_s=30)

    first, second = done.stdout.split()
    assert done.code == 0
    assert first != second


def test_a_command_that_does_not_exist_ends_with_127(case: Case) -> None:
    done = case.transport.run(["/no/such/program"], timeout_s=30)

    assert done.code == 127
    assert "/no/such/program: No such file or directory" in done.stderr


@pytest.mark.process
def test_a_command_gets_its_input_and_gives_both_outputs_and_its_status(tmp_path: Path) -> None:
    local = LocalTransport(Layout(state=tmp_path, run=tmp_path, swarm="lab"), Runtime(python=sys.executable))
    program = "import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('words'); sys.exit(5)"

    done = local.run([sys.executable, "-c", program], timeout_s=30, stdin="data; $(x)")

    assert (done.code, done.stdout, done.stderr) == (5, "data; $(x)", "words")


@pytest.mark.process
def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    local = LocalTransport(Layout(state=tmp_path, run=tmp_path, swarm="lab"), Runtime(python=sys.executable))
    # The grandchild holds the output open, so that waiting for the command alone would not end.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"

    with pytest.raises(DeadlineExceeded, match=r"did not end within 0\.5 s"):
        local.run([sys.executable, "-c", program], timeout_s=0.5)
