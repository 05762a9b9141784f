"""The heartbeat of the process that computes: what it says, and what an observer makes of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.moe.server.runtime import Runtime
from hivemind.p2p import P2P
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration
from petals.data_structures import ServerInfo, ServerState
from petals.server.server import ModuleContainer, RuntimeWithDeduplicatedPools, Server
from support.fakeswarm import peer_id

from swarmctl.store import Launch, NodeFiles, read_observation
from swarmctl.upstream import bootstrap, patches
from swarmctl.upstream.heartbeat import HANDLER, Beat, TaskMeter, beat_of, decode_beat, encode_beat
from swarmctl.upstream.liveness import LifeSign, Liveness
from swarmctl.upstream.patching import applied
from swarmctl.upstream.sighting import STUCK_S, Computed, Finding, Sighting

BEAT = Beat(computes=True, busy_s=1.5, done=7, version="0.1.0", graphs="by-shape")


# --- what a beat says -------------------------------------------------------------------------------------------


def test_a_beat_is_read_as_it_was_sent_and_what_a_newer_version_adds_is_left_out() -> None:
    assert decode_beat(encode_beat(BEAT)) == BEAT
    assert decode_beat(MSGPackSerializer.dumps({**asdict(BEAT), "mood": "good"})) == BEAT


@pytest.mark.parametrize(
    "change",
    [
        {"computes": 1},
        {"busy_s": -1.0},
        {"busy_s": float("nan")},
        {"busy_s": float("inf")},
        {"busy_s": "0"},
        {"done": -1},
        {"done": 1.5},
        {"done": True},
        {"version": None},
        {"graphs": "x" * 65},
    ],
    ids=lambda change: " ".join(f"{name}={str(value)[:4]}" for name, value in change.items()),
)
def test_a_value_that_no_heartbeat_has_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no heartbeat"):
        decode_beat(MSGPackSerializer.dumps({**asdict(BEAT), **change}))


@pytest.mark.parametrize("data", [b"", b"\xc1", MSGPackSerializer.dumps([1]), MSGPackSerializer.dumps({"done": 1})])
def test_an_answer_that_is_no_beat_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no heartbeat"):
        decode_beat(data)


class Clock:
    """Time that passes when told."""

    at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


class Container:
    """What a petals container shows of its runtime's thread."""

    def __init__(self, *, alive: bool = True) -> None:
        self.alive, self.runtime = alive, object()

    def is_alive(self) -> bool:
        return self.alive


def beat(container: Container | None, meter: TaskMeter) -> Beat:
    return beat_of(container, meter, version="0.1.0", graphs="eager")


def test_a_running_task_is_timed_and_counted_when_it_has_ended() -> None:
    clock, container = Clock(), Container()
    meter = TaskMeter(clock)

    with meter.task(container.runtime):
        clock.at_s += 4.0
        during = beat(container, meter)
    after = beat(container, meter)

    assert (during.computes, during.busy_s, during.done) == (True, 4.0, 0)
    assert (after.busy_s, after.done, after.version, after.graphs) == (0.0, 1, "0.1.0", "eager")


def test_a_task_that_fails_has_ended_too() -> None:
    meter, runtime = TaskMeter(), object()

    with suppress(ZeroDivisionError), meter.task(runtime):
        raise ZeroDivisionError

    assert (meter.busy_s(runtime), meter.done) == (0.0, 1)


def test_a_task_that_hangs_in_a_former_runtime_is_not_the_new_ones() -> None:
    clock, old, new = Clock(), Container(), Container()
    meter = TaskMeter(clock)

    with meter.task(old.runtime):
        clock.at_s += 100.0
        assert beat(new, meter).busy_s == 0.0
        assert beat(old, meter).busy_s == 100.0


@pytest.mark.parametrize("container", [None, Container(alive=False)], ids=["being loaded", "its thread has ended"])
def test_without_a_living_runtime_nothing_computes(container: Container | None) -> None:
    said = beat(container, TaskMeter())

    assert (said.computes, said.busy_s) == (False, 0.0)


def test_the_runtime_of_a_server_computes_its_tasks_under_the_meter_and_as_before() -> None:
    meter = TaskMeter()
    runtime = object.__new__(RuntimeWithDeduplicatedPools)
    pool = SimpleNamespace(process_func=lambda batch: (2 * batch, meter.busy_s(runtime) > 0))
    batch = torch.ones(3)

    with applied(patches.tasks_are_timed(meter.task)):
        (outputs, timed), size = runtime.process_batch(pool, 0, batch)
    _, timed_after = runtime.process_batch(pool, 0, batch)[0]

    assert (outputs.tolist(), size) == ([2.0, 2.0, 2.0], 3)
    assert (timed, timed_after, meter.done) == (True, False, 1)


