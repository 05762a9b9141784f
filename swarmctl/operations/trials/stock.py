"""The same trial with petals' own client, in a process of its own: the negative control.

It hangs now and then, so it runs in a child, which is killed when its time is up. The child watches for the moments;
the stage is the parent's, and so are the blows: the child asks, and waits for the answer. JSON lines:

    parent → child   the order, then `{}` for each question
    child → parent   {"take": 0, "event": "…"}   {"take": 0, "strike": {…}}   {"take": 0, "pause": 1}
                     {"take": 0, "ids": […]}   {"take": 0, "error": "…"}   {"begin": true}   {"end": true}

`missed` says where its client offers no place for a moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from swarmctl.client.connect import address_of
from swarmctl.events import StepDone, decode
from swarmctl.matrix import Cell, Fault, Traffic
from swarmctl.operations.trials.casting import Cast, NoCast
from swarmctl.operations.trials.client import Calm, TrialClient
from swarmctl.operations.trials.moments import Blow
from swarmctl.operations.trials.ours import not_played, prepare, takes_of
from swarmctl.operations.trials.playing import Take
from swarmctl.operations.trials.strikes import Strikes
from swarmctl.operations.trials.traffic import Script
from swarmctl.trial import Run, Subject, Trial

CHILD = "swarmctl.operations.trials.stock_child"
REQUEST_TIMEOUT_S = 4.0
"""petals' default is three minutes; a step of a tiny model takes a twentieth of a second."""
MAX_RETRIES = 3
"""petals' default is to retry for ever."""

