"""`python -m swarmctl.node --launch LAUNCH.json [--lock-fd N] [--grace S] [--child ARG …]`: run one node.

Exits 0 after a stop that was asked for, 1 when the node ended by itself (and was not to be started again) or could not
start, 9 when another runner has the node.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from swarmctl import locks
from swarmctl.errors import ExitCode
from swarmctl.node.log import RotatingLog
from swarmctl.node.runner import Patience, Runner
from swarmctl.store import NodeFiles, read_launch

_HIGHEST_FD = 4096


def main() -> int:
    """Take the node's lock, then run it."""
    parser = argparse.ArgumentParser(prog="python -m swarmctl.node")
    parser.add_argument("--launch", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int)
    for name in ("grace", "backoff", "hung", "sick"):
        parser.add_argument(f"--{name}", dest=f"{name}_s", type=float, metavar="S")
    parser.add_argument("--child", nargs=argparse.REMAINDER, default=None)
    options = parser.parse_args()
    # Whatever else the starter had open: a pipe held here would keep its reader waiting for as long as the node runs.
    os.closerange((options.lock_fd or 2) + 1, _HIGHEST_FD)
    folder: Path = options.launch.resolve().parent
    held = _lock(NodeFiles(folder=folder, sockets=folder).lock, options.lock_fd)
    if held is None:
        sys.stderr.write(f"swarmctl: another runner has node {folder.name}; see `swarmctl ps {folder.name}`\n")
        return ExitCode.LOCKED
    launch = read_launch(NodeFiles(folder=folder, sockets=folder))
    if launch is None:
        sys.stderr.write(f"swarmctl: {options.launch} is missing or broken; run `swarmctl up` again\n")
        return ExitCode.FAILED
    os.chdir(folder)
    files = NodeFiles(folder=folder, sockets=Path(launch.sockets))
    with RotatingLog(files.log, descriptors=(1, 2)) as log:
        return Runner(launch=launch, files=files, child=options.child, log=log, patience=_patience(options)).run()


def _patience(options: argparse.Namespace) -> Patience:
    given = {field.name: getattr(options, field.name) for field in fields(Patience)}
    return Patience(**{name: value for name, value in given.items() if value is not None})


def _lock(path: Path, inherited: int | None) -> int | None:
    # The starter locks before it starts this process and hands the open file over, so that there is no moment in
    # which a node is on its way and nobody can see it.
    if inherited is None:
        return locks.take(path)
    if not locks.is_at(inherited, path):
        return None
    os.set_inheritable(inherited, False)
    return inherited


if __name__ == "__main__":
    sys.exit(main())
