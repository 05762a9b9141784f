"""A TCP forwarder in front of a node, which can stop forwarding as a pulled cable does: no end, no reset, no answer.

The node announces the gate's port, so whoever dials it passes here. Connections that the node itself makes do not.

    gate = Gate(target_port=31340)      listens on gate.port of the loopback
    gate.shut()                         from now on no byte passes, and nobody is told
    gate.open()                         goes on; what the kernel holds meanwhile is delivered, as when replugged
    gate.close()                        ends every connection, and stops listening

All four may be called from any thread, return within milliseconds, and are done when they return.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from contextlib import suppress

LOOPBACK = "127.0.0.1"

_CHUNK_BYTES = 65536
_BACKLOG = 128
# Closes with a reset, as the side did that this is passed on from.
_RESET = struct.pack("ii", 1, 0)
# On the loopback a connection is accepted or refused at once.
_CONNECT_S = 0.2
_JOIN_S = 5.0


class _Flow:
    """One direction of a connection: what was read from `source` and is not yet written to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.held = b""
        self.ended = False

    @property
    def wants_to_read(self) -> bool:
        return not self.ended and not self.held

    def read(self) -> None:
        self.held = self.source.recv(_CHUNK_BYTES)
        if not self.held:
            self.ended = True
            with suppress(OSError):  # the other end may be gone; then its own flow says so
                self.sink.shutdown(socket.SHUT_WR)

    def write(self) -> None:
        self.held = self.held[self.sink.send(self.held) :]


class _Link:
    """A connection that was accepted, and the one to the node that belongs to it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.inward = _Flow(near, far)
        self.outward = _Flow(far, near)

    @property
    def done(self) -> bool:
        return all(flow.ended and not flow.held for flow in (self.inward, self.outward))

    def interest(self, end: socket.socket) -> int:
        """What one of the two sockets is waited for."""
        reads, writes = (self.inward, self.outward) if end is self.near else (self.outward, self.inward)
        return (selectors.EVENT_READ if reads.wants_to_read else 0) | (selectors.EVENT_WRITE if writes.held else 0)

    def move(self, end: socket.socket, ready: int) -> None:
        """Read from and write to one of the two sockets, which is ready for it."""
        reads, writes = (self.inward, self.outward) if end is self.near else (self.outward, self.inward)
        if ready & selectors.EVENT_WRITE and writes.held:
            writes.write()
        if ready & selectors.EVENT_READ and reads.wants_to_read:
            reads.read()
            if reads.held:
                with suppress(BlockingIOError):
                    reads.write()

    def close(self, *, reset: bool) -> None:
        for end in (self.near, self.far):
            if reset:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class Gate:
    """Forwards connections to `target_port` of the loopback; `port` is its own, chosen by the system if not given.

    Raises:
        OSError: when `listen_port` is taken.
    """

    def __init__(self, *, target_port: int, listen_port: int = 0) -> None:
        self.target_port = target_port
        self._listener = socket.create_server((LOOPBACK, listen_port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._links: set[_Link] = set()
        self._shut = False
        self._closed = False
        # Held for every byte that moves: whoever has it knows that none does.
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=f"gate-{self.port}", daemon=True)
        self._thread.start()

    @property
    def is_shut(self) -> bool:
        """True from `shut` to `open`."""
        return self._shut

    @property
    def connections(self) -> int:
        """How many connections lead through it now."""
        with self._lock:
            return len(self._links)

    def shut(self) -> None:
        """Let no byte pass in either direction, and tell nobody; new connections get no answer either."""
        with self._lock:
            self._shut = True
            for key in tuple(self._selector.get_map().values()):
                if key.fileobj is not self._bell:
                    self._selector.unregister(key.fileobj)
        self._ring()

    def open(self) -> None:
        """Go on with every connection where it stood; those that have ended meanwhile end now."""
        with self._lock:
            if not self._shut or self._closed:
                return
            self._shut = False
            self._selector.register(self._listener, selectors.EVENT_READ)
            for link in self._links:
                self._await(link)
        self._ring()

    def close(self) -> None:
        """End every connection and stop listening."""
        with self._lock:
            self._closed = True
        self._ring()
        self._thread.join(_JOIN_S)

    def _ring(self) -> None:
        with suppress(OSError):
            self._ringer.send(b"\0")

    def _serve(self) -> None:
        try:
            while True:
                ready = self._selector.select()
                with self._lock:
                    if self._closed:
                        return
                    for key, events in ready:
                        self._answer(key, events)
        finally:
            for link in self._links:
                link.close(reset=False)
            for one in (self._listener, self._bell, self._ringer):
                one.close()
            self._selector.close()

    def _answer(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._bell:
            self._bell.recv(_CHUNK_BYTES)
        elif self._shut:
            return  # it was shut after `select` had returned
        elif key.fileobj is self._listener:
            self._accept()
        elif key.data in self._links:
            self._move(key.data, key.fileobj, events)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection((LOOPBACK, self.target_port), timeout=_CONNECT_S)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                near.close()
                return
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(near, far)
            self._links.add(link)
            self._await(link)

    def _move(self, link: _Link, end: object, events: int) -> None:
        assert isinstance(end, socket.socket)
        try:
            link.move(end, events)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(link, reset=True)
            return
        if link.done:
            self._drop(link, reset=False)
        else:
            self._await(link)

    def _drop(self, link: _Link, *, reset: bool) -> None:
        self._links.discard(link)
        for end in (link.near, link.far):
            if end in self._selector.get_map():
                self._selector.unregister(end)
        link.close(reset=reset)

    def _await(self, link: _Link) -> None:
        for end in (link.near, link.far):
            wanted, known = link.interest(end), end in self._selector.get_map()
            if wanted and known:
                self._selector.modify(end, wanted, link)
            elif wanted:
                self._selector.register(end, wanted, link)
            elif known:
                self._selector.unregister(end)