# It imports and joins the DHT first, which takes ten seconds on a quiet machine.
_CONNECT_S = 120.0
_CELL_S = 75.0
_CROWD_S = 150.0
_ENDING_S = 5.0
_LAST_LINES = 3


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the child is to do. `address`: fields of `upstream.model.SwarmAddress`; its roster is the route's.

    `names` are those of the peers that the client may use once its route is chosen; `steps`, of the last script.
    """

    cell: str
    address: Mapping[str, Any]
    names: Mapping[str, str]
    cast: Mapping[str, Any]
    scripts: Sequence[Mapping[str, Any]]
    steps: int
    at_once: bool


def try_stock(client: TrialClient, cell: Cell) -> Trial:
    """Play one cell with petals' own client.

    Raises:
        NodeFailed, DeadlineExceeded, CheckFailed: as `try_ours`.
    """
    stage, clock = client.stage, client.stage.site.clock
    began = clock.monotonic()
    if cell.fault is Fault.LATE:
        return not_played(stage, cell, "petals' client has no place where an answer is lost", Subject.STOCK, took_s=0.0)
    cast = prepare(stage, cell)
    if isinstance(cast, NoCast):
        return not_played(stage, cell, cast.reason, Subject.STOCK, took_s=clock.monotonic() - began)
    client.admit(cast)
    calm = client.undisturbed(cell.traffic)
    takes = takes_of(cell, cast, calm)
    with Strikes(client, cell, cast, told=False) as strikes:
        strikes.watch(takes)
        late = _Parent(client, takes, strikes).play(_order(client, cell, cast, calm))
        missed = strikes.missed() or _failed_before(takes)
    return Trial(
        cell=cell,
        subject=Subject.STOCK,
        num_blocks=stage.num_blocks,
        runs=tuple(_run(take, before, late) for take, before in zip(takes, calm, strict=True)),
        took_s=clock.monotonic() - began,
        missed=missed,
    )


def _failed_before(takes: Sequence[Take]) -> str | None:
    """Nothing is known of a fault if the client had failed already, as with a prompt that no server takes at once."""
    led = takes[-1].moments
    errors = [take.error for take in takes if take.error is not None]
    if led is None or led.blows or not errors:
        return None
    return f"petals' client had failed before the fault: {errors[0]}"


def _order(client: TrialClient, cell: Cell, cast: Cast, calm: Sequence[Calm]) -> Order:
    route = {part.node for part in cast.route}
    names = {str(peer): str(name) for peer, name in client.connection.names.items() if name in cast.needed}
    address = asdict(address_of(replace(client.connection, step_timeout_s=REQUEST_TIMEOUT_S)))
    sockets = client.connection.sockets
    return Order(
        cell=str(cell),
        address={
            **address,
            "sockets": os.fspath(sockets.with_name(f"{sockets.name}s")),
            "roster": {peer: name for peer, name in names.items() if name in route},
        },
        names=names,
        cast={
            "route": [[part.node, str(part.blocks)] for part in cast.route],
            "victims": cast.victims,
            "cover": cast.cover,
            "reserve": cast.reserve,
        },
        scripts=[_plain(one.script) for one in calm],
        steps=len(calm[-1].outputs),
        at_once=cell.traffic is Traffic.CROWD,
    )


def _plain(script: Script) -> dict[str, Any]:
    turns = [
        {"ids": turn.ids, "arguments": turn.sampling.arguments(), "seed": turn.sampling.seed} for turn in script.turns
    ]
    return {"turns": turns, "deep": script.deep, "max_length": script.max_length + script.deep}


def _run(take: Take, calm: Calm, late: str | None) -> Run:
    error = None if take.ids is not None else take.error or late or "it was not played, because one before it failed"
    return Run(events=tuple(take.events), expected=calm.ids, local=calm.local, ids=take.ids, error=error)


class _Parent:
    """The parent's side of one trial."""

    def __init__(self, client: TrialClient, takes: Sequence[Take], strikes: Strikes) -> None:
        self._clock = client.stage.site.clock
        self._takes = takes
        self._strikes = strikes

    def play(self, order: Order) -> str | None:
        """Have it played; says so if the child did not come to an end by itself."""
        began_s = self._clock.monotonic()
        for take in self._takes:
            take.clock, take.began_s = self._clock, began_s
        child = subprocess.Popen(
            (sys.executable, "-m", CHILD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PETALS_MAX_RETRIES": str(MAX_RETRIES)},
            start_new_session=True,
        )
        limit, words = _Limit(child), _Drain(child)
        try:
            ended = self._follow(child, order, limit)
        finally:
            limit.cancel()
            _end(child)
        if limit.passed is not None:
            return f"petals' client had not ended after {limit.passed:.0f} s"
        return None if ended else "petals' client ended: " + " | ".join(words.last())

    def _follow(self, child: subprocess.Popen[str], order: Order, limit: _Limit) -> bool:
        assert child.stdin is not None
        assert child.stdout is not None
        limit.set(_CONNECT_S)
        with suppress(BrokenPipeError):
            print(json.dumps(asdict(order)), file=child.stdin, flush=True)
            for line in child.stdout:
                said = json.loads(line)
                if "end" in said:
                    return True
                if "begin" in said:
                    limit.set(_CROWD_S if order.at_once else _CELL_S)
                    continue
                self._hear(said)
                if "strike" in said or "pause" in said:
                    print("{}", file=child.stdin, flush=True)
        return False

    def _hear(self, said: Mapping[str, Any]) -> None:
        take = self._takes[said["take"]]
        if "event" in said:
            event = take.keep(decode(said["event"]))
            if take.moments is not None and isinstance(event, StepDone):
                take.moments.done += 1
        elif "strike" in said:
            wish = said["strike"]
            blow = Blow(**{**wish, "fault": Fault(wish["fault"]), "nodes": tuple(wish["nodes"])})
            assert take.moments is not None
            take.moments.blows.append(blow)
            self._strikes.strike(blow, take)
        elif "pause" in said:
            self._strikes.pause(said["pause"], take)
        elif "ids" in said:
            take.ids = tuple(tuple(row) for row in said["ids"])
        else:
            take.error = said["error"]


class _Limit:
    """Ends the child when its time is up; `passed` are the seconds that it had then."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.passed: float | None = None
        self._child = child
        self._timer: threading.Timer | None = None

    def set(self, within_s: float) -> None:
        """It has so long from now on."""
        self.cancel()
        self._timer = threading.Timer(within_s, self._pass, (within_s,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """It has as long as it likes."""
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, within_s: float) -> None:
        self.passed = within_s
        _end(self._child)


class _Drain:
    """Reads a child's stderr, so that it is never full, and keeps the last lines."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._lines = [*self._lines[1 - _LAST_LINES :], line.strip()]

    def last(self) -> list[str]:
        """What it said at the end."""
        self._thread.join(_ENDING_S)
        return self._lines


def _end(child: subprocess.Popen[str]) -> None:
    """Kill what is left of it: hivemind's process and threads of petals' that never end."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_ENDING_S)
