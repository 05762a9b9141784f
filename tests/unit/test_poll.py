from __future__ import annotations

import pytest
from support.clock import FakeClock

from swarmctl.errors import DeadlineExceeded
from swarmctl.poll import Pending, wait_until


def test_a_wait_returns_what_it_waited_for() -> None:
    clock = FakeClock()
    answers = iter([Pending(reasons=("one",)), Pending(reasons=("two",)), "here"])

    assert wait_until(lambda: next(answers), what="it", within_s=5, clock=clock, every_s=0.5) == "here"
    assert clock.elapsed_s == 1.0


def test_a_wait_that_fails_tells_what_it_saw_last() -> None:
    clock = FakeClock()

    with pytest.raises(DeadlineExceeded, match="gave up after 2 s waiting for the node") as passed:
        wait_until(
            lambda: Pending(reasons=(f"{clock.elapsed_s:g} s in",)),
            what="the node",
            within_s=2,
            clock=clock,
            every_s=0.5,
            hints=("look there",),
        )

    assert passed.value.reasons == ("2 s in",)
    assert passed.value.hints == ("look there",)


def test_a_wait_without_time_left_looks_once() -> None:
    assert wait_until(lambda: "here", what="it", within_s=0, clock=FakeClock()) == "here"
