"""What only the whole file shows: cards taken twice, types no CPU computes, blocks on no node.

Each check adds findings and changes nothing. A check is skipped for what is not known because of another finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swarmctl.blocks import BlockRange
from swarmctl.config.cards import unseen
from swarmctl.config.document import Path
from swarmctl.config.draft import Draft, Placed
from swarmctl.config.model import ResolvedModel
from swarmctl.config.reach import machine
from swarmctl.config.reading import Reading, listed
from swarmctl.coverage import CoverageReport, Holder, analyse
from swarmctl.spec import HostSpec, ModelSpec, NodeSpec, RedundancyPolicy, SwarmSpec


def device_of(node: Placed) -> str:
    """Where the node computes: what the file says, else cuda on a host that lists cards, else cpu."""
    return node.settings.device or ("cuda" if _has_cards(node.host) else "cpu")


def _has_cards(host: HostSpec | None) -> bool:
    # Cards at which nobody has looked yet count: a host that turns out to have none is refused then.
    return host is not None and (host.all_gpus or bool(host.gpus))


def check_cards(reading: Reading, draft: Draft) -> None:
    """Each card serves one node, exists, and is named where there is a choice."""
    taken: dict[tuple[str, int], str] = {}
    for node in draft.nodes:
        path, host = node.at("gpu"), node.host
        if host is None or not reading.usable(*path):
            continue
        if node.gpu is None:
            _report_no_card(reading, draft, node, host)
            continue
        _report_card(reading, draft, node, host)
        first = taken.setdefault((machine(host), node.gpu), node.name)
        if first != node.name:
            reading.report(path, f"card {node.gpu} of host {host.name} is taken by {first}", hint=_free(draft, host))


def _report_no_card(reading: Reading, draft: Draft, node: Placed, host: HostSpec) -> None:
    if device_of(node) != "cuda":
        return
    if host.name in draft.hosts.unseen:
        message, hint = unseen(host)
        reading.report(node.at("gpu"), f"is missing; {message}", hint=hint, at_key=True)
    elif host.gpus:
        message = f"is missing; host {host.name} has the cards {listed(host.gpus)}"
        reading.report(node.at("gpu"), message, hint=f"gpu: {host.gpus[0]}", at_key=True)


def _report_card(reading: Reading, draft: Draft, node: Placed, host: HostSpec) -> None:
    if node.gpu not in host.gpus and host.name not in draft.hosts.unseen:
        has = f"whose gpus are {listed(host.gpus)}" if host.gpus else "which lists no gpus"
        hint = _free(draft, host) if host.all_gpus else f"gpus: [{listed((*host.gpus, node.gpu))}]"
        reading.report(node.at("gpu"), f"{node.gpu} is no card of host {host.name}, {has}", hint=hint)
    elif device_of(node) != "cuda":
        message = f"pins card {node.gpu}, but the device is {device_of(node)}"
        reading.report(node.at("gpu"), message, hint="device: cuda")


def _free(draft: Draft, host: HostSpec) -> str | None:
    """A card of this host that no node has."""
    taken = {node.gpu for node in draft.nodes if node.host and machine(node.host) == machine(host)}
    return next((f"gpu: {card}" for card in host.gpus if card not in taken), None)


def check_devices(reading: Reading, draft: Draft, model: ResolvedModel | None) -> None:
    """What a CPU cannot do; one finding for each place in the file, naming the nodes that it concerns."""
    faults: dict[tuple[Path, str, str], list[str]] = {}
    for node in draft.nodes:
        for key, message, hint in _device_faults(node, model):
            where = _where_set(reading, node, key)
            if reading.usable(*where):
                faults.setdefault((where, message, hint), []).append(node.name)
    for (path, message, hint), names in faults.items():
        reading.report(path, f"{message}: {listed(names)}", hint=hint)


def _device_faults(node: Placed, model: ResolvedModel | None) -> Iterable[tuple[str, str, str]]:
    """Key, message and hint of each fault."""
    settings = node.settings
    if node.host is None:
        return
    if settings.device == "cuda" and not _has_cards(node.host):
        yield "device", f"cuda on host {node.host.name}, which lists no gpus", f"{node.host.name}: {{gpus: [0]}}"
    if settings.quant != "none" and device_of(node) != "cuda":
        yield "quant", f"{settings.quant} needs a GPU, and these nodes have none", "quant: none"
    if device_of(node) == "cpu":
        if settings.torch_dtype == "float16":
            yield "torch_dtype", "petals refuses float16 on a CPU, and these nodes have no GPU", "torch_dtype: float32"
        elif settings.torch_dtype == "auto" and model and model.stored_dtype == "float16":
            message = "the checkpoint is stored in float16, which petals refuses on a CPU, and these nodes have no GPU"
            yield "torch_dtype", message, "torch_dtype: float32"


def _where_set(reading: Reading, node: Placed, key: str) -> Path:
    for path in (node.at(key), ("defaults", key)):
        if reading.given(*path):
            return path
    # Only a type that nobody chose is left: the checkpoint's.
    return ("model", "source")


def check_blocks(reading: Reading, draft: Draft, model: ModelSpec | None, policy: RedundancyPolicy) -> None:
    """Every range is inside the model, every block on a node, and the policy's minimum can be reached."""
    inside = model is not None and _all_inside(reading, draft, model)
    placed = [node for node in draft.nodes if node.blocks and node.host]
    report = _coverage(placed, model, policy) if model and inside else None
    automatic = [node for node in draft.nodes if node.auto]
    for node in automatic:
        message = f"auto is not supported yet; write an explicit range{_what_is_open(report)}"
        reading.report(node.at("blocks"), message, hint=f'blocks: "{_suggested(report)}"')
    if report and len(placed) == len(draft.nodes) > 0 and _placement_known(reading, draft):
        _report_gaps(reading, report)
        if reading.usable("redundancy"):
            _report_unreachable(reading, report, placed)


