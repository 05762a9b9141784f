"""A client whose sessions pause, age, and find a server dead or empty: `pausing_client.py FILE PROMPT`.

The file declares server s, with all blocks and short limits, and server t, with all blocks and none. Prints a JSON
object a line and scenario: what happened, what came out, what transformers alone makes of it, who is banned.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from swarmctl import config
from swarmctl.blocks import NodeName, PeerId
from swarmctl.client.conversation import Conversation
from swarmctl.client.generate import Client, Listener, Sampling
from swarmctl.events import Event, PeerFailed, encode
from swarmctl.operations.generate import connected
from swarmctl.operations.kill import kill
from swarmctl.operations.opening import open_site
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.up import up
from swarmctl.upstream.failures import IDLE_S

S, T = NodeName("s"), NodeName("t")
_UP_S = 200.0
_ANSWER_S = 60.0
_FEW = Sampling(max_new_tokens=6)


class Pausing:
    """One connected client and its scenarios; each begins with s as the server in use."""

    def __init__(self, site: Site, client: Client, prompt: str) -> None:
        self.site = site
        self.client = client
        self.ids = client.encode(prompt, chat=False)
        self.limits = site.spec.nodes[S].settings
        self.peers: dict[NodeName, PeerId] = {
            node.name: node.peer for node in read_snapshot(site).nodes if node.peer is not None
        }
        self.events: list[Event] = []

    def run(self, name: str, scenario: Callable[[Conversation], None]) -> None:
        """Play a scenario and say what it came to."""
        self.events = []
        self._prefer_s()
        with self.client.conversation(max_length=250, listener=Listener(sink=self.events.append)) as talk:
            scenario(talk)
            (answer,) = talk.answer
        bans = self.client._opened.router.bans.banned(time.monotonic())
        (expected,) = self.client.generate_locally([self.ids], Sampling(max_new_tokens=len(answer)))
        said = {
            "scenario": name,
            "events": [encode(event) for event in self.events],
            "answer": answer,
            "expected": expected,
            "banned": [str(node) for node, peer in self.peers.items() if peer in bans],
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    def _prefer_s(self) -> None:
        bans = self.client._opened.router.bans
        bans.record_success(self.peers[S])
        bans.record_failure(self.peers[T], time.monotonic(), "lost")

    def _await_answer(self, node: NodeName) -> None:
        """Wait until this node answers pings: libp2p refuses to dial for seconds after a dial that failed."""
        router, peer, began = self.client._opened.router, self.peers[node], time.monotonic()
        while not math.isfinite(router._pings.seconds(router.records()).get(peer, math.inf)):
            if time.monotonic() - began > _ANSWER_S:
                raise TimeoutError(f"{node} answers no ping")
            router.refresh(timeout_s=1.0)

    def idle(self, talk: Conversation) -> None:
        """Two pauses, each longer than the server's step_timeout."""
        talk.say([self.ids], _FEW)
        for _ in range(2):
            # Idleness is what is tried; there is nothing to wait for.
            time.sleep(self.limits.step_timeout_s + 1.5)
            talk.resume(_FEW)

    def aged(self, talk: Conversation, *, pause_s: float) -> None:
        """Calls with short pauses, until the session is older than the server's session_timeout."""
        began = time.monotonic()
        talk.say([self.ids], _FEW)
        while not any(isinstance(event, PeerFailed) for event in self.events):
            if time.monotonic() - began > 3 * self.limits.session_timeout_s:
                raise TimeoutError("the server keeps the session")
            time.sleep(pause_s)
            talk.resume(Sampling(max_new_tokens=1))
        talk.resume(_FEW)

    def empty(self, talk: Conversation) -> None:
        """The server is started anew in the pause, with the same identity."""
        talk.say([self.ids], _FEW)
        kill(self.site, S, sink=lambda _event: None)
        up(self.site, only=[S], sink=lambda _event: None, deadline_s=_UP_S)
        self._await_answer(S)
        talk.resume(_FEW)

    def dead(self, talk: Conversation) -> None:
        """The server is killed in the pause."""
        talk.say([self.ids], _FEW)
        kill(self.site, S, sink=lambda _event: None)
        time.sleep(IDLE_S)
        talk.resume(_FEW)


def main(file: Path, prompt: str) -> None:
    site = open_site(
        config.load(file), Path(os.environ["SWARMCTL_STATE"]), Path(os.environ["SWARMCTL_RUN"]), python=sys.executable
    )
    with connected(site) as client:
        pausing = Pausing(site, client, prompt)
        pausing.run("idle", pausing.idle)
        # A session of 250 tokens at most: steps follow on each other, but not as fast as they could.
        pausing.run("aged in a step", lambda talk: pausing.aged(talk, pause_s=0.06))
        pausing.run("aged in a pause", lambda talk: pausing.aged(talk, pause_s=1.0))
        pausing.run("empty", pausing.empty)
        pausing.run("dead", pausing.dead)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
