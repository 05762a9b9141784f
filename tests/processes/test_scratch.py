"""What killed processes leave outside their folders is removed by whoever ends the node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmctl import scratch

pytestmark = pytest.mark.process


def _dead_pid() -> int:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(ended.stdout)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(scratch, "SHARED_MEMORY", folder)
    return folder


def test_shared_memory_of_dead_processes_goes_with_the_node_and_that_of_living_ones_stays(
    tmp_path: Path, shared: Path
) -> None:
    dead, living = _dead_pid(), os.getpid()
    sockets = tmp_path / "run" / "01234567"
    sockets.mkdir(parents=True)
    scratch.pids_file(sockets).write_text(f"{dead}\n{living}\n")
    for name in (f"torch_{dead}_1_0", f"torch_{living}_1_0", "torch_1_2_3", "else"):
        (shared / name).touch()

    scratch.sweep(sockets)

    assert {path.name for path in shared.iterdir()} == {"else", "torch_1_2_3", f"torch_{living}_1_0"}
    assert not sockets.parent.exists()


def test_a_process_that_only_waits_to_be_reaped_counts_as_dead(tmp_path: Path, shared: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        sockets = tmp_path / "run" / "01234567"
        sockets.mkdir(parents=True)
        scratch.pids_file(sockets).write_text(f"{process.pid}\n")
        (shared / f"torch_{process.pid}_1_0").touch()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        scratch.sweep(sockets)

    assert list(shared.iterdir()) == []


def test_a_swept_node_leaves_the_folders_of_others(tmp_path: Path, shared: Path) -> None:
    sockets, other = tmp_path / "run" / "a", tmp_path / "run" / "b"
    sockets.mkdir(parents=True)
    other.mkdir()

    scratch.sweep(sockets)
    scratch.sweep(sockets)

    assert list((tmp_path / "run").iterdir()) == [other]


def test_clients_that_were_killed_are_swept_and_running_ones_are_not(tmp_path: Path, shared: Path) -> None:
    for name in (f"client-{_dead_pid()}", f"client-{os.getpid()}", "client-x"):
        (tmp_path / name).mkdir()

    scratch.sweep_clients(tmp_path)

    assert {path.name for path in tmp_path.glob("client-*")} == {f"client-{os.getpid()}", "client-x"}


def test_a_client_lives_as_long_as_one_of_its_processes_does(tmp_path: Path, shared: Path) -> None:
    for number, pids in enumerate(((os.getpid(), _dead_pid()), (_dead_pid(),))):
        folder = tmp_path / f"client-{number}"
        folder.mkdir()
        scratch.pids_file(folder).write_text("".join(f"{pid}\n" for pid in pids))
    (tmp_path / "client-2").mkdir()

    assert scratch.living_clients(tmp_path) == (os.getpid(),)


def test_every_forked_process_writes_its_pid_down(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, sys\n"
        "from swarmctl import tether\n"
        "tether.install(sys.argv[1]); tether.install(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.getpid(), child)\n"
    )

    done = subprocess.run([sys.executable, "-c", program, str(pids)], capture_output=True, check=True, text=True)

    assert pids.read_text().split() == done.stdout.split()
