"""Can this host be reached, and whom does it reach? `python -m swarmctl.node.dial listen|call|end`, JSON both ways.

`listen` opens ports, says which, and stays behind them for a short while as a process of its own, which answers every
connection with one line: whoever calls knows then that it is this host, and nothing else that has its address.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from swarmctl import processes

CALL_S = 3.0
"""How long one call may take."""

STAY_S = 25.0
"""How long a listener stays that nobody ends."""

_AT_ONCE = 64
_BACKLOG = 64


@dataclass(frozen=True, kw_only=True)
class Call:
    """Where to connect to. `nonce`: the line that the right host answers with; None: to connect is enough."""

    ip: str
    port: int
    nonce: str | None = None


@dataclass(frozen=True, kw_only=True)
class Listening:
    """A listener that stays. `opened`: the port for each that was wished, None where it could not be had."""

    pid: int
    started: int
    opened: tuple[int | None, ...]


def call(target: Call) -> str | None:
    """Why a call fails, in the system's words; None if it does not."""
    try:
        with socket.create_connection((target.ip, target.port), CALL_S) as line:
            if target.nonce is None:
                return None
            line.settimeout(CALL_S)
            said = line.makefile("rb").readline(200)
    except TimeoutError:
        return f"timed out after {CALL_S:g} s"
    except socket.gaierror as error:
        return f"the name is not known: {(error.strerror or str(error)).lower()}"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None if said.strip().decode("utf-8", "replace") == target.nonce else "something else answers there"


def call_all(targets: Sequence[Call]) -> tuple[str | None, ...]:
    """As `call`, all at the same time."""
    if not targets:
        return ()
    with ThreadPoolExecutor(min(len(targets), _AT_ONCE), thread_name_prefix="call") as pool:
        return tuple(pool.map(call, targets))


def listen(ip: str, wished: Sequence[int], nonce: str) -> Listening:
    """Open ports (0: any) and leave a process behind them; it ends after `STAY_S`, or by `end`."""
    held = [_open(ip, port) for port in wished]
    opened = tuple(one.getsockname()[1] if one is not None else None for one in held)
    pid = os.fork()
    if pid == 0:
        try:
            _stay([one for one in held if one is not None], nonce)
        finally:
            os._exit(0)
    return Listening(pid=pid, started=processes.start_of(pid), opened=opened)


def _open(ip: str, port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((ip, port))
        holder.listen(_BACKLOG)
    except OSError as error:
        holder.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            return None
        raise
    return holder


def _stay(held: Sequence[socket.socket], nonce: str) -> None:
    # Whoever started this waits for the end of its output.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    until_s = time.monotonic() + STAY_S
    with selectors.DefaultSelector() as ready:
        for one in held:
            ready.register(one, selectors.EVENT_READ, one)
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in ready.select(left_s):
                with suppress(OSError):
                    line, _ = key.data.accept()
                    with line:
                        line.sendall(f"{nonce}\n".encode())


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    said: Any = json.loads(sys.stdin.read())
    if arguments[0] == "listen":
        answer: Any = asdict(listen(said["ip"], said["ports"], said["nonce"]))
    elif arguments[0] == "call":
        answer = call_all([Call(**one) for one in said])
    else:
        answer = processes.send(said["pid"], said["started"], signal.SIGKILL)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
