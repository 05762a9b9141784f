"""What was done to a swarm: `events.jsonl` in its folder, one JSON object a line, append-only."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from swarmctl.store import Layout

NAME = "events.jsonl"
_AT_ONCE = 5_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that was done. `at`: UTC epoch seconds; `who`: user@machine; `doing`: the command; `why`: its `-m`.

    `type` says what happened (`started`, `stopped`, `killed`, `lost`, `lock-broken`, …), `node` and `host` to what;
    `before` and `after` are states in words, where there are any.
    """

    at: float
    type: str
    who: str
    doing: str
    why: str | None = None
    node: str | None = None
    host: str | None = None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class EntryChunk:
    """Entries in the order in which they were written, and the byte at which reading goes on."""

    entries: tuple[Entry, ...]
    offset: int


def append(layout: Layout, entries: tuple[Entry, ...]) -> None:
    """Add entries; each is one write, so that two writers do not mix."""
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(layout.root / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for entry in entries:
            os.write(handle, json.dumps(asdict(entry)).encode() + b"\n")
    finally:
        os.close(handle)


def read(layout: Layout, offset: int = 0) -> EntryChunk:
    """Entries from a byte on, at most some thousands at once; lines that do not parse are passed over."""
    path: Path = layout.root / NAME
    try:
        source = path.open("rb")
    except FileNotFoundError:
        return EntryChunk(entries=(), offset=0)
    found: list[Entry] = []
    with source:
        # Shorter than where reading stopped: it is another file by now.
        at = offset if offset <= os.fstat(source.fileno()).st_size else 0
        source.seek(at)
        for line in source:
            if not line.endswith(b"\n") or len(found) >= _AT_ONCE:
                break
            at += len(line)
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return EntryChunk(entries=tuple(found), offset=at)
