"""A warden holds gates that any process may shut, and leaves nothing of its swarm, however its owner ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes.conftest import A, B, command, eventually

from swarmctl import locks, ports, processes
from swarmctl.blocks import NodeName
from swarmctl.errors import NodeFailed
from swarmctl.operations.trials.gate import LOOPBACK
from swarmctl.operations.trials.warden import GateView, Order, RemoteGate, warden
from swarmctl.store import Layout

pytestmark = pytest.mark.process


@dataclass
class Elsewhere:
    """An owner of a swarm and a warden, in another process."""

    process: subprocess.Popen[str]
    folder: Path
    ports: list[int]

    def left(self) -> list[str]:
        found = [f"process {one.pid}" for one in processes.read_processes().values() if self._is_ours(one.pid)]
        found += [f"port {port}" for port in self.ports if not ports.is_free(LOOPBACK, port)]
        return found + ([str(self.folder)] if self.folder.exists() else [])

    def _is_ours(self, pid: int) -> bool:
        mark = f"{processes.MARK}={self.folder}/".encode()
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return any(entry.startswith(mark) for entry in environment.split(b"\0")) or str(self.folder) in command(pid)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's tmp_path: its names are longer than a unix socket's path may be.
    made = Path(tempfile.mkdtemp(prefix="sw-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def elsewhere(folder: Path) -> Iterator[Elsewhere]:
    argv = [sys.executable, str(Path(__file__).with_name("warden_driver.py")), str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Elsewhere(process=process, folder=folder, ports=json.loads(process.stdout.readline()))
        finally:
            process.kill()


def tell(word: str) -> Callable[[subprocess.Popen[str]], None]:
    def end(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()

    return end


ENDS: dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "in good order": tell("leave"),
    "by an error": tell("fail"),
    "by Ctrl-C": lambda process: process.send_signal(signal.SIGINT),
    "by SIGTERM": lambda process: process.terminate(),
    "by SIGKILL": lambda process: process.kill(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_nothing_is_left_of_a_swarm_however_its_owner_ends(
    elsewhere: Elsewhere, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    assert len(elsewhere.left()) > 10

    end(elsewhere.process)
    elsewhere.process.wait(60)

    eventually(lambda: not elsewhere.left(), what=f"nothing to be left of {elsewhere.folder}")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def gates(folder: Path, listener: socket.socket) -> Iterator[Mapping[NodeName, RemoteGate]]:
    targets = {str(A): listener.getsockname()[1], str(B): 1}
    order = Order(folder=str(folder), state=str(folder / "s"), run=str(folder / "r"), swarm="lab", targets=targets)
    with warden(order, python=sys.executable) as made:
        yield made


def test_a_gate_is_shut_and_opened_from_another_process(
    gates: Mapping[NodeName, RemoteGate], listener: socket.socket
) -> None:
    with socket.create_connection((LOOPBACK, gates[A].port), timeout=10) as client:
        node, _ = listener.accept()
        with node:
            gates[A].shut()
            client.sendall(b"question")

            assert gates[A].look() == GateView(shut=True, connections=1)
            assert gates[B].look() == GateView(shut=False, connections=0)
            node.setblocking(False)
            with pytest.raises(BlockingIOError):
                node.recv(1)

            gates[A].open()
            node.settimeout(10)
            assert node.recv(8) == b"question"
            assert gates[A].look() == GateView(shut=False, connections=1)


def test_a_gate_whose_warden_is_gone_says_so(folder: Path) -> None:
    gate = RemoteGate(node=A, port=1, control=folder / "gates")

    with pytest.raises(NodeFailed, match="the gate of a does not obey `shut`"):
        gate.shut()


def test_a_warden_that_cannot_start_says_why(folder: Path) -> None:
    (folder / "gates").mkdir()  # where its socket would be
    order = Order(folder=str(folder), state=str(folder / "s"), run=str(folder / "r"), swarm="lab", targets={})

    with pytest.raises(NodeFailed, match="did not start") as caught, warden(order, python=sys.executable):
        pytest.fail("it began")

    assert "OSError" in caught.value.reasons[-1]
    assert not folder.exists()


def test_a_killed_warden_is_replaced_by_its_owner_at_the_end(folder: Path) -> None:
    order = Order(folder=str(folder), state=str(folder / "s"), run=str(folder / "r"), swarm="lab", targets={})
    with warden(order, python=sys.executable):
        (mine,) = [one for one in processes.read_processes().values() if order.folder in command(one.pid)]
        processes.send(mine.pid, mine.started, signal.SIGKILL)
        eventually(lambda: not processes.is_alive(mine.pid, mine.started))

    assert not folder.exists()


def test_what_a_warden_cannot_end_is_named(folder: Path) -> None:
    state, run = folder / "s", folder / "r"
    order = Order(folder=str(folder), state=str(state), run=str(run), swarm="lab", targets={}, within_s=0.5)
    # A node whose lock somebody else holds, as a runner that is on its way does.
    files = Layout(state=state, run=run, swarm="lab").node(A)
    files.folder.mkdir(parents=True)
    held = locks.take(files.lock)
    assert held is not None

    with pytest.raises(NodeFailed, match="not taken down completely") as caught, warden(order, python=sys.executable):
        pass

    os.close(held)
    assert "the runner of a is still there" in caught.value.reasons[-1]
