"""The sections of the file → the values of `spec`, each with the findings that it alone can have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swarmctl.addresses import host_fault
from swarmctl.blocks import HostName, NodeName, parse_range
from swarmctl.config.cards import one_per_card
from swarmctl.config.document import Path
from swarmctl.config.draft import Draft, Hosts, KnownCards, Placed
from swarmctl.config.endpoints import parse_endpoint
from swarmctl.config.names import BOOTSTRAP_NAME, HOST_NAME, NODE_NAME, SWARM_NAME
from swarmctl.config.reading import Reading, listed, nearest
from swarmctl.config.schema import NodeSection, SettingsSection
from swarmctl.spec import DEFAULT_PYTHON, BootstrapSpec, ClientSpec, Domain, HostSpec, RedundancyPolicy, ServerSettings

# A leading dash would be an option of ssh, not a host.
_SSH = re.compile(r"^(?:[^\s@:/-][^\s@:/]*@)?[^\s@:/-][^\s@/:]*\Z")

_IMPLICIT_HOST = HostName("here")


def resolve_draft(reading: Reading, cards: KnownCards) -> Draft:
    """Machines, bootstrap peers and nodes; without hosts in the file there is one, this machine."""
    hosts = resolve_hosts(reading, cards)
    return Draft(hosts=hosts, bootstraps=_resolve_bootstraps(reading, hosts), nodes=_resolve_nodes(reading, hosts))


def resolve_swarm_name(reading: Reading) -> str:
    """The swarm's name; it becomes a folder on each host and a part of the model's name in the swarm."""
    name = reading.file.swarm
    if name is None:
        if reading.usable("swarm"):
            reading.report(("swarm",), "is missing", hint="swarm: lab", at_key=True)
    elif not SWARM_NAME.match(name):
        message = f'"{name}" is no swarm name; it takes up to 64 letters, digits, _ and -, and begins with no dash'
        hint = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:64]
        reading.report(("swarm",), message, hint=f"swarm: {hint}" if hint else None)
    return name or ""


def resolve_hosts(reading: Reading, cards: KnownCards) -> Hosts:
    """The machines; without any in the file there is one, this machine."""
    written = reading.file.hosts
    paths = [path for path in reading.document.places if len(path) == 2 and path[0] == "hosts"]
    names = tuple(HostName(path[1]) for path in paths if isinstance(path[1], str))
    if not names:
        here = HostSpec(name=_IMPLICIT_HOST)
        return Hosts(by_name={here.name: here}, declared=(here.name,), known=("hosts",) not in reading.invalid)
    by_name = {name: host for name in names if name in written and (host := _resolve_host(reading, name, cards))}
    unseen = frozenset(name for name, host in by_name.items() if host.all_gpus and name not in cards)
    return Hosts(by_name=by_name, declared=names, known=True, unseen=unseen)


def _resolve_host(reading: Reading, name: HostName, cards: KnownCards) -> HostSpec | None:
    section, path = reading.file.hosts[name], ("hosts", name)
    if not HOST_NAME.match(name):
        reading.report(path, f'"{name}" is no host name; it takes letters, digits, dot, _ and -', at_key=True)
    if section.connect and section.ssh is not None:
        reading.report((*path, "ssh"), "contradicts connect: local; keep one of the two", at_key=True)
    elif not section.connect and section.ssh is None and reading.usable(*path):
        message = "says neither connect: local nor ssh: user@host"
        reading.report(path, message, hint=f"{name}: {{connect: local}}", at_key=True)
    if section.ssh is not None and not _SSH.match(section.ssh):
        message = f'"{section.ssh}" is no ssh destination; write user@host, or a name from ~/.ssh/config'
        reading.report((*path, "ssh"), message, hint="a port belongs in ~/.ssh/config")
        return None
    if not reading.usable(*path):
        return None
    default = section.ssh.rpartition("@")[2] if section.ssh else "127.0.0.1"
    if section.address is None and (fault := host_fault(default)):
        message = f'is missing; "{default}" {fault}'
        reading.report((*path, "address"), message, hint="address: where the other hosts reach it", at_key=True)
        return None
    known = cards.get(name)
    if section.gpus == "all" and known == ():
        reading.report((*path, "gpus"), "all of none: this host has no cards", hint="gpus: []")
        return None
    return HostSpec(
        name=name,
        ssh=section.ssh,
        address=section.address or default,
        rack=section.rack,
        zone=section.zone,
        gpus=(known or ()) if section.gpus == "all" else tuple(section.gpus),
        all_gpus=section.gpus == "all",
        # Written out by `render`, so that an operator sees it; it is the default all the same.
        python=None if section.ssh and section.python == DEFAULT_PYTHON else section.python,
    )


def _resolve_bootstraps(reading: Reading, hosts: Hosts) -> tuple[BootstrapSpec, ...]:
    """The bootstrap peers, named by their order; one on the first host if the file has none and all hosts are local."""
    if reading.file.bootstrap is None:
        if not reading.usable("bootstrap"):
            return ()
        if any(host.ssh for host in hosts.by_name.values()):
            hint = f"bootstrap: [{{host: {hosts.declared[0]}, port: 31337}}]"
            message = "is missing; with hosts behind ssh it must say where the others join"
            reading.report(("bootstrap",), message, hint=hint, at_key=True)
            return ()
        return (BootstrapSpec(name=NodeName("bootstrap-0"), host=hosts.declared[0]),)
    if not reading.file.bootstrap:
        reading.report(("bootstrap",), "needs at least one entry", hint=f"- {{host: {hosts.declared[0]}}}")
    found = []
    for index, section in enumerate(reading.file.bootstrap):
        path: Path = ("bootstrap", index)
        host = _host_of(reading, path, section.host, hosts)
        if host is not None:
            announce = parse_endpoint(section.announce) if section.announce else None
            name = NodeName(f"bootstrap-{index}")
            found.append(BootstrapSpec(name=name, host=host, port=section.port, announce=announce))
    return tuple(found)


def _host_of(reading: Reading, path: Path, written: str | None, hosts: Hosts) -> HostName | None:
    """The host that a node or bootstrap peer is on, or None and a finding."""
    at = (*path, "host")
    if not hosts.known or not reading.usable(*at):
        return None
    if written is None:
        if hosts.only is None:
            message = f"is missing; there are {len(hosts.declared)} hosts: {listed(hosts.declared)}"
            reading.report(at, message, hint=f"host: {hosts.declared[0]}", at_key=True)
        return hosts.only
    if written in hosts.declared:
        return HostName(written)
    near = nearest(written, hosts.declared)
    suffix = f'did you mean "{near}"?' if near else f"there are: {listed(hosts.declared)}"
    reading.report(at, f'there is no host "{written}"; {suffix}')
    return None


def _resolve_nodes(reading: Reading, hosts: Hosts) -> tuple[Placed, ...]:
    """The block servers, in the file's order."""
    if not reading.file.nodes and reading.usable("nodes"):
        reading.report(("nodes",), "is missing", hint='nodes: {a0: {blocks: "0:8"}}', at_key=True)
    placed: list[Placed] = []
    for name, section in reading.file.nodes.items():
        node = _resolve_node(reading, name, section, hosts)
        several = section.gpus is not None or not reading.usable("nodes", name, "gpus")
        placed += one_per_card(reading, node, section, hosts) if several else [node]
    return tuple(placed)


