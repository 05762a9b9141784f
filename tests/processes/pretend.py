"""A child program that behaves like a petals server or a bootstrap peer, without petals.

It stands in its node's folder and reads `launch.json` there. The words in `pretend.txt` beside it change what it does:
stubborn (ignores SIGTERM), family (children and grandchildren), doomed (exits with code 3 while loading), mute (never
online), escape (a child in a session of its own), last-words (a line without an end before it exits), brief (exits
with code 3 once it is online). These may be written while it runs: hung (writes nothing any more), sick (says that it
is not well), busy (says that it has computed one task for minutes).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from swarmctl import processes, store, tether
from swarmctl.store import Health, Launch, NodeFiles, Observation, ObservedServer, Progress

FOLDER = Path.cwd()
FOREVER = "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"


def main() -> None:
    tether.install()
    launch = store.read_launch(NodeFiles(folder=FOLDER, sockets=FOLDER))
    assert launch is not None
    words = told()
    stopping = []
    signal.signal(signal.SIGINT, lambda *_: stopping.append(True))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in words else lambda *_: stopping.append(True))
    say(f"pretending to be {launch.node}\n")
    if "family" in words:
        have_family()
    if "escape" in words:
        subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
    report("starting")
    report("loading", 0, 2)
    if "doomed" in words:
        say("out of memory, or so\n")
        if "last-words" in words:
            say("the very last words")
        sys.exit(3)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((launch.listen_ip, launch.port))
    listener.listen()
    (Path(launch.sockets) / "p2pd.sock").touch()
    report("loading", 1, 2)
    report("joining")
    if "mute" not in words:
        report("online")
    while not stopping:
        if "brief" in words:
            sys.exit(3)
        if "hung" not in told():
            observe(launch) if launch.kind == "bootstrap" else say_how_it_is(told())
        time.sleep(0.05)
    say("leaving in good order\n")


def told() -> list[str]:
    file = FOLDER / "pretend.txt"
    return file.read_text().split() if file.exists() else []


def say_how_it_is(words: list[str]) -> None:
    health = Health(
        written_at=time.time(),
        ok="sick" not in words,
        reason="it pretends" if "sick" in words else None,
        busy_s=300.0 if "busy" in words else 0.0,
    )
    store.write_json(FOLDER / "health.json", health)


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def have_family() -> None:
    """One forked child that forks another, and one program that is executed."""
    if os.fork() == 0:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    subprocess.Popen(tether.wrap([sys.executable, "-c", FOREVER]))


def report(phase: str, done: int = 0, total: int = 0) -> None:
    store.write_json(FOLDER / "progress.json", Progress(phase=phase, done=done, total=total))


def observe(launch: Launch) -> None:
    """What a bootstrap peer would see in the DHT: every neighbour that runs and has got as far as joining."""
    now = time.time()
    servers = []
    for folder in FOLDER.parent.iterdir():
        files = NodeFiles(folder=folder, sockets=folder)
        record, progress = store.read_record(files), store.read_progress(files)
        if record is None or record.blocks is None or progress is None or progress.phase not in {"joining", "online"}:
            continue
        if not processes.is_alive(record.child_pid, record.child_started):
            continue
        online = progress.phase == "online"
        start, end = record.blocks.split(":")
        servers.append(
            ObservedServer(
                peer=record.peer,
                state="ONLINE" if online else "JOINING",
                start_block=int(start),
                end_block=int(end),
                throughput=1.0,
                expires_at=now + 30,
                seen_at=now,
                probed_at=now if online else None,
                probe_ok=True if online else None,
                probe_ms=1.0 if online else None,
            )
        )
    store.write_json(
        FOLDER / "observed.json", Observation(observer=launch.node, written_at=now, servers=tuple(servers))
    )


if __name__ == "__main__":
    main()
