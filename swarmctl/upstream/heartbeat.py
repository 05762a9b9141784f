"""A heartbeat that the process which computes answers itself.

petals answers everything from other processes: handlers take requests, the DHT's own process answers pings, libp2p's
daemon keeps the connections. All of them go on when the process that runs the blocks is stopped or stuck. So that
process, petals' main one, answers `HANDLER` from a thread of its own, on the daemon that the server has anyway.

To go: petals answers from its main process for the runtime that it runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from hivemind.p2p import P2P, P2PContext
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer

logger = logging.getLogger(__name__)

HANDLER = "SwarmctlHeartbeat.rpc_beat"
"""The name under which libp2p finds the handler: an `ExpertRequest` with nothing in it, an `ExpertResponse` back."""

_START_S = 30.0
_REMOVE_S = 0.5
_STOP_S = 2.0
_LONGEST_TEXT = 64


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What the process that computes says of itself.

    `computes`: its runtime lives; False while petals loads the blocks anew. `busy_s`: for how long the task that is
    being computed has been, 0 when none is. `done`: tasks computed since the process began. `version`: swarmctl's.
    `graphs`: what steps of one token do on CUDA, "by-shape" or "eager".
    """

    computes: bool
    busy_s: float
    done: int
    version: str
    graphs: str


def encode_beat(beat: Beat) -> bytes:
    """A beat as it travels, in the metadata of the answer."""
    return MSGPackSerializer.dumps(asdict(beat))


def decode_beat(data: bytes) -> Beat:
    """The beat of an answer; fields that a newer version adds are left out.

    Raises:
        ValueError: for anything that is no beat; any peer may answer under any name.
    """
    try:
        said = MSGPackSerializer.loads(data)
        beat = Beat(**{field.name: said[field.name] for field in fields(Beat)})
    except Exception as error:
        raise ValueError(f"no heartbeat: {error}") from error
    texts = (beat.version, beat.graphs)
    fits = isinstance(beat.computes, bool) and isinstance(beat.busy_s, (int, float)) and type(beat.done) is int
    if not fits or not 0 <= beat.busy_s < math.inf or beat.done < 0:
        raise ValueError("no heartbeat: a value is none that a heartbeat has")
    if not all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in texts):
        raise ValueError("no heartbeat: a text is none, or too long")
    return beat


class TaskMeter:
    """Counts the tasks that runtimes compute; entered by the thread that computes, read by any.

    Tasks are kept by their runtime, for petals may begin a new runtime while a task hangs in the old one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[int, float] = {}
        self.done = 0

    @contextmanager
    def task(self, runtime: object) -> Iterator[None]:
        """One task of `runtime`, also one that fails."""
        self._begun[id(runtime)] = self._clock()
        try:
            yield
        finally:
            del self._begun[id(runtime)]
            self.done += 1

    def busy_s(self, runtime: object) -> float:
        """For how long the task of `runtime` has been running, 0 when it has none."""
        begun = self._begun.get(id(runtime))
        return 0.0 if begun is None else self._clock() - begun


def beat_of(container: Any, meter: TaskMeter, *, version: str, graphs: str) -> Beat:
    """The beat of a petals `ModuleContainer`, whose thread is the one that computes; None while there is none."""
    computes = container is not None and container.is_alive()
    busy_s = meter.busy_s(container.runtime) if computes else 0.0
    return Beat(computes=computes, busy_s=busy_s, done=meter.done, version=version, graphs=graphs)


@contextmanager
def answering(dht: Any, beat: Callable[[], Beat]) -> Iterator[None]:
    """Answer heartbeats with `beat()` meanwhile, as the peer of `dht` (a running `hivemind.DHT`).

    `beat` is called on the heartbeat's own thread and must not wait for anything.

    Raises:
        RuntimeError: when libp2p's daemon does not take the handler.
    """
    address = dht.run_coroutine(_daemon_address)
    line = _Line(address, beat)
    try:
        line.start()
        yield
    finally:
        line.stop()


async def _daemon_address(_dht: Any, node: Any) -> Any:
    """Runs in hivemind's DHT process."""
    return node.p2p.daemon_listen_maddr


class _Line:
    """The thread, its loop, and its connection to the daemon."""

    def __init__(self, address: Any, beat: Callable[[], Beat]) -> None:
        self._address = address
        self._beat = beat
        self._loop = asyncio.SelectorEventLoop()  # not uvloop's, which does things of its own when a process forks
        self._stopped = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Return when the daemon sends heartbeats here; see `answering`."""
        self._thread.start()
        if not self._ready.wait(_START_S) or self._error is not None:
            why = self._error or f"libp2p's daemon did not answer within {_START_S:g} s"
            raise RuntimeError(f"no heartbeat can be given: {why}") from self._error

    def stop(self) -> None:
        """End it, started or not."""
        if self._thread.ident is None:
            self._loop.close()
            return
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:  # the end of a thread: raised by `start`, or logged
            if self._ready.is_set():
                logger.exception("the heartbeat ended")
            self._error = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        p2p = await P2P.replicate(self._address)
        try:
            await p2p.add_protobuf_handler(HANDLER, self._answer, runtime_pb2.ExpertRequest)
            self._ready.set()
            await self._stopped.wait()
            with suppress(asyncio.TimeoutError):  # a daemon that is gone says nothing
                await asyncio.wait_for(p2p.remove_protobuf_handler(HANDLER), _REMOVE_S)
        finally:
            await p2p.shutdown()
            # The connection's tasks were cancelled; they close it when they run once more.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*rest, return_exceptions=True)

    async def _answer(self, _request: runtime_pb2.ExpertRequest, _context: P2PContext) -> runtime_pb2.ExpertResponse:
        return runtime_pb2.ExpertResponse(metadata=encode_beat(self._beat()))
