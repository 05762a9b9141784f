"""What a client's sessions have open in this process: threads, tasks of hivemind's event loop, streams to libp2p."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from support.eventually import eventually

_GONE_WITHIN_S = 5.0


async def _tasks() -> frozenset[asyncio.Task[Any]]:
    return frozenset(task for task in asyncio.all_tasks() if task is not asyncio.current_task())


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What there is at one moment. `sockets`: open unix sockets; a stream to a server is one, to the libp2p daemon."""

    threads: frozenset[threading.Thread]
    tasks: frozenset[asyncio.Task[Any]]
    sockets: int

    @classmethod
    def now(cls) -> Footprint:
        """Of this process."""
        return cls(
            threads=frozenset(threading.enumerate()),
            tasks=RemoteExpertWorker.run_coroutine(_tasks()),
            sockets=len(psutil.Process().net_connections(kind="unix")),
        )

    def assert_nothing_more(self, *, within_s: float = _GONE_WITHIN_S) -> None:
        """Wait until nothing is there that was not.

        Raises:
            AssertionError: naming what is.
        """

        def look() -> None:
            now = self.now()
            assert not now.threads - self.threads, f"threads: {[one.name for one in now.threads - self.threads]}"
            assert not now.tasks - self.tasks, f"tasks: {now.tasks - self.tasks}"
            assert now.sockets <= self.sockets, f"{now.sockets} streams, and there were {self.sockets}"

        eventually(look, within_s=within_s)


@contextmanager
def nothing_left() -> Iterator[None]:
    """After the block there is no thread, no task and no stream that there was not before it."""
    before = Footprint.now()
    yield
    before.assert_nothing_more()
