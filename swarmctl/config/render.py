"""`SwarmSpec` → the YAML that declares it, with every default written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from swarmctl.config.document import RESOLVERS
from swarmctl.config.durations import format_duration
from swarmctl.config.resolve import SECONDS, SWITCHES
from swarmctl.spec import (
    DEFAULT_PYTHON,
    BootstrapSpec,
    ClientSpec,
    Endpoint,
    HostSpec,
    NodeSpec,
    ServerSettings,
    SwarmSpec,
)


class _Inline(dict[str, Any]):
    """A mapping on one line."""


class _Quoted(str):
    """Text that is quoted although nothing here demands it: other YAML readers take `40:50` for a number."""

    __slots__ = ()


class _Plain(str):
    """Text that is not quoted although another YAML reader takes it for a truth value; it is one."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _inline(dumper: yaml.SafeDumper, value: _Inline) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=True)


def _quoted(dumper: yaml.SafeDumper, value: _Quoted) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(value), style='"')


def _plain(dumper: yaml.SafeDumper, value: _Plain) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:bool", str(value))


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence(
        "tag:yaml.org,2002:seq", value, flow_style=not any(isinstance(item, dict) for item in value)
    )


_Dumper.add_representer(_Inline, _inline)
_Dumper.add_representer(_Quoted, _quoted)
_Dumper.add_representer(_Plain, _plain)
_Dumper.add_representer(list, _list)
# Text is quoted if this reader or a YAML 1.1 reader would take it for something else.
for _tag, _pattern, _first in RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def render(spec: SwarmSpec) -> str:
    """YAML text that loads again to an equal spec, but for its `path`; settings that most nodes share are defaults.

    For hosts with `gpus: all` that takes the same `cards` as `load` had.
    """
    settings = [_settings(node.settings) for node in spec.nodes.values()]
    defaults = _most_common(settings)
    tree: dict[str, Any] = {
        "version": 1,
        "swarm": spec.name,
        "model": {
            "source": spec.model.source,
            "dht_prefix": spec.model.dht_prefix,
            "blocks": spec.model.num_blocks,
            "hidden_size": spec.model.hidden_size,
            "revision": spec.model.revision,
        },
        "redundancy": _Inline(min=spec.redundancy.minimum, target=spec.redundancy.target, by=spec.redundancy.by.value),
        "defaults": defaults,
        "hosts": {str(name): _host(host) for name, host in spec.hosts.items()},
        "bootstrap": [_bootstrap(peer) for peer in spec.bootstraps],
        "nodes": {
            str(node.name): _node(node, own, defaults) for node, own in zip(spec.nodes.values(), settings, strict=True)
        },
        "client": _settings(spec.client),
    }
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _settings(settings: ServerSettings | ClientSpec) -> dict[str, Any]:
    keys = {field: key for key, field in SECONDS.items()}
    return {keys.get(field, field): _written(field, value, field in keys) for field, value in asdict(settings).items()}


def _written(field: str, value: Any, is_duration: bool) -> Any:
    if field in SWITCHES:
        return _Plain("on" if value else "off")
    return format_duration(value) if is_duration else value


def _most_common(settings: list[dict[str, Any]]) -> dict[str, Any]:
    shared = settings[0] if settings else {}
    return {key: Counter(each[key] for each in settings).most_common(1)[0][0] for key in shared}


def _host(host: HostSpec) -> dict[str, Any]:
    reached: Mapping[str, Any] = {"connect": "local"} if host.ssh is None else {"ssh": host.ssh}
    return _Inline(
        **reached,
        address=host.address,
        rack=host.rack,
        zone=host.zone,
        gpus="all" if host.all_gpus else list(host.gpus),
        python=host.python or (None if host.is_local else DEFAULT_PYTHON),
    )


def _bootstrap(peer: BootstrapSpec) -> dict[str, Any]:
    return _Inline(host=str(peer.host), port=peer.port, announce=_endpoint(peer.announce))


def _endpoint(endpoint: Endpoint | None) -> str | None:
    return None if endpoint is None else _Quoted(str(endpoint))


def _node(node: NodeSpec, own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    different = {key: value for key, value in own.items() if value != defaults[key]}
    return _Inline(
        host=str(node.host),
        gpu=node.gpu,
        blocks=_Quoted(str(node.blocks)),
        port=node.port,
        announce=_endpoint(node.announce),
        **different,
    )
