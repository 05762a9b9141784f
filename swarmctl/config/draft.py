"""The machines and nodes of a file as far as they are known, while it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from swarmctl.blocks import BlockRange, HostName, NodeName
from swarmctl.config.document import Path
from swarmctl.spec import BootstrapSpec, Endpoint, HostSpec, ServerSettings

KnownCards: TypeAlias = Mapping[HostName, tuple[int, ...]]
"""The cards that each host was last seen to have; a host at which nobody has looked is not in it."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A node as far as it is known. `auto`: its blocks are left to be chosen.

    `entry` is its name in the file, and `written` the blocks there; one entry with `gpus` makes several nodes.
    """

    name: NodeName
    entry: str
    host: HostSpec | None
    blocks: BlockRange | None
    written: BlockRange | None
    gpu: int | None
    port: int | None
    announce: Endpoint | None
    settings: ServerSettings
    auto: bool = False
    one_of_several: bool = False

    def at(self, key: str) -> Path:
        """Where the file has a key of this node."""
        return ("nodes", self.entry, "gpus" if key == "gpu" and self.one_of_several else key)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts that are valid, and the names of all that the file declares. `known` False: not even the names are.

    `unseen` are those with `gpus: all` at whose cards nobody has looked yet.
    """

    by_name: Mapping[HostName, HostSpec]
    declared: tuple[HostName, ...]
    known: bool
    unseen: frozenset[HostName] = frozenset()

    @property
    def only(self) -> HostName | None:
        """The host that need not be named."""
        return self.declared[0] if len(self.declared) == 1 else None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Machines, bootstrap peers and nodes as far as they are known; what has a finding may be incomplete or absent."""

    hosts: Hosts
    bootstraps: tuple[BootstrapSpec, ...]
    nodes: tuple[Placed, ...]
