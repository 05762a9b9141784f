"""`up` in a process of its own, so that a test can end it at any point: `driver.py STATE RUN`; one event a line."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes.conftest import PRETEND, small_spec

from swarmctl.events import Event, encode
from swarmctl.operations.opening import open_site
from swarmctl.operations.up import up


def tell(event: Event) -> None:
    sys.stdout.write(f"{encode(event)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    site = open_site(small_spec(), Path(sys.argv[1]), Path(sys.argv[2]), python=sys.executable, child=PRETEND)
    up(site, sink=tell, deadline_s=60)
