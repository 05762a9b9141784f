"""What the facts of hosts mean for the swarm in the file. Pure: one function a topic, one sentence a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from swarmctl import __version__, build
from swarmctl.blocks import HostName, NodeName
from swarmctl.models.profile import ModelProfile
from swarmctl.operations.hosts.findings import Finding, Level, Topic
from swarmctl.operations.hosts.nvidia import Card, parse_cards
from swarmctl.operations.hosts.seen import Seen
from swarmctl.operations.hosts.sizes import Need, need_of, stored_bytes
from swarmctl.spec import BootstrapSpec, NodeSpec, SwarmSpec

# The versions that swarmctl's patches of them were verified with; torch may be any.
_WANTED = {"petals": "2.2.0.post1", "hivemind": "1.1.12", "transformers": "4.34.1"}
# sockaddr_un.sun_path, less what a node's daemon appends: see `opening`.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/01234567/p2pclient-01234567890.sock"
_KEY_MODE = 0o400
_GIB = 1 << 30

Declared = NodeSpec | BootstrapSpec


def judge(seen: Seen, spec: SwarmSpec, profile: ModelProfile | None, *, estimates: bool = True) -> tuple[Finding, ...]:
    """All that one host's own facts say; `estimates`: of the disk too."""
    if seen.failure is not None:
        return (_unreachable(seen),)
    found: list[Finding] = [_ssh(seen), _swarmctl(seen)]
    if seen.checkup is None:
        return tuple(found)
    judges: tuple[Callable[[Seen, SwarmSpec, ModelProfile | None], Finding | None], ...] = (
        judge_cards,
        _memory,
        *((_disk,) if estimates else ()),
        _model,
        _ports,
        _daemon,
        _keys,
        _sockets,
        _logout,
    )
    found += [finding for each in judges if (finding := each(seen, spec, profile)) is not None]
    return tuple(found)


def _finding(
    seen: Seen, topic: Topic, found: str, sentence: str | None = None, hint: str | None = None, *, warns: bool = False
) -> Finding:
    level = Level.OK if sentence is None else Level.WARNING if warns else Level.FAULT
    return Finding(host=seen.host, topic=topic, level=level, found=found, sentence=sentence, hint=hint)


def _unreachable(seen: Seen) -> Finding:
    failure = seen.failure
    assert failure is not None
    setup = any("host setup" in hint for hint in failure.hints)
    detail = f" ({failure.reasons[-1].strip()})" if failure.reasons else ""
    return Finding(
        host=seen.host,
        topic=Topic.SWARMCTL if setup else Topic.SSH,
        level=Level.FAULT if setup else Level.SILENT,
        found="missing" if setup else "no answer",
        sentence=f"{failure.message}{detail}",
        hint=failure.hints[0] if failure.hints else None,
    )


def _ssh(seen: Seen) -> Finding:
    return _finding(seen, Topic.SSH, f"{seen.round_trip_s * 1000:.0f} ms")


def _swarmctl(seen: Seen) -> Finding:
    facts = seen.facts
    assert facts is not None
    hint = f"swarmctl host setup {seen.host}"
    if (facts.version, facts.build) != (__version__, build.digest()):
        there, here = f"{facts.version} (build {facts.build})", f"{__version__} (build {build.digest()})"
        sentence = f"host {seen.host} has swarmctl {there}, and this machine {here}"
        return _finding(seen, Topic.SWARMCTL, "other build", sentence, hint)
    if seen.checkup is None:
        sentence = f"host {seen.host} cannot be looked at: {seen.broken}"
        return _finding(seen, Topic.SWARMCTL, "broken", sentence, hint)
    packages = seen.checkup.packages
    absent = [name for name, version in packages.items() if version is None]
    if absent:
        return _finding(seen, Topic.SWARMCTL, "incomplete", f"host {seen.host} has no {', no '.join(absent)}", hint)
    odd = [f"{name} {packages.get(name)} ({wanted})" for name, wanted in _WANTED.items() if packages[name] != wanted]
    if odd:
        sentence = f"host {seen.host} has other packages than swarmctl was verified with: {', '.join(odd)}"
        return _finding(seen, Topic.SWARMCTL, "other packages", sentence, hint, warns=True)
    return _finding(seen, Topic.SWARMCTL, f"{facts.version}, python {facts.python_version}")


