"""What a server checks of itself: petals' real task pools and runtime around a pretended block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.moe.server.runtime import Runtime
from petals.server.task_pool import PrioritizedTaskPool
from support.eventually import eventually

from swarmctl.store import Health, NodeFiles, read_health
from swarmctl.upstream import patches
from swarmctl.upstream.health import Computing, Loading, Trouble, Watch, begin_forward
from swarmctl.upstream.heartbeat import TaskMeter
from swarmctl.upstream.patching import applied

HIDDEN = 8


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def a_container(block: Callable[..., tuple[torch.Tensor, ...]]) -> Iterator[Any]:
    """What `health` sees of a ModuleContainer, with one block that runs on a real runtime."""
    pool = PrioritizedTaskPool(block, max_batch_size=16, device=torch.device("cpu"), name="block_forward")
    backend = SimpleNamespace(
        forward_pool=pool,
        config=SimpleNamespace(hidden_size=HIDDEN),
        dtype=torch.float32,
        get_pools=lambda: (pool,),
    )
    runtime = Runtime({"m.0": backend}, device=None, prefetch_batches=1, sender_threads=1)
    thread = threading.Thread(target=runtime.run, daemon=True)
    thread.start()
    assert runtime.ready.wait(10)
    try:
        yield SimpleNamespace(module_backends={"m.0": backend}, runtime=runtime, ready=runtime.ready)
    finally:
        runtime.shutdown()
        thread.join(10)


def doubled(hidden: torch.Tensor, adapter: str) -> tuple[torch.Tensor]:
    assert adapter == ""
    return (hidden * 2,)


def test_a_token_goes_through_petals_own_pool_and_runtime_and_is_counted_as_a_task() -> None:
    meter = TaskMeter()
    with applied(patches.tasks_are_timed(meter.task)), a_container(doubled) as container:
        answers = [begin_forward(container).result(10) for _ in range(3)]

    assert [answer[0].shape for answer in answers] == [(1, 1, HIDDEN)] * 3
    assert torch.allclose(answers[0][0], torch.full((1, 1, HIDDEN), 0.02))
    assert meter.done == 3


def test_an_error_of_a_block_comes_back_to_who_asked() -> None:
    def broken(hidden: torch.Tensor, _adapter: str) -> tuple[torch.Tensor]:
        raise RuntimeError("the card has fallen off the bus")

    with a_container(broken) as container, pytest.raises(RuntimeError, match="fallen off the bus"):
        begin_forward(container).result(10)


def test_a_request_of_a_user_goes_before_the_servers_own_forward() -> None:
    order: list[float] = []
    begun, go = threading.Event(), threading.Event()

    def slow(hidden: torch.Tensor, _adapter: str) -> tuple[torch.Tensor]:
        order.append(float(hidden[0, 0, 0]))
        begun.set()
        go.wait(10)
        return (hidden,)

    with a_container(slow) as container:
        pool = container.module_backends["m.0"].forward_pool
        # Some are taken from the pool before their turn.
        own = [begin_forward(container) for _ in range(8)]
        assert begun.wait(10)
        # As a handler of petals' submits it; its future would only lead to another process.
        pool.submit_task(torch.full((1, 1, HIDDEN), 7.0), "", priority=1.0)
        eventually(lambda: _has_users_request(pool), within_s=10)
        go.set()
        for each in own:
            each.result(10)

    assert order.index(7.0) < len(order) - 1


def _has_users_request(pool: Any) -> None:
    queued = [task.priority for task in tuple(pool._ordered_tasks.queue)]
    assert 1.0 in queued
    # Of the server's own there must be some that it can overtake.
    assert len(queued) > 1


@dataclass
class Bench:
    """`Computing` on a clock of ours; forwards are answered by the test."""

    clock: Clock = field(default_factory=Clock)
    begun: list[Future[Any]] = field(default_factory=list)
    container: Any = field(default_factory=lambda: SimpleNamespace(runtime=object()))

    def __post_init__(self) -> None:
        self.meter = TaskMeter(self.clock)
        self.computing = Computing(self.meter, begin=self._begin, clock=self.clock)

    def _begin(self, _container: Any) -> Future[Any]:
        self.begun.append(Future())
        return self.begun[-1]

    def look(self, after_s: float = 0.0) -> Trouble | None:
        self.clock.now += after_s
        return self.computing.look(self.container)

    def answer(self, output: torch.Tensor | Exception) -> None:
        if isinstance(output, Exception):
            self.begun[-1].set_exception(output)
        else:
            self.begun[-1].set_result([output])


def test_a_forward_is_made_about_every_ten_seconds_and_its_time_is_told() -> None:
    bench = Bench()
    for _ in range(3):
        assert bench.look() is None
        bench.clock.now += 0.25
        bench.answer(torch.zeros(1, 1, HIDDEN))
        assert bench.look(0.5) is None
        assert bench.look(9.0) is None
        bench.clock.now += 1.0

    assert len(bench.begun) == 3
    assert bench.computing.took_ms == pytest.approx(250)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (RuntimeError("CUDA error: an illegal\nmemory access"), "CUDA error: an illegal memory access"),
        (torch.full((1, 1, HIDDEN), float("nan")), "values that are not finite"),
        (torch.zeros(1, 2, HIDDEN), "the shape [1, 2, 8]"),
    ],
    ids=["error", "nan", "shape"],
)
def test_a_block_that_computes_nonsense_is_reported_the_second_time_and_forgiven_when_it_computes_again(
    output: torch.Tensor | Exception, reason: str
) -> None:
    bench = Bench()
    bench.look()
    bench.answer(output)
    assert bench.look(1.0) is None
    assert len(bench.begun) == 1
    bench.look(2.5)
    bench.answer(output)

    trouble = bench.look(1.0)

    assert trouble is not None
    assert trouble.fatal
    assert reason in trouble.reason
    bench.look(2.5)
    bench.answer(torch.zeros(1, 1, HIDDEN))
    assert bench.look(1.0) is None


def test_a_forward_that_waits_behind_the_tasks_of_others_is_not_lost_however_long() -> None:
    bench = Bench()
    bench.look()
    for _ in range(20):
        with bench.meter.task(bench.container.runtime):
            assert bench.look(25.0) is None

    assert len(bench.begun) == 1


def test_a_long_task_is_work_until_nobody_can_wait_for_it_any_more() -> None:
    bench = Bench()
    bench.look()
    with bench.meter.task(bench.container.runtime):
        assert bench.look(590.0) is None

        trouble = bench.look(20.0)

    assert trouble is not None
    assert trouble.reason == "it has been computing one task for 610 s"


def test_a_forward_that_nobody_computes_is_lost() -> None:
    bench = Bench()
    bench.look()
    assert bench.look(29.0) is None

    trouble = bench.look(2.0)

    assert trouble is not None
    assert trouble.reason == "a forward of one token waits, and nothing was computed for 31 s"


def test_a_forward_is_not_waited_for_whose_container_petals_has_replaced() -> None:
    bench = Bench()
    bench.look()
    bench.container = SimpleNamespace(runtime=object())

    assert bench.look(60.0) is None
    assert len(bench.begun) == 2


def a_loaded(ready: bool) -> Any:
    event = threading.Event()
    if ready:
        event.set()
    return SimpleNamespace(ready=event)


def test_the_first_loading_takes_as_long_as_it_takes_and_a_later_one_three_times_as_long() -> None:
    clock = Clock()
    loading = Loading(clock)
    clock.now += 400.0
    first = loading.look(None)
    assert first is not None
    assert not first.fatal
    assert loading.look(a_loaded(True)) is None
    loading.look(None)
    clock.now += 1190.0
    early = loading.look(a_loaded(False))
    clock.now += 20.0

    late = loading.look(a_loaded(False))

    assert early is not None
    assert not early.fatal
    assert late is not None
    assert late.fatal
    assert loading.look(a_loaded(True)) is None


class Quiet:
    announced = True

    def __init__(self, trouble: Trouble | None = None) -> None:
        self.trouble = trouble

    def look(self, _container: Any) -> Trouble | None:
        if self.trouble is not None and self.trouble.reason == "raise":
            raise KeyError("a name that upstream has changed")
        return self.trouble


def health_of(folder: Path) -> Health:
    def read() -> Health:
        health = read_health(NodeFiles(folder=folder, sockets=folder))
        assert health is not None
        return health

    return eventually(read, within_s=10)


def test_a_file_says_about_once_a_second_how_the_server_is(tmp_path: Path) -> None:
    meter = TaskMeter()
    with a_container(doubled) as container:
        watch = Watch(SimpleNamespace(module_container=container), meter, Quiet(), tmp_path / "health.json")
        with watch.running():
            first = health_of(tmp_path)

            def computed() -> Health:
                health = health_of(tmp_path)
                assert health.forward_ms is not None
                return health

            later = eventually(computed, within_s=10)

    assert (first.ok, first.reason, first.announced) == (True, None, True)
    assert abs(later.written_at - time.time()) < 5
    assert later.written_at > first.written_at


@pytest.mark.parametrize(
    ("trouble", "ok", "reason"),
    [
        (Trouble(reason="it has no record", fatal=False), True, "it has no record"),
        (Trouble(reason="the announcer has ended"), False, "the announcer has ended"),
        (Trouble(reason="raise"), True, "it cannot be checked: KeyError('a name that upstream has changed')"),
    ],
    ids=["told", "fatal", "a-check-that-is-broken"],
)
def test_only_what_a_new_process_would_mend_makes_a_server_unwell(
    tmp_path: Path, trouble: Trouble, ok: bool, reason: str
) -> None:
    with a_container(doubled) as container:
        server = SimpleNamespace(module_container=container)
        with Watch(server, TaskMeter(), Quiet(trouble), tmp_path / "health.json").running():
            health = health_of(tmp_path)

    assert (health.ok, health.reason) == (ok, reason)


def test_where_nothing_can_be_written_the_file_that_is_there_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "health.json"
    file.write_text("{}")
    before = file.stat().st_mtime_ns

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swarmctl.upstream.health.write_json", full)
    with Watch(SimpleNamespace(module_container=None), TaskMeter(), Quiet(), file).running():
        eventually(lambda: _assert_newer(file, before), within_s=10)

    assert file.read_text() == "{}"


def _assert_newer(file: Path, before: int) -> None:
    assert file.stat().st_mtime_ns > before
