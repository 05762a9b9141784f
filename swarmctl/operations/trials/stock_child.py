"""The child of a stock trial: plays scripts with petals' own client, and asks its parent to strike. See `stock`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmctl.blocks import NodeName, PeerId, parse_range
from swarmctl.events import Event, Hop, RouteChanged, RouteChosen, StepDone, TokensEmitted, encode
from swarmctl.matrix import parse_cell
from swarmctl.operations.trials.casting import Cast, Part
from swarmctl.operations.trials.moments import Blow, Moments

if TYPE_CHECKING:
    from swarmctl.upstream.model import ClientModel
    from swarmctl.upstream.stock import Eyes, StockSession

_GATHER_S = 60.0
# petals puts all that it knows of a server into its errors.
_MOST_LETTERS = 160


class _Line:
    """The way to the parent; one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        # What a library prints is for people, and must not get between the lines.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(self, **said: Any) -> None:
        with self._lock:
            self._write(said)

    def ask(self, **said: Any) -> None:
        """Tell, and wait until it has been done."""
        with self._lock:
            self._write(said)
            if not sys.stdin.readline():
                os._exit(1)  # the parent is gone

    def _write(self, said: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(said) + "\n")
        self._out.flush()


class _Show:
    """What the sessions of one trial have in common."""

    def __init__(self, opened: ClientModel, order: Mapping[str, Any], line: _Line) -> None:
        self.opened = opened
        self.line = line
        self.names = {PeerId(peer): NodeName(name) for peer, name in order["names"].items()}
        cast = order["cast"]
        scripts = order["scripts"]
        self.moments = Moments(
            cell=parse_cell(order["cell"]),
            cast=Cast(
                route=tuple(Part(node=NodeName(node), blocks=parse_range(blocks)) for node, blocks in cast["route"]),
                victims=tuple(cast["victims"]),
                cover=tuple(cast["cover"]),
                reserve=tuple(cast["reserve"]),
            ),
            steps=order["steps"],
            calls=len(scripts[-1]["turns"]),
        )
        self._crowd = len(scripts) if order["at_once"] else 1
        self._gathering = threading.Barrier(self._crowd)
        self._routed = 0
        self._lock = threading.Lock()

    def let_in(self) -> None:
        """A session that counts has its route; when all have, the others may be used."""
        from swarmctl.upstream.stock import admit

        with self._lock:
            self._routed += 1
            if self._routed == self._crowd:
                admit(self.opened, self.names)

    def gather(self, step: int) -> None:
        """In a crowd, wait for the others just before the moment."""
        if step == max(1, self.moments.due):
            # One that has failed is not waited for again.
            with suppress(threading.BrokenBarrierError):
                self._gathering.wait(_GATHER_S)


class _Player:
    """One session."""

    def __init__(self, show: _Show, number: int, script: Mapping[str, Any], *, counts: bool, followed: bool) -> None:
        self._show = show
        self._number = number
        self._script = script
        self._counts = counts
        self._moments = show.moments if followed else None
        self._steps = 0
        self._emitted = 0
        self._step_began = time.monotonic()

    def play(self) -> bool:
        """Play it; True if it came to its end."""
        from swarmctl.upstream.stock import StockSession

        script, show = self._script, self._show
        try:
            with StockSession(show.opened, script["max_length"], show.names, self._eyes()) as session:
                show.line.tell(take=self._number, ids=self._say_all(session))
        except Exception as error:  # noqa: BLE001 - whatever petals raises is what this program is run for
            show.line.tell(take=self._number, error=_short(error))
            return False
        return True

    def _say_all(self, session: StockSession) -> list[tuple[int, ...]]:
        turns = self._script["turns"]
        rows: list[tuple[int, ...]] = [()] * len(turns[0]["ids"])
        for call, turn in enumerate(turns):
            if call:
                self._between(call)
            self._step_began = time.monotonic()
            new = session.say(turn["ids"], turn["arguments"], seed=turn["seed"])
            rows = [(*row, *ids) for row, ids in zip(rows, new, strict=True)]
        return rows

    def _between(self, call: int) -> None:
        if self._moments is not None:
            self._strike(self._moments.paused(call))
            self._show.line.ask(take=self._number, pause=call)

    # --- what is seen ---------------------------------------------------------------------------------------

    def _eyes(self) -> Eyes:
        from swarmctl.upstream.stock import Eyes

        return Eyes(left=self._left, routed=self._routed, stepped=self._stepped, chosen=self._chosen)

    def _left(self, hop: Hop, position: int, replay: bool) -> None:
        if self._moments is not None:
            self._strike(self._moments.left(hop, position, replay))

    def _routed(self, was: Hop | None, route: tuple[Hop, ...]) -> None:
        if was is None:
            self._note(RouteChosen(route=route, took_ms=0.0))
            if self._counts:
                self._show.let_in()
        else:
            now = tuple(hop for hop in route if hop.blocks.intersection(was.blocks) is not None)
            self._note(RouteChanged(was=was, now=now, route=route, took_ms=0.0))

    def _stepped(self, position: int, tokens: int, batch: int) -> None:
        self._steps += 1
        now = time.monotonic()
        took_ms, self._step_began = (now - self._step_began) * 1e3, now
        self._note(StepDone(step=self._steps, position=position, tokens=tokens, batch=batch, took_ms=took_ms))
        if self._counts:
            self._show.gather(self._steps)

    def _chosen(self, ids: tuple[int, ...]) -> None:
        self._note(TokensEmitted(index=self._emitted, ids=ids))
        self._emitted += 1

    def _note(self, event: Event) -> None:
        self._show.line.tell(take=self._number, event=encode(event))
        if self._moments is not None:
            self._strike(self._moments.note(event))

    def _strike(self, blow: Blow | None) -> None:
        if blow is not None:
            self._show.line.ask(take=self._number, strike={**asdict(blow), "fault": blow.fault.value})


def _short(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split()).partition(": span=")[0]
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + " …"


def _play_all(players: Sequence[_Player], *, at_once: bool) -> None:
    if not at_once:
        for player in players:
            if not player.play():
                return
        return
    threads = [threading.Thread(target=player.play) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(line: _Line) -> None:
    """Read the order, play, and say that it is over."""
    order = json.loads(sys.stdin.readline())
    from swarmctl.upstream.model import SwarmAddress, open_model
    from swarmctl.upstream.tuning import deep_prompts

    address = {**order["address"], "sockets": Path(order["address"]["sockets"])}
    scripts, at_once = order["scripts"], order["at_once"]
    last = len(scripts) - 1
    with open_model(SwarmAddress(**address), stock=True) as opened, ExitStack() as stack:
        if scripts[0]["deep"]:
            stack.enter_context(deep_prompts(opened, positions=scripts[0]["deep"]))
        show = _Show(opened, order, line)
        players = [
            _Player(show, number, script, counts=at_once or number == last, followed=number == last)
            for number, script in enumerate(scripts)
        ]
        line.tell(begin=True)
        _play_all(players, at_once=at_once)
        line.tell(end=True)


if __name__ == "__main__":
    main(_Line())
