"""The main job on a real model: does a generation that loses a server give the tokens of one that does not?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from swarmctl import ports, processes
from swarmctl.blocks import NodeName
from swarmctl.client.generate import Client, Sampling
from swarmctl.client.story import Failover
from swarmctl.events import EventSink
from swarmctl.operations.drill import Kill
from swarmctl.operations.generate import GenerateRequest, GenerateResult, generate
from swarmctl.operations.site import Site
from swarmctl.operations.status import list_processes, read_snapshot

# A third of the way: there is a history to rebuild, and a text to go on with.
_KILL_AFTER = 1 / 3


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a running swarm occupies, noted before it is taken down: (node, pid, kernel start time), (node, port)."""

    processes: tuple[tuple[NodeName, int, int], ...]
    ports: tuple[tuple[NodeName, int], ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same prompt three times. `tokens_lost`: tokens that the undisturbed run has and the disturbed one lacks.

    `pause_ms`: the longest step with a failover, which is what a reader waited between two tokens.
    """

    model: str
    tokens: int
    tokens_lost: int
    identical_to_undisturbed: bool
    identical_to_local: bool
    killed: tuple[str, ...]
    pause_ms: float | None
    step_ms_median: float | None
    failovers: tuple[Failover, ...]
    text: str

    @property
    def proved(self) -> bool:
        """True if a server was killed, nothing was lost, and all three agree."""
        return bool(
            self.failovers
            and self.tokens_lost == 0
            and self.identical_to_undisturbed
            and self.identical_to_local
            and self.killed
        )


def request(prompt: str, *, tokens: int) -> GenerateRequest:
    """A chat in which the server of the first span is killed in mid-step, after a third of the tokens."""
    return GenerateRequest(
        prompts=(prompt,),
        sampling=Sampling(max_new_tokens=tokens),
        chat=True,
        kills=(Kill(node="first", token=max(1, round(tokens * _KILL_AFTER))),),
    )


def undisturbed(
    site: Site,
    client: Client,
    asked: GenerateRequest,
    *,
    sink: EventSink = lambda _event: None,
    text: Callable[[int, str], None] = lambda _index, _piece: None,
) -> GenerateResult:
    """The same request without the drill."""
    return generate(site, client, replace(asked, kills=()), sink=sink, text=text)


def local(client: Client, asked: GenerateRequest) -> tuple[int, ...]:
    """The same request by transformers alone, on this machine."""
    ids = client.encode(asked.prompts[0], chat=asked.chat)
    return client.generate_locally([ids], asked.sampling)[0]


def compare(site: Site, disturbed: GenerateResult, calm: GenerateResult, alone: Sequence[int]) -> Comparison:
    """What the three runs prove."""
    ids, wanted = disturbed.generations[0].ids, calm.generations[0].ids
    story = disturbed.story
    normal = [ms for ms in (story.step_ms_median, calm.story.step_ms_median) if ms is not None]
    return Comparison(
        model=site.spec.model.source,
        tokens=len(ids),
        tokens_lost=max(0, len(wanted) - len(ids)),
        identical_to_undisturbed=ids == wanted,
        identical_to_local=ids == tuple(alone),
        killed=tuple(dict.fromkeys(hop.label for failover in story.failovers for hop in failover.lost)),
        pause_ms=max((failover.pause_ms for failover in story.failovers), default=None),
        step_ms_median=median(normal) if normal else None,
        failovers=story.failovers,
        text=disturbed.generations[0].text,
    )


def footprint(site: Site) -> Footprint:
    """What the swarm occupies now."""
    rows = list_processes(site)
    table = processes.read_processes()
    snapshot = read_snapshot(site)
    listening = [(peer.name, peer.process.port) for peer in snapshot.bootstraps]
    listening += [(node.name, node.process.port) for node in snapshot.nodes]
    return Footprint(
        processes=tuple(
            (row.node, one.pid, table[one.pid].started) for row in rows for one in row.processes if one.pid in table
        ),
        ports=tuple((name, port) for name, port in listening if port is not None),
    )


def left_running(site: Site, before: Footprint) -> tuple[str, ...]:
    """What of it is still there, one line each; empty is what `down` promises."""
    left = [f"process {pid} of {name}" for name, pid, began in before.processes if processes.is_alive(pid, began)]
    left += [f"port {port} of {name}" for name, port in before.ports if not ports.is_free("127.0.0.1", port)]
    sockets = [site.layout.node(name).sockets for name in site.layout.names()]
    left += [f"sockets in {folder}" for folder in sockets if folder.exists()]
    return tuple(dict.fromkeys(left))