def _resolve_node(reading: Reading, name: str, section: NodeSection, hosts: Hosts) -> Placed:
    path = ("nodes", name)
    if BOOTSTRAP_NAME.match(name):
        reading.report(path, f'"{name}" is how bootstrap peers are named; take another name', at_key=True)
    elif not NODE_NAME.match(name):
        hint = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63]
        message = f'"{name}" is no node name; it takes up to 63 lower-case letters, digits and -'
        reading.report(path, message, hint=hint or None, at_key=True)
    if section.blocks is None and reading.usable(*path, "blocks"):
        reading.report((*path, "blocks"), "is missing", hint='blocks: "0:8"', at_key=True)
    host_name = _host_of(reading, path, section.host, hosts)
    host = hosts.by_name.get(host_name) if host_name else None
    settings = _settings(reading.file.defaults, section)
    blocks = parse_range(section.blocks) if section.blocks and section.blocks != "auto" else None
    gpu = section.gpu
    if host and gpu is None and len(host.gpus) == 1 and settings.device in (None, "cuda"):
        gpu = host.gpus[0]
    return Placed(
        name=NodeName(name),
        entry=name,
        host=host,
        blocks=blocks,
        written=blocks,
        gpu=gpu,
        port=section.port,
        announce=parse_endpoint(section.announce) if section.announce else None,
        settings=settings,
        auto=section.blocks == "auto",
    )


# The file says `10s`, so its keys need no unit; the values do.
SECONDS: Mapping[str, str] = {
    "update_period": "update_period_s",
    "step_timeout": "step_timeout_s",
    "session_timeout": "session_timeout_s",
    "connect_timeout": "connect_timeout_s",
    "suspect_after": "suspect_after_s",
    "recover_timeout": "recover_timeout_s",
    "alloc_timeout": "alloc_timeout_s",
}
# Written on or off.
SWITCHES = frozenset({"cuda_graphs"})


def _settings(defaults: SettingsSection, node: NodeSection) -> ServerSettings:
    own = {key: getattr(node, key) for key in node.model_fields_set if key in SettingsSection.model_fields}
    merged = {**defaults.model_dump(), **own}
    return ServerSettings(**{SECONDS.get(key, key): value for key, value in merged.items()})


def resolve_client(reading: Reading) -> ClientSpec:
    """The client's settings."""
    section = reading.file.client.model_dump()
    return ClientSpec(**{SECONDS.get(key, key): value for key, value in section.items()})


def resolve_redundancy(reading: Reading) -> RedundancyPolicy:
    """The policy; a target that is not given is at least the minimum."""
    section = reading.file.redundancy
    given = "target" in section.model_fields_set
    if given and section.min > section.target:
        message = f"{section.min} is more than the target of {section.target}"
        reading.report(("redundancy", "min"), message, hint=f"target: {section.min}")
    target = section.target if given else max(section.min, section.target)
    return RedundancyPolicy(minimum=section.min, target=target, by=Domain(section.by))
