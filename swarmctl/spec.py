"""What the operator wants: the swarm file as values. A value that exists is valid in itself.

`config.load` builds these; nothing here reads files. Cross-checks between nodes, hosts and the model live in
`config`, where the line numbers are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from swarmctl.blocks import BlockRange, HostName, NodeName

DEFAULT_PYTHON = "~/.local/share/swarmctl/venv/bin/python"
"""What runs swarmctl on a host behind ssh for which the file names nothing: the environment of `host setup`."""


class Domain(str, Enum):
    """What fails together. Each contains the ones before it: gpu ⊂ host ⊂ rack ⊂ zone."""

    GPU = "gpu"
    HOST = "host"
    RACK = "rack"
    ZONE = "zone"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The model of the swarm. `source` is a folder (absolute) or a hub name; `num_blocks` counts its blocks."""

    source: str
    dht_prefix: str
    num_blocks: int
    hidden_size: int
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class RedundancyPolicy:
    """How many replicas each block needs (`minimum`) and should have (`target`), counted over distinct `by`."""

    minimum: int = 1
    target: int = 2
    by: Domain = Domain.HOST


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """A machine. `ssh` is None for this machine; a host without rack or zone is a rack and a zone of its own.

    `address`: the IPv4 address or DNS name that the others use. `gpus`: the cards that may be used; with `all_gpus`
    those that are known of it, none if nobody has looked yet. `python` None: `DEFAULT_PYTHON` behind ssh, else the one
    that runs swarmctl.
    """

    name: HostName
    ssh: str | None = None
    address: str = "127.0.0.1"
    rack: str | None = None
    zone: str | None = None
    gpus: tuple[int, ...] = ()
    all_gpus: bool = False
    python: str | None = None

    @property
    def is_local(self) -> bool:
        """True if no network is needed to start a process there."""
        return self.ssh is None


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of one petals server; the defaults are those that recovery and truthful status need.

    Seconds end in `_s`. `attn_cache_tokens` and `max_batch_size` None mean petals' own default for the model
    (16384 and 8192 with grouped-query attention, 4096 and 2048 without). `throughput` None means: measure it on
    the node, compute only. `inference_max_length` None: as `attn_cache_tokens`' family default (8192 or 2048).
    `cuda_graphs` False: steps of one token are computed without graphs, slower but with less memory of the card.
    `restarts`: how often a server that ended by itself is started again within ten minutes of service; 0: never.
    """

    torch_dtype: str = "auto"
    quant: str = "none"
    device: str | None = None
    attn_cache_tokens: int | None = None
    inference_max_length: int | None = None
    max_batch_size: int | None = None
    update_period_s: float = 10.0
    step_timeout_s: float = 3600.0
    session_timeout_s: float = 86400.0
    num_handlers: int = 4
    throughput: float | None = None
    threads: int | None = None
    cuda_graphs: bool = True
    restarts: int = 5


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a node is reached: an IPv4 address and a TCP port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class BootstrapSpec:
    """A DHT-only peer that the others join through, and that observes the swarm. `port` None: chosen at start.

    `announce`: as for a node.
    """

    name: NodeName
    host: HostName
    port: int | None = None
    announce: Endpoint | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One block server. `gpu` None: no card is pinned. `port` None: chosen at start and kept in the record.

    `announce`: what others are told instead of the host's address and `port`, where something forwards to these.
    """

    name: NodeName
    host: HostName
    blocks: BlockRange
    gpu: int | None = None
    port: int | None = None
    announce: Endpoint | None = None
    settings: ServerSettings = field(default_factory=ServerSettings)


@dataclass(frozen=True, kw_only=True)
class ClientSpec:
    """How `generate` behaves. Seconds end in `_s`.

    A server whose answer is later than `suspect_after_s` (or four times as late as lately) is suspected: another one is
    fed the session's history beside it, and the first complete answer wins. It is given up if its computing process
    does not answer a look either. `step_timeout_s` bounds one request to one server; `recover_timeout_s` bounds the
    wait for a server that can take a failed span over. `max_length` None: what prompt and new tokens need. With
    `allow_strangers` the client also routes to peers that the file does not name.
    """

    connect_timeout_s: float = 3.0
    suspect_after_s: float = 0.5
    step_timeout_s: float = 15.0
    recover_timeout_s: float = 60.0
    update_period_s: float = 5.0
    alloc_timeout_s: float = 2.0
    replay_chunk_tokens: int = 512
    max_length: int | None = None
    allow_strangers: bool = False


def known_by_name(name: str) -> SwarmSpec:
    """A swarm on this machine of which only the name is known; what runs of it is found by its files."""
    here = HostName("here")
    model = ModelSpec(source="", dht_prefix=name, num_blocks=1, hidden_size=1)
    return SwarmSpec(name=name, model=model, hosts={here: HostSpec(name=here)}, bootstraps=(), nodes={})


@dataclass(frozen=True, kw_only=True)
class SwarmSpec:
    """The whole file. `hosts` and `nodes` keep the file's order; names are unique across nodes and bootstraps."""

    name: str
    model: ModelSpec
    hosts: Mapping[HostName, HostSpec]
    bootstraps: tuple[BootstrapSpec, ...]
    nodes: Mapping[NodeName, NodeSpec]
    redundancy: RedundancyPolicy = field(default_factory=RedundancyPolicy)
    client: ClientSpec = field(default_factory=ClientSpec)
    path: str | None = None

    def domain_of(self, node: NodeName, by: Domain) -> str:
        """The name of the failure domain that `node` is in, unique across the swarm.

        A GPU is named by its host too; a host without rack or zone stands for itself.
        """
        declared = self.nodes[node]
        host = self.hosts[declared.host]
        if by is Domain.GPU:
            return f"{host.name}/gpu{declared.gpu}" if declared.gpu is not None else f"{host.name}/{node}"
        if by is Domain.HOST:
            return str(host.name)
        if by is Domain.RACK:
            return host.rack or str(host.name)
        return host.zone or host.rack or str(host.name)

    def domains_of(self, host: HostName, by: Domain) -> tuple[str, ...]:
        """The failure domains that a node on `host` can be in, named as in `domain_of`, in the order of the cards.

        By GPU a host without listed cards gives its bare name: each node on it would be a domain of its own.
        """
        declared = self.hosts[host]
        if by is Domain.GPU:
            return tuple(f"{declared.name}/gpu{gpu}" for gpu in declared.gpus) or (str(declared.name),)
        if by is Domain.HOST:
            return (str(declared.name),)
        if by is Domain.RACK:
            return (declared.rack or str(declared.name),)
        return (declared.zone or declared.rack or str(declared.name),)
