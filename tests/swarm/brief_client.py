"""A program that connects, generates and disconnects, and says what of it is still there: `brief_client.py FILE`."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import psutil

from swarmctl import config
from swarmctl.client.generate import Sampling
from swarmctl.operations.generate import connected
from swarmctl.operations.opening import open_site

# Not of the connection: hivemind and torch make one of each for the whole process, and they end with it.
_THREADS_FOR_LIFE = ("hivemind.utils.mpfuture", "_run_event_loop", "_serve")
_CHILDREN_FOR_LIFE = ("torch_shm_manager",)


def main(file: Path) -> None:
    site = open_site(
        config.load(file), Path(os.environ["SWARMCTL_STATE"]), Path(os.environ["SWARMCTL_RUN"]), python=sys.executable
    )
    me = psutil.Process()
    with connected(site) as client:
        (done,) = client.generate(["The swarm"], Sampling(max_new_tokens=8))
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    children = [child.name() for child in me.children(recursive=True)]
    sockets = [str(one.laddr) for one in me.net_connections(kind="inet")]
    sockets += [one.laddr for one in me.net_connections(kind="unix") if one.laddr.startswith(str(site.layout.run))]
    report = {
        "tokens": len(done.ids),
        "children": [name for name in children if name not in _CHILDREN_FOR_LIFE],
        "threads": [name for name in threads if not any(known in name for known in _THREADS_FOR_LIFE)],
        "sockets": sockets,
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