def test_the_thread_of_a_container_runs_its_runtime() -> None:
    ran: list[str] = []
    container = object.__new__(ModuleContainer)
    container.conn_handlers = []
    container.runtime = SimpleNamespace(run=lambda: ran.append("runtime"))

    ModuleContainer.run(container)

    assert ran == ["runtime"]
    assert RuntimeWithDeduplicatedPools.process_batch is Runtime.process_batch


def test_a_server_shows_what_its_heartbeat_is_made_of() -> None:
    assert issubclass(ModuleContainer, threading.Thread)
    assert list(inspect.signature(P2P.replicate).parameters) == ["daemon_listen_maddr"]
    assert list(inspect.signature(P2P.add_protobuf_handler).parameters)[:4] == [
        "self",
        "name",
        "handler",
        "input_protobuf_type",
    ]
    assert isinstance(P2P.daemon_listen_maddr, property)
    for kind, names in ((Server, {"dht", "module_container"}), (ModuleContainer, {"runtime"})):
        source = inspect.getsource(kind.__init__)
        assert all(f"self.{name}" in source for name in names)


# --- what looks and forwards amount to --------------------------------------------------------------------------

ALIVE = Liveness(sign=LifeSign.ALIVE, took_s=0.001, beat=replace(BEAT, busy_s=0.0))
STOCK = Liveness(sign=LifeSign.UNKNOWN, took_s=0.001)
SILENT = Liveness(sign=LifeSign.SILENT, took_s=1.5, reason="no answer within 1.5 s")
HUNG = Liveness(sign=LifeSign.HUNG, took_s=0.001, beat=replace(BEAT, computes=False), reason="its runtime has ended")
A_TOKEN = Computed(at=10.0, took_ms=12.0)
LATE = Computed(at=15.0, reason="no answer within 5 s", late=True)


def busy(for_s: float) -> Liveness:
    return replace(ALIVE, beat=replace(BEAT, busy_s=for_s))


def seen(*what: Liveness | Computed) -> Sighting:
    """Looks are a second apart, the first at 10 s."""
    sighting, at = Sighting(), 10.0
    for one in what:
        if isinstance(one, Liveness):
            sighting, at = sighting.after_look(one, at), at + 1.0
        else:
            sighting = sighting.after_forward(one)
    return sighting


def test_a_server_that_has_computed_a_token_is_well() -> None:
    for life in (ALIVE, STOCK):
        assert seen(life, A_TOKEN).finding == Finding(ok=True, at=10.0, took_ms=12.0)


def test_a_server_that_was_looked_at_and_has_not_computed_yet_is_unknown() -> None:
    assert seen().finding is None
    assert seen(ALIVE).finding is None


@pytest.mark.parametrize("life", [SILENT, HUNG], ids=["silent", "hung"])
def test_one_look_is_enough_to_see_that_nothing_computes(life: Liveness) -> None:
    assert seen(ALIVE, A_TOKEN, life).finding == Finding(ok=False, at=11.0, reason=life.reason)


def test_a_server_that_goes_on_is_well_again_with_its_last_token() -> None:
    assert seen(ALIVE, A_TOKEN, SILENT, ALIVE).finding == Finding(ok=True, at=10.0, took_ms=12.0)


def test_a_forward_that_waits_behind_a_long_task_is_held_against_nobody() -> None:
    for work in ([*[busy(n) for n in range(6)], LATE], [*[busy(n) for n in range(5)], ALIVE, LATE]):
        assert seen(*work).finding == Finding(ok=True, at=15.0)


def test_an_idle_server_that_leaves_a_forward_unanswered_is_not_well() -> None:
    found = seen(busy(1.0), *[ALIVE] * 5, LATE).finding

    assert found == Finding(ok=False, at=15.0, reason="no answer within 5 s")


def test_a_stock_server_that_leaves_a_forward_unanswered_is_not_well() -> None:
    assert seen(STOCK, LATE).finding == Finding(ok=False, at=15.0, reason="no answer within 5 s")


def test_an_error_is_no_matter_of_patience() -> None:
    broken = Computed(at=15.0, reason="CUDA error")

    assert seen(*[busy(1.0)] * 5, broken).finding == Finding(ok=False, at=15.0, reason="CUDA error")


