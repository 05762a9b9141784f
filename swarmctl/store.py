"""The files that a swarm leaves on a host: where they are, and how each is written and read.

    <state>/<swarm>/
        <node>/launch.json      what the runner was told to start (written by `up`, before the start)
        <node>/record.json      what runs: pid, start time, port, peer id, how it ended (written by the runner)
        <node>/progress.json    how far the start is (written by the child)
        <node>/observed.json    bootstrap peers only: what they see in the DHT, and their probes, every few seconds
        <node>/health.json      servers only: whether all that serves is in order, every second (written by the child)
        <node>/identity.key     the libp2p key, mode 0400; made before the first start, kept over restarts
        <node>/identity.json    the peer id of that key, and the key's digest, so that reading it needs no hivemind
        <node>/lock             held (flock) by the node's runner as long as it lives; stays
        <node>/kill.json        which child is killed on purpose, and why the record shall say it ended
        <node>/node.log         stdout and stderr of runner and child; rotated to node.log.1
    <run>/<8 hex>/              unix sockets of one node's libp2p daemon; short, because a socket's path is limited

Every JSON file is written to a temporary name beside it and renamed, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swarmctl.addresses import multiaddr
from swarmctl.blocks import BlockRange, NodeName, PeerId

MAX_RESTARTS = 5
"""How often a runner starts a child again that ended by itself, unless the swarm file says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one swarm's files are on this host. `state` and `run` are absolute."""

    state: Path
    run: Path
    swarm: str

    @property
    def root(self) -> Path:
        """The folder of the swarm."""
        return self.state / self.swarm

    def node(self, name: NodeName) -> NodeFiles:
        """The files of one node."""
        folder = self.root / name
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        return NodeFiles(folder=folder, sockets=self.run / digest)

    def names(self) -> tuple[NodeName, ...]:
        """Nodes that have left files here, in the order of their names."""
        if not self.root.is_dir():
            return ()
        return tuple(NodeName(entry.name) for entry in sorted(self.root.iterdir()) if entry.is_dir())


@dataclass(frozen=True, kw_only=True)
class NodeFiles:
    """The paths of one node."""

    folder: Path
    sockets: Path

    @property
    def launch(self) -> Path:
        """`launch.json`."""
        return self.folder / "launch.json"

    @property
    def record(self) -> Path:
        """`record.json`."""
        return self.folder / "record.json"

    @property
    def progress(self) -> Path:
        """`progress.json`."""
        return self.folder / "progress.json"

    @property
    def observed(self) -> Path:
        """`observed.json`."""
        return self.folder / "observed.json"

    @property
    def health(self) -> Path:
        """`health.json`."""
        return health_beside(self.progress)

    @property
    def identity(self) -> Path:
        """`identity.key`."""
        return self.folder / "identity.key"

    @property
    def peer(self) -> Path:
        """`identity.json`."""
        return self.folder / "identity.json"

    @property
    def lock(self) -> Path:
        """`lock`."""
        return self.folder / "lock"

    @property
    def kill_order(self) -> Path:
        """`kill.json`."""
        return self.folder / "kill.json"

    @property
    def log(self) -> Path:
        """`node.log`."""
        return self.folder / "node.log"

    @property
    def of_one_run(self) -> tuple[Path, ...]:
        """What a run leaves that would be read as news of the next one."""
        return (self.record, self.progress, self.observed, self.health, self.kill_order)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a runner is told to start; the whole of it, so that a restart needs nothing else.

    `kind` is "bootstrap" or "server". `blocks` is None for a bootstrap. `initial_peers` are full multiaddrs with
    peer ids, empty for the first bootstrap. `listen_ip` and `port` are what libp2p binds, `announce_ip` and
    `announce_port` (None: `port`) what it tells others; the former may be a DNS name.
    `settings` are the fields of `ServerSettings`. `gpu` None: no card is pinned. `roster` are the declared peers,
    `roster_names` their names in the same order, so that others know them where their own host does not answer.
    `max_restarts`: how often the runner starts a child again that ended by itself, see `node.restarts`; 0: never.
    """

    kind: str
    swarm: str
    node: str
    peer: PeerId
    port: int
    listen_ip: str
    announce_ip: str
    initial_peers: tuple[str, ...]
    identity: str
    sockets: str
    progress: str
    observed: str
    model_source: str
    dht_prefix: str
    num_blocks: int
    hidden_size: int
    blocks: str | None = None
    revision: str | None = None
    gpu: int | None = None
    settings: dict[str, Any] | None = None
    roster: tuple[str, ...] = ()
    roster_names: tuple[str, ...] = ()
    announce_port: int | None = None
    max_restarts: int = MAX_RESTARTS

    @property
    def announced(self) -> str:
        """The multiaddr that others dial, without the peer id."""
        return multiaddr(self.announce_ip, self.announce_port or self.port)

    @property
    def address(self) -> str:
        """The multiaddr that others join through."""
        return multiaddr(self.announce_ip, self.announce_port or self.port, self.peer)

    @property
    def block_range(self) -> BlockRange:
        """The blocks to serve.

        Raises:
            ValueError: for a bootstrap, which serves none.
        """
        if self.blocks is None:
            raise ValueError(f"{self.node} is a bootstrap peer and serves no blocks")
        start, end = self.blocks.split(":")
        return BlockRange(int(start), int(end))


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a runner started. A pid is only ever used together with its start time.

    `runner_started` and `child_started` are the kernel's start times (clock ticks since boot, /proc/PID/stat field
    22), so that a reused pid is recognised. `child_pid` is also the process group of everything the node started.
    `ended` is None while it runs, else why it ended; `asked_to_stop` says whether somebody wanted that.

    The rest is about the child, and a child may be one of several: `started_at` (UTC) is when this one was started,
    `restarts` counts those before it. `crashes`: how many have ended by themselves lately, see `node.restarts`; the
    limit for it is the launch's `max_restarts`. `last_ended`: why the one before ended. `next_start_at` (UTC): when
    the next one is started; None unless the runner waits for that.
    """

    node: str
    kind: str
    peer: PeerId
    port: int
    blocks: str | None
    runner_pid: int
    runner_started: int
    child_pid: int | None
    child_started: int | None
    started_at: str
    argv: tuple[str, ...] = ()
    asked_to_stop: bool = False
    ended: str | None = None
    ended_at: str | None = None
    addresses: tuple[str, ...] = ()
    restarts: int = 0
    crashes: int = 0
    last_ended: str | None = None
    next_start_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class KillOrder:
    """Written before a child is killed on purpose; `reason` becomes the record's `ended` if that child then dies."""

    child_pid: int
    child_started: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a start is: phase is starting, loading, joining or online; `done` of `total` blocks loaded."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a server says of itself. `written_at` is UTC epoch seconds.

    `reason` says what is not `ok`, or is worth a word.
    `forward_ms`: how long the last one-token forward through its own task pool took, None before the first.
    `busy_s`: for how long it has been computing one task. `announced`: whether the DHT has its record; None: not known.
    """

    written_at: float
    ok: bool
    reason: str | None = None
    forward_ms: float | None = None
    busy_s: float = 0.0
    announced: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedServer:
    """One peer as a bootstrap sees it: its newest DHT record, and the newest probe. Times are UTC epoch seconds.

    `ours`: it answers swarmctl's heartbeat; None until it has answered anything. `graphs` and `busy_s` are what the
    heartbeat says, see `upstream.heartbeat.Beat`.
    """

    peer: PeerId
    state: str
    start_block: int
    end_block: int
    throughput: float
    expires_at: float
    seen_at: float
    inference_rps: float | None = None
    cache_tokens_left: int | None = None
    torch_dtype: str | None = None
    quant_type: str | None = None
    version: str | None = None
    using_relay: bool = False
    probed_at: float | None = None
    probe_ok: bool | None = None
    probe_ms: float | None = None
    probe_reason: str | None = None
    ours: bool | None = None
    graphs: str | None = None
    busy_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one bootstrap peer wrote last. `written_at` is UTC epoch seconds."""

    observer: str
    written_at: float
    servers: tuple[ObservedServer, ...]


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """Write a dataclass or plain value atomically; the folder must exist."""
    plain = asdict(value) if hasattr(value, "__dataclass_fields__") else value
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(plain, out)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def read_launch(files: NodeFiles) -> Launch | None:
    """The node's launch file, or None if there is none that can be read."""
    raw = _read(files.launch)
    if raw is None:
        return None
    return launch_from(raw)


