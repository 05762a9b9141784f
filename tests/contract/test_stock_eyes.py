"""What is seen of petals' own client without touching what it does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from swarmctl.upstream.stock import _watch


def test_request_counts_as_left_when_the_next_one_is_asked_for():
    told: list[str] = []

    async def run() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        written: list[Any] = []

        async def write() -> None:
            # As hivemind's client: a message is taken, written, and then the next one is asked for.
            while message := await queue.get():
                await asyncio.sleep(0)
                written.append(message.uid)

        writer = asyncio.ensure_future(write())
        await asyncio.sleep(0)  # the writer waits for a message already
        _watch(queue, lambda: told.append(f"left {written[-1]}"))
        for uid in ("one", "two"):
            await queue.put(SimpleNamespace(uid=uid))
            for _ in range(5):
                await asyncio.sleep(0)
        await queue.put(SimpleNamespace(uid=""))
        for _ in range(5):
            await asyncio.sleep(0)
        writer.cancel()

    asyncio.run(run())

    assert told == ["left one", "left two"]