def test_a_task_that_never_ends_is_a_runtime_that_hangs() -> None:
    found = seen(ALIVE, A_TOKEN, busy(STUCK_S + 1)).finding

    assert found is not None
    assert (found.ok, found.reason) == (False, "it has been computing one task for 61 s")
    assert seen(ALIVE, A_TOKEN, busy(STUCK_S - 1)).finding == Finding(ok=True, at=10.0, took_ms=12.0)


def test_who_is_ours_is_remembered_while_it_is_silent() -> None:
    facts = [(one.ours, one.graphs, one.busy_s) for one in (seen(), seen(busy(2.0)), seen(ALIVE, SILENT), seen(STOCK))]

    assert facts == [(None, None, None), (True, "by-shape", 2.0), (True, "by-shape", None), (False, None, None)]


def test_a_stock_server_in_the_place_of_one_of_ours_is_no_longer_ours() -> None:
    assert (seen(ALIVE, STOCK).ours, seen(ALIVE, STOCK).graphs) == (False, None)


# --- the observer -----------------------------------------------------------------------------------------------


class Node:
    """A DHT node on which one server announces itself, and that server: `life` is None while it answers nothing."""

    def __init__(self) -> None:
        self.p2p = self
        self.life: Beat | None = replace(BEAT, busy_s=0.0)
        self.forwards = 0
        self.state = ServerState.ONLINE

    async def get_many(self, keys: Sequence[str], **_options: Any) -> dict[str, Any]:
        value = ServerInfo(state=self.state, throughput=1.0, start_block=0, end_block=len(keys)).to_tuple()
        said = ValueWithExpiration({peer_id("a"): ValueWithExpiration(value, 1e12)}, 1e12)
        return dict.fromkeys(keys, said)

    async def call_protobuf_handler(self, _peer: object, name: str, request: Any, answer: type) -> Any:
        if self.life is None:
            await asyncio.Event().wait()
        if name == HANDLER:
            return runtime_pb2.ExpertResponse(metadata=encode_beat(self.life))  # type: ignore[arg-type]
        self.forwards += 1
        return answer(tensors=request.tensors[:1])


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(
        kind="bootstrap",
        swarm="lab",
        node="boot",
        peer=peer_id("boot"),
        port=1,
        listen_ip="127.0.0.1",
        announce_ip="127.0.0.1",
        initial_peers=(),
        identity="",
        sockets="",
        progress="",
        observed=str(tmp_path / "observed.json"),
        model_source="tiny",
        dht_prefix="tiny",
        num_blocks=2,
        hidden_size=4,
    )


async def settle(observer: bootstrap.Observer) -> None:
    """A round, until all that it began has come to something."""
    await observer.watch()
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*under_way)


def facts_in(launch: Launch) -> tuple[bool | None, str | None, bool | None, str | None]:
    path = Path(launch.observed)
    observation = read_observation(NodeFiles(folder=path.parent, sockets=path.parent))
    assert observation is not None
    (server,) = observation.servers
    return server.probe_ok, server.probe_reason, server.ours, server.graphs


def test_the_observer_writes_at_once_when_a_server_falls_silent_and_when_it_is_back(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_LOOK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(bootstrap, "_FORWARD_TIMEOUT_S", 0.05)
    node = Node()
    observer = bootstrap.Observer(launch, node)  # type: ignore[arg-type]
    told = []

    async def rounds() -> None:
        await observer.read()
        told.append(facts_in(launch))
        for life in (BEAT, None, BEAT):
            node.life = life
            await settle(observer)
            told.append(facts_in(launch))

    asyncio.run(rounds())

    assert told == [
        (None, None, None, None),
        (True, None, True, "by-shape"),
        (False, "no answer within 0.05 s", True, "by-shape"),
        (True, None, True, "by-shape"),
    ]


def test_every_round_looks_and_tokens_are_asked_for_only_now_and_then(launch: Launch) -> None:
    node = Node()
    observer = bootstrap.Observer(launch, node)  # type: ignore[arg-type]

    async def rounds() -> None:
        await observer.read()
        for _ in range(5):
            await settle(observer)

    asyncio.run(rounds())

    assert node.forwards == 1


def test_a_server_that_goes_offline_is_looked_at_no_more_and_what_was_seen_of_it_is_forgotten(launch: Launch) -> None:
    node = Node()
    observer = bootstrap.Observer(launch, node)  # type: ignore[arg-type]

    async def rounds() -> None:
        await observer.read()
        await settle(observer)
        node.state = ServerState.OFFLINE
        await observer.read()
        node.life = None
        await settle(observer)

    asyncio.run(rounds())

    assert facts_in(launch) == (None, None, None, None)
    assert json.loads(Path(launch.observed).read_text())["servers"][0]["state"] == "OFFLINE"