def launch_from(raw: dict[str, Any]) -> Launch:
    """A launch from its JSON form."""
    lists = {key: tuple(raw.get(key, ())) for key in ("initial_peers", "roster", "roster_names")}
    return Launch(**{**raw, **lists})


def read_record(files: NodeFiles) -> Record | None:
    """The node's record, or None if there is none that can be read."""
    raw = _read(files.record)
    if raw is None:
        return None
    raw["argv"], raw["addresses"] = tuple(raw["argv"]), tuple(raw["addresses"])
    return Record(**raw)


def read_peer(files: NodeFiles) -> PeerId | None:
    """The peer id of the node's key, or None if there is no key or the sidecar is about another one."""
    sidecar = _read(files.peer)
    if sidecar is None or not files.identity.is_file():
        return None
    return PeerId(sidecar["peer"]) if sidecar.get("sha256") == _digest(files.identity) else None


def write_peer(files: NodeFiles, peer: PeerId) -> None:
    """Note the peer id beside the key that it belongs to."""
    write_json(files.peer, {"peer": peer, "sha256": _digest(files.identity)})


def _digest(key: Path) -> str:
    return hashlib.sha256(key.read_bytes()).hexdigest()


def read_kill_order(files: NodeFiles) -> KillOrder | None:
    """The last order to kill the node's child, or None; it may be about a child of long ago."""
    raw = _read(files.kill_order)
    return None if raw is None else KillOrder(**raw)


def read_progress(files: NodeFiles) -> Progress | None:
    """The node's progress, or None if it has not begun."""
    raw = _read(files.progress)
    return None if raw is None else Progress(**raw)


def health_beside(progress: Path) -> Path:
    """Where the child whose progress is in that file writes its health."""
    return progress.with_name("health.json")


def read_health(files: NodeFiles) -> Health | None:
    """What the node's child last said of its health, or None if it has not."""
    raw = _read(files.health)
    return None if raw is None else Health(**raw)


def read_observation(files: NodeFiles) -> Observation | None:
    """A bootstrap's last observation, or None if it has not written one."""
    raw = _read(files.observed)
    if raw is None:
        return None
    servers = tuple(ObservedServer(**server) for server in raw["servers"])
    return Observation(observer=raw["observer"], written_at=raw["written_at"], servers=servers)
