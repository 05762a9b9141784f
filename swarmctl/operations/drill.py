"""Faults on purpose, in the middle of a generation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from swarmctl.blocks import NodeName
from swarmctl.errors import Refused, UsageError
from swarmctl.events import Event, EventSink, FaultInjected, Hop, RouteChanged, RouteChosen, StepDone
from swarmctl.operations.kill import kill
from swarmctl.operations.site import Site

# Instead of a node's name: the server of that span in the route, whoever it is.
PLACES = ("first", "middle", "last")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL `node` (or the server at a place of the route) in the step after `token` tokens have come out."""

    node: str
    token: int


def parse_kill(text: str, nodes: Sequence[NodeName]) -> Kill:
    """`left-a@20` or `first@20`.

    Raises:
        UsageError: when the text is not of that form, or names no node.
    """
    node, at, token = text.rpartition("@")
    if not at or not token.isdecimal():
        raise UsageError(f"--kill {text} is not NODE@TOKEN", hints=["for example --kill first@20"])
    if node not in nodes and node not in PLACES:
        raise UsageError(
            f"--kill {text} names no node of the swarm",
            reasons=[f"nodes: {', '.join(nodes)}", f"places in the route: {', '.join(PLACES)}"],
        )
    return Kill(node=node, token=int(token))


class Drill:
    """Watches a generation and kills when it is time, after a request has left and before its answer."""

    def __init__(self, site: Site, kills: Sequence[Kill], sink: EventSink) -> None:
        self._site = site
        self._sink = sink
        self._pending = list(kills)
        self._tokens = 0
        self._route: tuple[Hop, ...] = ()
        self._lock = threading.Lock()

    @property
    def missed(self) -> tuple[Kill, ...]:
        """The kills whose moment never came."""
        return tuple(self._pending)

    def note(self, event: Event) -> None:
        """Follow the generation."""
        match event:
            case RouteChosen() | RouteChanged():
                self._route = event.route
            case StepDone():
                # Each step makes one token a sequence; beam search emits none before its end.
                self._tokens = event.step

    def on_request(self, hop: Hop, _position: int, _replay: bool) -> None:
        """Called when a request has left for `hop`."""
        with self._lock:
            for due in [due for due in self._pending if due.token <= self._tokens and self._is_meant(due, hop)]:
                self._pending.remove(due)
                if hop.node is not None:
                    self._strike(hop.node)

    def _is_meant(self, due: Kill, hop: Hop) -> bool:
        if hop.node is None:
            return False  # a stranger, which is not ours to kill
        if due.node in PLACES and due.node not in self._site.spec.nodes:
            places = {"first": 0, "middle": len(self._route) // 2, "last": -1}
            return bool(self._route) and self._route[places[due.node]] == hop
        return hop.node == due.node

    def _strike(self, node: NodeName) -> None:
        try:
            kill(self._site, node, sink=lambda _event: None, wait=False)
        except Refused:
            return  # it is down already; the session is about to notice
        self._sink(FaultInjected(fault="kill", node=node, token=self._tokens, in_flight=True))
