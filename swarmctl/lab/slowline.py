"""A slow line: `python slowline.py IF_A IF_B DELAY_S LOSS`, frames between two interfaces, late or never.

Writes `READY` when it passes frames on.

The kernel's netem would do it, but is a module that many machines lack. Each direction has the whole delay; `LOSS` is
the part of frames that is lost, by chance, from a fixed seed.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

_SIOCETHTOOL = 0x8946
# linux/ethtool.h: what lets a sender pass frames on that only a network card could finish.
_OFFLOADS = (0x00000017, 0x00000019, 0x0000001F, 0x00000024, 0x0000002C)  # TX checksum, SG, TSO, GSO, GRO
_ETH_P_ALL = 0x0003
_PACKET_OUTGOING = 4
_LARGEST = 65536
READY = b"ready\n"


def plain_frames(interface: str) -> None:
    """Have the kernel finish each frame itself: checksums, and not more than fits into one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            address, _ = value.buffer_info()
            try:
                fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP", interface.encode(), address))
            except OSError:
                continue  # what an interface does not have needs no switching off


def forward(first: str, second: str, delay_s: float, loss: float) -> None:
    """Pass frames on in both directions until the process is ended, also over times when an interface is down."""
    chance = random.Random(1)
    ends = [_raw(first), _raw(second)]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    count = 0
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], left_s)[0]:
            try:
                frame, address = end.recvfrom(_LARGEST)
            except OSError:
                continue  # told once that the interface went down; it may come up again
            if address[2] != _PACKET_OUTGOING and chance.random() >= loss:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, count, other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(waiting)
            try:
                out.send(frame)
            except OSError:
                continue  # the interface is down, or the frame too long: lost, as on any line


def _raw(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    end.bind((interface, 0))
    return end


if __name__ == "__main__":
    forward(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
