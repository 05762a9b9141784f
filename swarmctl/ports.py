"""TCP ports of this machine: which are free, and which to take. `python -m swarmctl.ports IP PORT…` asks elsewhere.

libp2p's daemon listens with SO_REUSEPORT, so a second one on the same port starts without complaint and the two share
the connections at random. The check here binds without that option and therefore sees a port that is taken.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence


def _hold(ip: str, port: int) -> socket.socket:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Lets connections that linger from the last owner (TIME_WAIT) pass, not a listener.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((ip, port))
        holder.listen(1)
    except OSError:
        holder.close()
        raise
    return holder


def is_free(ip: str, port: int) -> bool:
    """True if nobody listens on this port.

    Raises:
        OSError: when `ip` is no address of this machine, or the port needs a privilege.
    """
    try:
        _hold(ip, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def choose(ip: str, wanted: Sequence[int]) -> tuple[int, ...]:
    """One free port for each of `wanted`, all different: that port if it is free, else one of the system's choice.

    0 means any. The ports are free again when this returns; whoever takes them should not wait.

    Raises:
        OSError: when `ip` is no address of this machine.
    """
    held: dict[int, socket.socket] = {}
    try:
        # Wished ports first, so that the system does not hand one of them out for a 0 before it.
        for place in sorted(range(len(wanted)), key=lambda place: wanted[place] == 0):
            try:
                held[place] = _hold(ip, wanted[place])
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                held[place] = _hold(ip, 0)
        return tuple(held[place].getsockname()[1] for place in range(len(wanted)))
    finally:
        for holder in held.values():
            holder.close()


def main(arguments: Sequence[str]) -> None:
    """Write one port a line for `IP PORT…`."""
    sys.stdout.write("".join(f"{port}\n" for port in choose(arguments[0], [int(port) for port in arguments[1:]])))


if __name__ == "__main__":
    main(sys.argv[1:])