def cards_of(seen: Seen) -> tuple[Card, ...]:
    """The cards that a host has; none where nobody can tell."""
    try:
        return parse_cards(seen.checkup.smi) if seen.checkup is not None else ()
    except ValueError:
        return ()


def judge_cards(seen: Seen, spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    """Are the cards there that the file uses?"""
    assert seen.checkup is not None
    pinned = (node.gpu for node in nodes_on(spec, seen.host) if node.gpu is not None)
    used = sorted({*spec.hosts[seen.host].gpus, *pinned})
    try:
        cards = parse_cards(seen.checkup.smi)
    except ValueError as error:
        sentence = f"nvidia-smi on host {seen.host} fails: {error}"
        hint = f"on {seen.host}, until it lists the cards: nvidia-smi (a new driver wants a reboot)"
        return _finding(seen, Topic.CARDS, "driver", sentence, hint, warns=not used)
    missing = [number for number in used if number not in {card.index for card in cards}]
    if not missing:
        return _finding(seen, Topic.CARDS, str(len(cards)) if cards else "none (CPU)")
    there = "it has none" if not cards else f"it has {', '.join(str(card.index) for card in cards)}"
    sentence = f"the file uses {_numbered('gpu', missing)} of host {seen.host}, and {there}"
    listed = f"gpus: [{', '.join(str(card.index) for card in cards)}]" if cards else "no gpus"
    hint = f"in the file, give hosts.{seen.host} {listed}, and its nodes no other"
    if seen.checkup.smi is None:
        hint = f"{hint}; or install the NVIDIA driver there"
    return _finding(seen, Topic.CARDS, f"no {_numbered('gpu', missing)}", sentence, hint)


def _numbered(word: str, numbers: Sequence[int]) -> str:
    return f"{word} {', '.join(str(number) for number in numbers)}"


def declared_in(spec: SwarmSpec) -> dict[NodeName, Declared]:
    """Bootstrap peers and block servers."""
    return {**{peer.name: peer for peer in spec.bootstraps}, **spec.nodes}


def nodes_on(spec: SwarmSpec, host: HostName) -> tuple[NodeSpec, ...]:
    """The block servers of a host."""
    return tuple(node for node in spec.nodes.values() if node.host == host)


def running_on(seen: Seen) -> dict[NodeName, int]:
    """The ports of our own nodes that run there."""
    return {node.name: node.launch.port for node in seen.nodes if node.running and node.launch is not None}


def _memory(seen: Seen, spec: SwarmSpec, profile: ModelProfile | None) -> Finding:
    """Is there room for the nodes that do not run yet?"""
    assert seen.checkup is not None
    cards = {card.index: card for card in cards_of(seen)}
    waiting = [node for node in nodes_on(spec, seen.host) if node.name not in running_on(seen)]
    places: dict[int | None, list[NodeSpec]] = {}
    for node in waiting:
        # Without a card of its own a server takes the first one, if there are any.
        if node.gpu is not None or not cards or node.settings.device == "cpu":
            places.setdefault(node.gpu, []).append(node)
    for place, nodes in places.items():
        free = seen.checkup.memory_free if place is None else cards[place].free if place in cards else None
        needs = [_need(node, seen, profile) for node in nodes]
        known = [need for need in needs if need is not None]
        if free is None or len(known) < len(needs) or sum(need.total for need in known) <= free:
            continue
        where = f"host {seen.host}" if place is None else f"gpu {place} of host {seen.host}"
        return _finding(seen, Topic.MEMORY, _gib(free), *_too_little(where, free, nodes, known))
    return _finding(seen, Topic.MEMORY, _free_everywhere(seen))


def _need(node: NodeSpec, seen: Seen, profile: ModelProfile | None) -> Need | None:
    model = seen.checkup.model if seen.checkup is not None else None
    return need_of(node, profile, model.block_bytes if model is not None else {}) if profile is not None else None


def _too_little(where: str, free: int, nodes: Sequence[NodeSpec], needs: Sequence[Need]) -> tuple[str, str]:
    weights, cache = sum(need.weights for need in needs), sum(need.cache for need in needs)
    names = " and ".join(str(node.name) for node in nodes)
    sentence = (
        f"{where} has {_gib(free)} of memory free, and {names} {'need' if len(nodes) > 1 else 'needs'} "
        f"{_gib(weights + cache)} ({_gib(weights)} of weights, {_gib(cache)} of attention cache)"
    )
    return sentence, f"give {names} fewer blocks, quant: nf4, or fewer attn_cache_tokens; see what is there: nvidia-smi"


def _free_everywhere(seen: Seen) -> str:
    assert seen.checkup is not None
    cards = [card.free for card in cards_of(seen) if card.free is not None]
    return ", ".join(_gib(free) for free in cards) if cards else _gib(seen.checkup.memory_free)


def _disk(seen: Seen, spec: SwarmSpec, profile: ModelProfile | None) -> Finding:
    checkup = seen.checkup
    assert checkup is not None
    blocks = {block for node in nodes_on(spec, seen.host) for block in range(node.blocks.start, node.blocks.end)}
    size = stored_bytes(profile, len(blocks)) if profile is not None and checkup.model is None else None
    wanted = size - checkup.cached_bytes if size is not None else 0
    if wanted <= checkup.disk_free:
        return _finding(seen, Topic.DISK, _gib(checkup.disk_free))
    sentence = (
        f"host {seen.host} has {_gib(checkup.disk_free)} free for {checkup.disk_folder}, and {_gib(wanted)} of "
        f"{spec.model.source} are still to be loaded for its {len(blocks)} blocks"
    )
    return _finding(
        seen, Topic.DISK, _gib(checkup.disk_free), sentence, f"free some, or export PETALS_CACHE=DIR on {seen.host}"
    )


def _model(seen: Seen, spec: SwarmSpec, _profile: ModelProfile | None) -> Finding | None:
    model = seen.checkup.model if seen.checkup is not None else None
    nodes = nodes_on(spec, seen.host)
    if model is None or not nodes:
        return None
    folder = Path(spec.model.source)
    hint = f"copy it there: rsync -a {folder}/ {spec.hosts[seen.host].ssh or seen.host}:{folder}/"
    if not model.exists:
        sentence = f"host {seen.host} has no model in {folder}, where the file says that every host has it"
        return _finding(seen, Topic.MODEL, "missing", sentence, hint)
    if model.missing:
        files = f"{model.missing[0]}{f' and {len(model.missing) - 1} more' if model.missing[1:] else ''}"
        sentence = f"the model in {folder} on host {seen.host} lacks {files}"
        return _finding(seen, Topic.MODEL, "incomplete", sentence, hint)
    wanted = {block for node in nodes for block in range(node.blocks.start, node.blocks.end)}
    lacks = sorted(wanted - model.block_bytes.keys()) if model.block_bytes else []
    if lacks:
        server = next(node.name for node in nodes if node.blocks.start <= lacks[0] < node.blocks.end)
        sentence = f"the model in {folder} on host {seen.host} has no block {lacks[0]}, which {server} is to serve"
        return _finding(seen, Topic.MODEL, "incomplete", sentence, hint)
    return _finding(seen, Topic.MODEL, "there")


def _ports(seen: Seen, spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    assert seen.checkup is not None
    own = set(running_on(seen).values())
    wished = {
        node.port: name for name, node in declared_in(spec).items() if node.host == seen.host and node.port is not None
    }
    taken = {port: holder for port, holder in seen.checkup.taken.items() if port in wished and port not in own}
    for port, holder in taken.items():
        if holder.startswith("nobody, but"):
            sentence = f"port {port} of {wished[port]} on host {seen.host}: {holder.removeprefix('nobody, but ')}"
        else:
            sentence = f"port {port} of {wished[port]} on host {seen.host} is taken by {holder}"
        hint = f"give {wished[port]} another port in the file, or see who has it: ss -ltnp 'sport = :{port}'"
        return _finding(seen, Topic.PORTS, f"{port} taken", sentence, hint)
    held = len(own & wished.keys())
    return _finding(seen, Topic.PORTS, f"{held} ours" if held else "free" if wished else "any")


def _daemon(seen: Seen, _spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    assert seen.checkup is not None
    fault = seen.checkup.daemon
    if fault is None:
        return _finding(seen, Topic.DAEMON, "starts")
    hint = f"swarmctl host setup {seen.host}"
    return _finding(
        seen, Topic.DAEMON, "broken", f"host {seen.host} cannot run hivemind's libp2p daemon: {fault}", hint
    )


def _keys(seen: Seen, _spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    assert seen.checkup is not None
    for path, mode in seen.checkup.modes.items():
        if mode != _KEY_MODE:
            sentence = f"the key {path} on host {seen.host} has mode {mode:04o}; others than its owner must not read it"
            return _finding(seen, Topic.KEYS, f"{mode:04o}", sentence, f"on {seen.host}: chmod 0400 {path}", warns=True)
    return _finding(seen, Topic.KEYS, str(len(seen.checkup.modes)))


def _sockets(seen: Seen, _spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    facts = seen.facts
    assert facts is not None
    excess = len(f"{facts.run}{_SOCKET_NAME}".encode()) - _SOCKET_PATH_BYTES
    if excess <= 0:
        return _finding(seen, Topic.SOCKETS, "short")
    sentence = f"the folder for sockets on host {seen.host} is {excess} bytes too long: {facts.run}"
    return _finding(seen, Topic.SOCKETS, "too long", sentence, f"on {seen.host}: export SWARMCTL_RUN=/tmp/swarm")


def _logout(seen: Seen, _spec: SwarmSpec, _profile: ModelProfile | None) -> Finding:
    assert seen.checkup is not None
    assert seen.facts is not None
    if not seen.checkup.killed_at_logout:
        return _finding(seen, Topic.LOGOUT, "lives on")
    user = seen.facts.user
    sentence = f"host {seen.host} ends the processes of {user} at logout (KillUserProcesses=yes), nodes among them"
    return _finding(seen, Topic.LOGOUT, "killed", sentence, f"on {seen.host}: sudo loginctl enable-linger {user}")


def judge_copies(seen: Sequence[Seen], names: Mapping[NodeName, HostName]) -> Iterator[Finding]:
    """Nodes with one identity, wherever they are. `names`: the declared nodes, and their hosts."""
    owners: dict[str, tuple[NodeName, Seen]] = {}
    for host in seen:
        for node in host.nodes:
            if node.peer is None or names.get(node.name, host.host) != host.host:
                continue
            first, there = owners.setdefault(node.peer, (node.name, host))
            if (first, there.host) == (node.name, host.host):
                continue
            sentence = (
                f"{first} on host {there.host} and {node.name} on host {host.host} have one identity "
                f"(peer {node.peer}): a key file was copied, and the swarm takes the two for one"
            )
            yield _finding(
                host, Topic.KEYS, "copied", sentence, f"swarmctl down {node.name} --purge, then: swarmctl up"
            )


def _gib(size: int) -> str:
    gib = size / _GIB
    return f"{gib:.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB"
