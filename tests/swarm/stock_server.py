"""petals' own server as a program, without the heartbeat and without swarmctl's patches: `stock_server.py LAUNCH_FILE`.

Only what keeps a test's machine clean is there: it dies with its parent, and its sockets are where the node's are.
SIGINT ends it in order.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from swarmctl import tether
from swarmctl.spec import ServerSettings
from swarmctl.store import launch_from
from swarmctl.upstream import patches
from swarmctl.upstream.compat import import_petals
from swarmctl.upstream.patching import applied
from swarmctl.upstream.server import server_arguments


def main(file: Path) -> None:
    launch = launch_from(json.loads(file.read_text(encoding="utf-8")))
    settings = ServerSettings(**(launch.settings or {}))
    sockets = Path(launch.sockets)
    sockets.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts programs in the background ignores it
    tether.install()
    import_petals()
    import torch
    from petals.server.server import Server

    torch.set_num_threads(1)
    with applied(patches.daemon_dies_with_us(), patches.sockets_in(sockets)):
        server = Server(**server_arguments(launch, settings))
        try:
            server.run()
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
