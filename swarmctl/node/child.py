"""How a node's child program is started: its command line, its environment, its process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from swarmctl import tether
from swarmctl.processes import MARK
from swarmctl.store import Launch, NodeFiles

# Every library that starts a thread pool of its own reads one of these.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def command(launch: Launch, files: NodeFiles) -> tuple[str, ...]:
    """The command line that serves this launch file."""
    return (sys.executable, "-m", f"swarmctl.upstream.{launch.kind}", "--launch", str(files.launch))


def environment(launch: Launch, files: NodeFiles, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited`, with what this node's threads, card and model ask for.

    Temporary files go where the node's sockets are, and are swept with them. A bootstrap peer sees no card, so that
    it never holds memory of one. A model in a folder needs no hub, and then none is asked.
    """
    values = {**inherited, "PYTHONUNBUFFERED": "1", MARK: str(files.folder), "TMPDIR": str(files.sockets)}
    threads = (launch.settings or {}).get("threads")
    if threads is not None:
        values.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    if launch.kind == "bootstrap":
        values["CUDA_VISIBLE_DEVICES"] = ""
    elif launch.gpu is not None:
        values["CUDA_VISIBLE_DEVICES"] = str(launch.gpu)
    if Path(launch.model_source).is_dir():
        values.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    return values


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], *, restored: Collection[signal.Signals]
) -> tuple[int, int]:
    """Start `argv`, tethered to the calling thread, in a session of its own, with no signal blocked.

    Signals in `restored` get their default action. Returns the pid, and the reading end of a pipe that the process
    writes all its output to.
    """
    reading, writing = os.pipe()
    wrapped = tether.wrap(argv)
    try:
        pid = os.posix_spawn(
            wrapped[0],
            wrapped,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, writing, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=restored,
        )
    finally:
        os.close(writing)
    return pid, reading
