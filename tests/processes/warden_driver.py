"""A swarm under a warden, in a process of its own that a test can end in any way: `warden_driver.py FOLDER`.

It says the ports as JSON when everything runs and node `a` is paused; then it waits for a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes.conftest import BOOT, PRETEND, A, B, small_spec

from swarmctl import ports
from swarmctl.blocks import PeerId
from swarmctl.operations.opening import open_site
from swarmctl.operations.trials.warden import Order, warden
from swarmctl.operations.up import up
from swarmctl.store import read_record, write_peer

if __name__ == "__main__":
    # A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    home = Path(sys.argv[1])
    state, run = home / "state", home / "run"
    site = open_site(small_spec(), state, run, python=sys.executable, child=PRETEND)
    for name in (BOOT, A, B):
        files = site.layout.node(name)
        files.folder.mkdir(parents=True)
        files.identity.write_bytes(name.encode())
        write_peer(files, PeerId(f"QmPeerOf{name}"))
    targets = dict(zip((A, B), ports.choose("127.0.0.1", [0, 0]), strict=True))
    order = Order(folder=str(home), state=str(state), run=str(run), swarm=site.spec.name, targets=targets)
    with warden(order, python=sys.executable) as gates:
        up(site, sink=lambda _event: None, deadline_s=60)
        records = {name: read_record(site.layout.node(name)) for name in (BOOT, A, B)}
        paused = records[A]
        assert paused is not None
        assert paused.child_pid is not None
        os.killpg(paused.child_pid, signal.SIGSTOP)
        taken = [record.port for record in records.values() if record is not None]
        sys.stdout.write(json.dumps([*taken, *(gate.port for gate in gates.values())]) + "\n")
        sys.stdout.flush()
        if sys.stdin.readline() == "fail\n":
            raise RuntimeError("as told")
