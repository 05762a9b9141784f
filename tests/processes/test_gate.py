"""A gate forwards, stops without a word, goes on where it stood, and passes ends on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from processes.conftest import eventually

from swarmctl.operations.trials.gate import LOOPBACK, Gate

pytestmark = pytest.mark.process

# More than the buffers of both connections and the gate hold together, so that a writer has to wait.
MUCH_BYTES = 16 * 1024 * 1024


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where a node would listen."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def gate(listener: socket.socket) -> Iterator[Gate]:
    opened = Gate(target_port=listener.getsockname()[1])
    yield opened
    opened.close()


@contextmanager
def connected(gate: Gate, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end and the node's end of one connection through the gate."""
    with socket.create_connection((LOOPBACK, gate.port), timeout=10) as client:
        node, _ = listener.accept()
        node.settimeout(10)
        with node:
            yield client, node


def nothing_came(end: socket.socket) -> bool:
    """True if neither bytes nor an end or a reset are there to be read."""
    end.setblocking(False)
    try:
        end.recv(1)
    except BlockingIOError:
        return True
    finally:
        end.settimeout(10)
    return False


def let_it_pass() -> None:
    """Let a hundred questions and answers pass another gate: what a gate passes on, it has passed on by then."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        other = Gate(target_port=listening.getsockname()[1])
        try:
            with connected(other, listening) as (client, node):
                for _ in range(100):
                    client.sendall(b"?")
                    node.sendall(received(node, 1))
                    assert received(client, 1) == b"?"
        finally:
            other.close()


def received(end: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (piece := end.recv(65536)):
        data += piece
    return bytes(data)


def test_bytes_pass_in_both_directions(gate: Gate, listener: socket.socket) -> None:
    with connected(gate, listener) as (client, node):
        client.sendall(b"question")
        assert received(node, 8) == b"question"
        node.sendall(b"answer")
        assert received(client, 6) == b"answer"
        assert gate.connections == 1


def test_a_shut_gate_lets_nothing_pass_and_tells_nobody_and_an_opened_one_delivers_it(
    gate: Gate, listener: socket.socket
) -> None:
    with connected(gate, listener) as (client, node), connected(gate, listener) as (other, elsewhere):
        gate.shut()
        client.sendall(b"question")
        node.sendall(b"answer")
        other.shutdown(socket.SHUT_WR)
        let_it_pass()

        assert gate.is_shut
        assert all(nothing_came(end) for end in (client, node, elsewhere))

        gate.open()
        assert received(node, 8) == b"question"
        assert received(client, 6) == b"answer"
        assert elsewhere.recv(1) == b""


def test_a_connection_to_a_shut_gate_gets_no_answer_until_it_is_open(gate: Gate, listener: socket.socket) -> None:
    gate.shut()
    with socket.create_connection((LOOPBACK, gate.port), timeout=10) as client:
        client.sendall(b"hello?")
        let_it_pass()
        assert nothing_came(client)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.settimeout(10)

        gate.open()
        node, _ = listener.accept()
        with node:
            assert received(node, 6) == b"hello?"


def test_a_node_that_dies_behind_a_shut_gate_is_noticed_only_when_it_opens(gate: Gate, listener: socket.socket) -> None:
    with connected(gate, listener) as (client, node):
        gate.shut()
        node.close()
        let_it_pass()
        assert nothing_came(client)

        gate.open()
        assert client.recv(1) == b""


def test_much_arrives_whole_when_the_gate_is_shut_in_the_middle_and_the_reader_is_slow(
    gate: Gate, listener: socket.socket
) -> None:
    sent = os.urandom(MUCH_BYTES)
    with connected(gate, listener) as (client, node):
        client.settimeout(60)
        sending = threading.Thread(target=client.sendall, args=(sent,))
        sending.start()
        try:
            begun = received(node, MUCH_BYTES // 3)
            gate.shut()
            let_it_pass()
            gate.open()
            rest = received(node, MUCH_BYTES - len(begun))
        finally:
            sending.join()
    assert begun + rest == sent


def test_a_shut_gate_holds_a_stream_that_flows(gate: Gate, listener: socket.socket) -> None:
    sent = 0

    def send() -> None:
        nonlocal sent
        while sent < MUCH_BYTES:
            try:
                sent += client.send(b"x" * 65536)
            except OSError:
                return

    with connected(gate, listener) as (client, node):
        sending = threading.Thread(target=send)
        sending.start()
        try:
            before = len(received(node, MUCH_BYTES // 4))
            gate.shut()
            let_it_pass()
            # What was passed on before is still on its way; the rest of the stream is not.
            node.setblocking(False)
            with suppress(BlockingIOError):
                while piece := node.recv(65536):
                    before += len(piece)
            let_it_pass()
            assert nothing_came(node)
            assert before < MUCH_BYTES
        finally:
            gate.close()
            client.close()
            sending.join()


def test_half_an_end_is_passed_on_and_the_other_half_goes_on(gate: Gate, listener: socket.socket) -> None:
    with connected(gate, listener) as (client, node):
        client.shutdown(socket.SHUT_WR)
        assert node.recv(1) == b""
        node.sendall(b"still here")
        assert received(client, 10) == b"still here"
        node.close()
        assert client.recv(1) == b""
        eventually(lambda: gate.connections == 0)


def test_a_reset_is_passed_on(gate: Gate, listener: socket.socket) -> None:
    with connected(gate, listener) as (client, node):
        node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        node.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        eventually(lambda: gate.connections == 0)


def test_a_node_that_does_not_listen_resets_who_dials_it(gate: Gate, listener: socket.socket) -> None:
    def dial() -> None:
        # The reset may come before the connection is even made.
        with socket.create_connection((LOOPBACK, gate.port), timeout=10) as client:
            client.recv(1)

    listener.close()
    with pytest.raises(ConnectionResetError):
        dial()
    assert gate.connections == 0


@pytest.mark.parametrize("shut", [False, True])
def test_a_closed_gate_leaves_no_thread_no_port_and_no_connection(listener: socket.socket, shut: bool) -> None:
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    gate = Gate(target_port=listener.getsockname()[1])
    with connected(gate, listener) as (client, node):
        if shut:
            gate.shut()
        gate.close()
        assert client.recv(1) == node.recv(1) == b""
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, gate.port), timeout=10)


def test_a_port_that_is_taken_is_refused(gate: Gate, listener: socket.socket) -> None:
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="already in use"):
        Gate(target_port=1, listen_port=gate.port)
    assert len(list(Path("/proc/self/fd").iterdir())) == files
