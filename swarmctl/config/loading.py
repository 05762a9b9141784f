"""Files and texts → `SwarmSpec`, with all findings at once in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from swarmctl.config import checks, reach
from swarmctl.config.document import parse_document
from swarmctl.config.draft import KnownCards, Placed
from swarmctl.config.model import resolve_model
from swarmctl.config.reading import Reading, read_file
from swarmctl.config.resolve import (
    resolve_client,
    resolve_draft,
    resolve_hosts,
    resolve_redundancy,
    resolve_swarm_name,
)
from swarmctl.errors import ConfigError, Finding
from swarmctl.spec import ModelSpec, NodeSpec, SwarmSpec

FILE_NAME = "swarm.yaml"
_VERSION = 1
# What `load_hosts` judges.
_ABOUT_HOSTS = ("", "version", "swarm", "hosts")


def load(path: Path, cards: KnownCards | None = None) -> SwarmSpec:
    """The swarm that a file declares. `cards` is what is known of the hosts with `gpus: all`.

    Raises:
        ConfigError: the file cannot be read, or is invalid; then with every finding.
    """
    path = path.expanduser()
    absolute = path.absolute()
    spec, findings = validate_text(_read(path), str(path), absolute.parent, cards)
    if spec is None:
        raise _invalid(path, findings)
    return replace(spec, path=str(absolute))


def load_hosts(path: Path) -> SwarmSpec:
    """The swarm's name and machines alone, for looking at them before the rest can be judged: no node, no model.

    Raises:
        ConfigError: the file cannot be read, or these are invalid.
    """
    path = path.expanduser()
    document = parse_document(_read(path), str(path))
    if document.data is None:
        raise _invalid(path, _in_order(document.findings))
    reading = read_file(document)
    _check_version(reading)
    name = resolve_swarm_name(reading)
    hosts = resolve_hosts(reading, {})
    findings = _in_order(each for each in document.findings if re.split(r"[.\[]", each.path)[0] in _ABOUT_HOSTS)
    if findings:
        raise _invalid(path, findings)
    model = ModelSpec(source="", dht_prefix="", num_blocks=1, hidden_size=1)
    found = {host: hosts.by_name[host] for host in hosts.declared}
    return SwarmSpec(name=name, model=model, hosts=found, bootstraps=(), nodes={}, path=str(path.absolute()))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no swarm file {path}", hints=["write one: swarmctl init", "name another: swarmctl -c FILE …"]
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def _invalid(path: Path, findings: Sequence[Finding]) -> ConfigError:
    count = f"{len(findings)} faults" if len(findings) > 1 else "one fault"
    return ConfigError(f"{path} is invalid: {count}", findings=findings)


def find(start: Path) -> Path | None:
    """`swarm.yaml` in `start` or in the nearest folder above it."""
    folder = start.absolute()
    for candidate in (folder, *folder.parents):
        if (candidate / FILE_NAME).is_file():
            return candidate / FILE_NAME
    return None


def validate_text(
    text: str, file: str, base: Path, cards: KnownCards | None = None
) -> tuple[SwarmSpec | None, tuple[Finding, ...]]:
    """The swarm that a text declares, and every fault; exactly one of the two is there.

    `file` is how findings name it; a relative `model.source` starts from the folder `base`. The spec's `path` is None.
    `cards` is as for `load`.
    """
    document = parse_document(text, file)
    spec = None
    if document.data is not None or not document.findings:
        spec = _resolve(read_file(document), base.absolute(), cards or {})
    findings = _in_order(document.findings)
    return (None if findings else spec), findings


def _resolve(reading: Reading, base: Path, cards: KnownCards) -> SwarmSpec | None:
    if () in reading.invalid:
        return None
    _check_version(reading)
    name = resolve_swarm_name(reading)
    model = resolve_model(reading, base)
    policy = resolve_redundancy(reading)
    draft = resolve_draft(reading, cards)
    reach.check_machines(reading, draft)
    reach.check_addresses(reading, draft)
    reach.check_ports(reading, draft)
    reach.check_announced(reading, draft)
    checks.check_cards(reading, draft)
    checks.check_devices(reading, draft, model)
    checks.check_blocks(reading, draft, model.spec if model else None, policy)
    if model is None or reading.document.findings:
        return None
    return SwarmSpec(
        name=name,
        model=model.spec,
        hosts={host: draft.hosts.by_name[host] for host in draft.hosts.declared},
        bootstraps=draft.bootstraps,
        nodes={node.name: spec for node in draft.nodes if (spec := _node(node))},
        redundancy=policy,
        client=resolve_client(reading),
    )


def _node(node: Placed) -> NodeSpec | None:
    if node.host is None or node.blocks is None:
        return None
    return NodeSpec(
        name=node.name,
        host=node.host.name,
        blocks=node.blocks,
        gpu=node.gpu,
        port=node.port,
        announce=node.announce,
        # What was judged is what runs: without this petals would take a card that the file does not list.
        settings=replace(node.settings, device=checks.device_of(node)),
    )


def _check_version(reading: Reading) -> None:
    version = reading.file.version
    if version is None:
        if reading.usable("version"):
            reading.report(("version",), "is missing", hint=f"version: {_VERSION}", at_key=True)
    elif version != _VERSION:
        message = f"{version} is not a version that this swarmctl reads; it reads {_VERSION}"
        reading.report(("version",), message, hint=f"version: {_VERSION}")


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    ordered: Sequence[Finding] = sorted(findings, key=lambda finding: (finding.line, finding.column))
    first: dict[tuple[int, int, str], Finding] = {}
    for finding in ordered:
        first.setdefault((finding.line, finding.column, f"{finding.path} {finding.message}"), finding)
    return tuple(first.values())
