"""`up` ends at some point, by SIGKILL or Ctrl-C; the next `up` or `down` settles what it left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes.conftest import BOOT, A, B, Lab, eventually

from swarmctl.errors import Locked
from swarmctl.events import Event, NodeReady
from swarmctl.operations.down import down
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import up
from swarmctl.snapshot import NodeState

pytestmark = pytest.mark.process

MOMENTS: dict[str, Callable[[Lab], bool]] = {
    "bootstrap-launch-written": lambda lab: lab.files(BOOT).launch.exists(),
    "bootstrap-record-written": lambda lab: lab.files(BOOT).record.exists(),
    "bootstrap-observes": lambda lab: lab.files(BOOT).observed.exists(),
    "first-server-launch-written": lambda lab: lab.files(A).launch.exists(),
    "both-servers-have-records": lambda lab: lab.files(A).record.exists() and lab.files(B).record.exists(),
}


@contextmanager
def up_elsewhere(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    argv = [
        sys.executable,
        str(Path(__file__).with_name("driver.py")),
        str(lab.site.layout.state),
        str(lab.site.layout.run),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_at(lab: Lab, moment: Callable[[Lab], bool]) -> None:
    lab.behave(A, "mute")
    with up_elsewhere(lab) as process:
        eventually(lambda: moment(lab), what="the moment")
        process.kill()
    lab.behave(A)


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
def test_down_settles_an_up_that_was_killed(lab: Lab, moment: Callable[[Lab], bool]) -> None:
    killed_at(lab, moment)

    down(lab.site, sink=lab.events.append, deadline_s=30)

    assert not lab.left()
    assert not lab.runners()
    assert not any(lab.files(name).record.exists() for name in (BOOT, A, B))


@pytest.mark.parametrize("moment", [MOMENTS["bootstrap-launch-written"], MOMENTS["first-server-launch-written"]])
def test_up_settles_an_up_that_was_killed(lab: Lab, moment: Callable[[Lab], bool]) -> None:
    killed_at(lab, moment)
    # It may have read already that it shall never get online; only a new start would read that anew.
    down(lab.site, nodes=(A,), sink=lab.events.append, deadline_s=30)

    up(lab.site, sink=lab.events.append, deadline_s=30)

    assert {node.state for node in read_snapshot(lab.site).nodes} == {NodeState.ONLINE}
    assert len(lab.runners()) == 3


def test_a_second_up_joins_in_waiting_for_what_a_killed_one_has_started(lab: Lab) -> None:
    with up_elsewhere(lab) as process:
        eventually(lambda: MOMENTS["both-servers-have-records"](lab), what="both records")
        process.kill()
    records = {name: lab.record(name) for name in (BOOT, A, B)}

    up(lab.site, sink=lab.events.append, deadline_s=30)

    assert {name: lab.record(name).runner_pid for name in records} == {n: r.runner_pid for n, r in records.items()}
    assert {node.state for node in read_snapshot(lab.site).nodes} == {NodeState.ONLINE}


def test_ctrl_c_leaves_what_runs_running_and_the_swarm_free(lab: Lab) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, NodeReady):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        up(lab.site, sink=interrupt, deadline_s=30)

    assert len(lab.runners()) == 1
    up(lab.site, sink=lab.events.append, deadline_s=30)
    assert {node.state for node in read_snapshot(lab.site).nodes} == {NodeState.ONLINE}


def test_two_operators_do_not_change_a_swarm_at_the_same_time(lab: Lab) -> None:
    lab.behave(A, "mute")
    with up_elsewhere(lab):
        eventually(lambda: lab.files(BOOT).launch.exists(), what="the first operator to be at work")

        with pytest.raises(Locked) as locked:
            down(lab.site, sink=lab.events.append)

        assert ": `up`, since " in locked.value.reasons[0]
    assert down(lab.site, sink=lab.events.append)