def _placement_known(reading: Reading, draft: Draft) -> bool:
    """False if a node, or where it is, could not be read: then a gap may only be that finding's shadow."""
    if any(path[0] == "nodes" and len(path) < 3 for path in reading.invalid if path):
        return False
    return all(reading.usable(*node.at(key)) for node in draft.nodes for key in ("host", "blocks", "gpu"))


def _all_inside(reading: Reading, draft: Draft, model: ModelSpec) -> bool:
    # Of an entry with several cards the whole range is what the file says.
    beyond = [(node, blocks) for node in draft.nodes if (blocks := node.written) and blocks.end > model.num_blocks]
    for node, blocks in beyond:
        message = f'"{blocks}" ends beyond the model\'s {model.num_blocks} blocks'
        hint = f'blocks: "{blocks.start}:{model.num_blocks}"' if blocks.start < model.num_blocks else None
        reading.report(node.at("blocks"), message, hint=hint)
    return not beyond


def _coverage(placed: Sequence[Placed], model: ModelSpec, policy: RedundancyPolicy) -> CoverageReport:
    spec = _spec_of(placed, model, policy)
    return analyse(spec, [Holder(node=node.name, blocks=node.blocks) for node in spec.nodes.values()])


def _spec_of(placed: Sequence[Placed], model: ModelSpec, policy: RedundancyPolicy) -> SwarmSpec:
    return SwarmSpec(
        name="",
        model=model,
        hosts={node.host.name: node.host for node in placed if node.host},
        bootstraps=(),
        nodes={
            node.name: NodeSpec(name=node.name, host=node.host.name, blocks=node.blocks, gpu=node.gpu)
            for node in placed
            if node.host and node.blocks
        },
        redundancy=policy,
    )


def _suggested(report: CoverageReport | None) -> BlockRange:
    if report is None:
        return BlockRange(0, 8)
    weak = report.gaps or tuple(short.blocks for short in (*report.thin, *report.below_target))
    return weak[0] if weak else BlockRange(0, len(report.replicas))


def _what_is_open(report: CoverageReport | None) -> str:
    if report is None:
        return ""
    if report.gaps:
        return f"; on no node: {listed(report.gaps)}"
    thin = [short.blocks for short in report.below_target]
    return f"; below the target of {report.target}: {listed(thin)}" if thin else ""


def _report_gaps(reading: Reading, report: CoverageReport) -> None:
    if report.gaps:
        message = f"no node serves blocks {listed(report.gaps)} of the model's {len(report.replicas)}"
        hint = f'add a node with blocks: "{report.gaps[0]}"'
        reading.report(("nodes",), message, hint=hint, at_key=True)


def _report_unreachable(reading: Reading, report: CoverageReport, placed: Sequence[Placed]) -> None:
    by = report.by.value
    domains: Mapping[str, str] = _domains(placed, report)
    for short in report.thin:
        if short.replicas == 0:
            continue
        holding = [node for node in placed if node.blocks and node.blocks.intersection(short.blocks)]
        on = listed(dict.fromkeys(domains[node.name] for node in holding))
        missing = short.wanted - short.replicas
        message = (
            f"blocks {short.blocks} can never have {short.wanted} replicas by {by}: {listed(n.name for n in holding)} "
            f"{'is' if len(holding) == 1 else 'are'} on {on}; {missing} more {by}{'s' if missing > 1 else ''} needed"
        )
        hint = f'add a node with blocks: "{short.blocks}" on another {by}, or lower min'
        reading.report(("redundancy", "min"), message, hint=hint)


def _domains(placed: Sequence[Placed], report: CoverageReport) -> dict[str, str]:
    model = ModelSpec(source="", dht_prefix="", num_blocks=len(report.replicas), hidden_size=1)
    spec = _spec_of(placed, model, RedundancyPolicy())
    return {name: spec.domain_of(name, report.by) for name in spec.nodes}
