"""`python -m swarmctl.node.agent --swarm NAME`: one operator's hand on this host, for as long as it is connected.

Reads requests from stdin and writes answers to stdout, see `swarmctl.transport.wire`; everything it does is what
`LocalTransport` does. It ends when stdin ends, and when it has heard nothing for `SILENCE_S`: whoever it served is
gone then, and must not hold the operator lock from afar. Nodes that it started go on.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from swarmctl import folders
from swarmctl.errors import SwarmctlError
from swarmctl.store import Layout
from swarmctl.transport import wire
from swarmctl.transport.hosted import Runtime
from swarmctl.transport.local import LocalTransport

SILENCE_S = 30.0
"""An operator's side says something every few seconds, if only that it is there."""

_THREADS = 16
_LOOK_S = 1.0


class Agent:
    """Answers requests, each on a thread of its own, because one that waits must not keep the others waiting."""

    def __init__(self, transport: LocalTransport, out: TextIO) -> None:
        self._transport = transport
        self._out = out
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
        self._heard = time.monotonic()

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard."""
        return time.monotonic() - self._heard

    def take(self, line: str) -> None:
        """Take one line; an answer follows, unless it is empty, which only says that somebody is there."""
        self._heard = time.monotonic()
        self._transport.beat()
        if not line.strip():
            return
        try:
            request = wire.decode_request(line)
        except ValueError as error:
            self._say(wire.encode_error(_number(line), SwarmctlError(str(error))))
            return
        self._pool.submit(self._answer, request)

    def greet(self) -> None:
        """Say that it is there, as the answer to a request that nobody had to send."""
        self._say(wire.encode_result(0, "facts", self._transport.facts()))

    def _answer(self, request: wire.Request) -> None:
        try:
            result = getattr(self._transport, request.do)(**request.args)
            answer = wire.encode_result(request.id, request.do, result)
        except SwarmctlError as error:
            answer = wire.encode_error(request.id, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who has asked
            trace = traceback.format_exc().splitlines()[-6:]
            answer = wire.encode_error(request.id, SwarmctlError(f"{type(error).__name__}: {error}", reasons=trace))
        self._say(answer)

    def _say(self, line: str) -> None:
        with self._guard:
            self._out.write(line)
            self._out.flush()


def _number(line: str) -> int:
    """The number of a request that makes no sense, so that its sender need not wait for it."""
    found = line.partition('"id":')[2].lstrip().partition(",")[0]
    return int(found) if found.isdigit() else -1


def main() -> int:
    """Serve until the operator is gone."""
    parser = argparse.ArgumentParser(prog="python -m swarmctl.node.agent")
    parser.add_argument("--swarm", required=True)
    parser.add_argument("--child", nargs=argparse.REMAINDER, default=None)
    options = parser.parse_args()
    # Whatever a library prints must not end up between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    layout = Layout(state=folders.state_of(os.environ), run=folders.run_of(os.environ), swarm=options.swarm)
    child = tuple(options.child) if options.child else None
    transport = LocalTransport(layout, Runtime(python=sys.executable, child=child))
    agent = Agent(transport, out)
    threading.Thread(target=_end_in_silence, args=(agent, transport), daemon=True).start()
    agent.greet()
    for line in sys.stdin:
        agent.take(line)
    _end(transport)
    return 0


def _end_in_silence(agent: Agent, transport: LocalTransport) -> None:
    while agent.silent_s < SILENCE_S:
        time.sleep(_LOOK_S)
    _end(transport)


def _end(transport: LocalTransport) -> None:
    transport.close()
    # Threads that still wait for something would keep this process alive for nobody.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
