"""The small process beside a local stage: it holds the gates, and ends the swarm when its owner is gone, however.

It is a process of its own for three reasons: it outlives an owner that is killed; what passes a gate does not wait
for the owner's interpreter; and what the owner forks holds none of the gates' connections open.

`python -m swarmctl.operations.trials.warden ORDER` reads an `Order` as JSON, makes the gates, writes one JSON line with
their ports, and then waits for its standard input to end. Then it kills all nodes, and removes the folder. Through the
unix socket `gates` in the folder any process may ask for `shut NODE`, `open NODE` or `look NODE`, a line each.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from swarmctl import scratch
from swarmctl.blocks import NodeName
from swarmctl.errors import DeadlineExceeded, NodeFailed
from swarmctl.operations.opening import open_site
from swarmctl.operations.site import Site
from swarmctl.operations.trials.gate import Gate
from swarmctl.poll import Pending, wait_until
from swarmctl.spec import known_by_name
from swarmctl.store import Layout
from swarmctl.transport.base import Order as NodeOrder

_SOCKET = "gates"
_ANSWER_S = 5.0
_LEAVES_S = 10.0
_CLIENTS_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a warden is told. `targets`: the port of each node that gets a gate. `folder` goes when the owner goes.

    `within_s`: for the end of all nodes. SIGKILL is obeyed at once, but a machine under full load buries slowly.
    """

    folder: str
    state: str
    run: str
    swarm: str
    targets: dict[str, int]
    within_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class GateView:
    """A gate as it was a moment ago."""

    shut: bool
    connections: int


@dataclass(frozen=True, kw_only=True)
class RemoteGate:
    """A gate that a warden holds; the calls take about a millisecond, from any process of this machine.

    Each raises `NodeFailed` when the warden does not answer.
    """

    node: NodeName
    port: int
    control: Path

    def shut(self) -> None:
        """Let no byte pass from now on; done when this returns. See `Gate`."""
        self._ask("shut")

    def open(self) -> None:
        """Let bytes pass again."""
        self._ask("open")

    def look(self) -> GateView:
        """Whether it is shut, and how many connections lead through it."""
        return self._ask("look")

    def _ask(self, verb: str) -> GateView:
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(_ANSWER_S)
                asking.connect(os.fspath(self.control))
                asking.sendall(f"{verb} {self.node}\n".encode())
                answer = asking.makefile("r", encoding="utf-8").readline()
            return GateView(**json.loads(answer))
        except (OSError, ValueError, TypeError) as error:
            raise NodeFailed(f"the gate of {self.node} does not obey `{verb}`", reasons=[str(error)]) from error


@contextmanager
def warden(order: Order, *, python: str) -> Iterator[Mapping[NodeName, RemoteGate]]:
    """A warden at work; on leaving, the swarm in `order` is ended and its folder gone.

    Raises:
        NodeFailed: it did not start, or could not end everything; says what is left.
    """
    argv = [python, "-m", __name__, json.dumps(asdict(order))]
    pipe, patience_s = subprocess.PIPE, order.within_s + _LEAVES_S
    # Its words go to a file: nobody reads a pipe while it works. A session of its own: Ctrl-C is the owner's alone.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as words,
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=words, text=True, start_new_session=True) as process,
    ):
        try:
            gates = _gates(process, Path(order.folder), words)
        except BaseException:
            _dismiss(process, patience_s)
            raise
        try:
            yield gates
        finally:
            code = _dismiss(process, patience_s)
            if code < 0:
                _end(order)  # it was killed, and could not
            elif code > 0:
                raise NodeFailed("the stage was not taken down completely", reasons=_last(words))


def _gates(process: subprocess.Popen[str], folder: Path, words: IO[str]) -> dict[NodeName, RemoteGate]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise NodeFailed("the gates of the stage did not start", reasons=_last(words), hints=["swarmctl doctor"])
    control = folder / _SOCKET
    return {
        NodeName(name): RemoteGate(node=NodeName(name), port=port, control=control)
        for name, port in json.loads(line).items()
    }


def _dismiss(process: subprocess.Popen[str], within_s: float) -> int:
    """Let it end what it watches over, and return its exit code. If this is interrupted, it goes on alone."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        # A word, because a process that the owner has forked may hold the pipe open.
        os.write(process.stdin.fileno(), b"end\n")
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NodeFailed(f"the stage was not taken down within {within_s:.0f} s", hints=["swarmctl ps"]) from None


def _last(words: IO[str]) -> list[str]:
    words.seek(0)
    return words.read().splitlines()[-5:]


# --- in the warden's process --------------------------------------------------------------------------------------


class _Control(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, gates: Mapping[str, Gate]) -> None:
        self.gates = gates
        super().__init__(os.fspath(path), _Conversation)


class _Conversation(socketserver.StreamRequestHandler):
    server: _Control

    def handle(self) -> None:
        for line in self.rfile:
            verb, _, node = line.decode().strip().partition(" ")
            gate = self.server.gates[node]
            if verb == "shut":
                gate.shut()
            elif verb == "open":
                gate.open()
            view = GateView(shut=gate.is_shut, connections=gate.connections)
            self.wfile.write(f"{json.dumps(asdict(view))}\n".encode())


def end_all(site: Site, within_s: float) -> None:
    """SIGKILL everything that was started for this swarm, and remove its files. Nobody is left to be told good-bye.

    Raises:
        DeadlineExceeded: names what resists.
    """
    (transport,) = set(site.transports.values())

    def observe() -> bool | Pending:
        left = []
        for name in site.layout.names():
            # Again each time: a runner that was just on its way has written its record by now.
            transport.signal(name, NodeOrder.END)
            left += [f"{name}: {line}" for line in transport.clear(name, purge=True)]
        return Pending(reasons=tuple(left)) if left else True

    wait_until(observe, what="the stage's nodes to end", within_s=within_s, clock=site.clock, every_s=0.05)
    _sweep_clients(site)


def _sweep_clients(site: Site) -> None:
    def observe() -> bool | Pending:
        left = scratch.living_clients(site.layout.run)
        return Pending(reasons=(f"processes {left} live",)) if left else True

    # An owner that was killed is not dead yet when its pipe ends; one that lives on has disconnected long before.
    with suppress(DeadlineExceeded):
        wait_until(observe, what="clients to end", within_s=_CLIENTS_S, clock=site.clock, every_s=0.05)
    scratch.sweep_clients(site.layout.run)


def _serve(order: Order) -> None:
    gates = {node: Gate(target_port=port) for node, port in order.targets.items()}
    control = _Control(Path(order.folder) / _SOCKET, gates)
    threading.Thread(target=control.serve_forever, daemon=True).start()
    sys.stdout.write(json.dumps({node: gate.port for node, gate in gates.items()}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    control.shutdown()
    for gate in gates.values():
        gate.close()


def _end(order: Order) -> None:
    layout = Layout(state=Path(order.state), run=Path(order.run), swarm=order.swarm)
    site = open_site(known_by_name(order.swarm), layout.state, layout.run, python=sys.executable)
    try:
        end_all(site, order.within_s)
    finally:
        shutil.rmtree(order.folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Entry point: `ORDER`."""
    order = Order(**json.loads(arguments[0]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(order)
    finally:
        _end(order)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DeadlineExceeded as error:
        sys.exit(str(error))
