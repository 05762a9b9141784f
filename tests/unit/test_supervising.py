"""When a child is started again, and when one that lives is not well: by a clock and files of the test's own."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swarmctl.node.restarts import WINDOW_S, Restarts
from swarmctl.node.runner import is_request
from swarmctl.node.vitals import Complaint, Vitals
from swarmctl.store import Health, NodeFiles, Progress, write_json


def test_restarts_come_ever_later_and_end_at_the_limit() -> None:
    restarts = Restarts(8)

    delays = [restarts.after_crash(served_s=0.0) for _ in range(9)]

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, None]


def test_ten_minutes_of_service_make_a_crash_forgotten() -> None:
    restarts = Restarts(2)
    assert restarts.after_crash(100.0) == 1
    assert restarts.after_crash(400.0) == 2
    assert restarts.lately(100.0 + WINDOW_S - 1) == 2

    assert restarts.after_crash(100.0 + WINDOW_S) == 2
    assert restarts.after_crash(100.0 + WINDOW_S) is None
    assert restarts.lately(100.0 + 3 * WINDOW_S) == 0


def test_a_server_that_crashes_rarely_is_never_given_up() -> None:
    restarts = Restarts(5)

    delays = {restarts.after_crash(crash * 300.0) for crash in range(100)}

    assert delays == {1, 2}


@dataclass
class Bedside:
    """A child's files, with moments that the test chooses; `now` is the runner's clock."""

    folder: Path
    kind: str = "server"
    now: float = 1000.0
    stamp: int = 1
    vitals: Vitals = field(init=False)

    def __post_init__(self) -> None:
        self.files = NodeFiles(folder=self.folder, sockets=self.folder)
        self.vitals = Vitals(self.files, self.kind)

    def online(self) -> None:
        write_json(self.files.progress, Progress(phase="online"))

    def say(self, *, ok: bool = True, reason: str | None = None) -> None:
        """Let the child write, at a time of its own that is another one each time."""
        file = self.files.health if self.kind == "server" else self.files.observed
        write_json(file, Health(written_at=0.0, ok=ok, reason=reason))
        self.touch(file)

    def touch(self, file: Path) -> None:
        self.stamp += 1
        os.utime(file, ns=(self.stamp, self.stamp))

    def look(self, seconds: int = 1) -> Complaint | None:
        """The first complaint within so many looks, a second apart."""
        for _ in range(seconds):
            self.now += 1.0
            if (complaint := self.vitals.look(self.now)) is not None:
                return complaint
        return None


@pytest.fixture
def child(tmp_path: Path) -> Bedside:
    return Bedside(tmp_path)


def test_a_child_that_is_not_online_yet_is_never_complained_of(child: Bedside) -> None:
    write_json(child.files.progress, Progress(phase="loading"))

    assert child.look(1000) is None
    assert child.vitals.online_since is None


def test_a_server_that_writes_nothing_for_half_a_minute_is_hung(child: Bedside) -> None:
    child.online()
    child.say()
    assert child.look(30) is None

    complaint = child.look(2)

    assert complaint == Complaint(reason="gave no sign of life for 30 s: hung, or stopped by a signal", answers=False)


def test_a_server_that_never_writes_is_hung_half_a_minute_after_it_came_online(child: Bedside) -> None:
    child.online()

    assert child.look(30) is None
    assert child.look(2) is not None


def test_a_server_that_writes_that_it_is_well_is_left_alone(child: Bedside) -> None:
    child.online()
    for _ in range(50):
        child.say(reason="it loads its blocks")
        assert child.look(20) is None


def test_a_server_whose_disk_is_full_shows_that_it_lives_by_touching_its_file(child: Bedside) -> None:
    child.online()
    child.say()
    for _ in range(10):
        child.touch(child.files.health)
        assert child.look(20) is None


def test_a_server_may_be_unwell_for_a_while_and_recover(child: Bedside) -> None:
    child.online()
    for _ in range(5):
        for _ in range(18):
            child.say(ok=False, reason="it has no announcer")
            assert child.look() is None
        child.say()
        assert child.look() is None


def test_a_server_that_stays_unwell_may_still_answer_a_request_to_stop(child: Bedside) -> None:
    child.online()
    child.say()
    child.look()
    complaints = []
    for _ in range(25):
        child.say(ok=False, reason="it has no announcer")
        complaints.append(child.look())

    first = next(complaint for complaint in complaints if complaint is not None)
    assert first == Complaint(reason="was not well for 20 s: it has no announcer", answers=True)


def test_a_runner_that_was_kept_from_looking_does_not_blame_the_child_for_it(child: Bedside) -> None:
    child.online()
    child.say()
    child.look(10)
    child.now += 3600.0  # both were stopped, or the machine slept

    assert child.look(15) is None
    child.say()
    assert child.look(29) is None


def test_a_bootstrap_peer_has_two_minutes_for_an_observation(tmp_path: Path) -> None:
    peer = Bedside(tmp_path, kind="bootstrap")
    peer.online()
    peer.say()
    assert peer.look(119) is None

    complaint = peer.look(3)

    assert complaint is not None
    assert not complaint.answers


def test_a_health_file_of_another_version_is_a_sign_of_life(child: Bedside) -> None:
    child.online()
    for _ in range(5):
        child.files.health.write_text('{"spirits": "high"}')
        child.touch(child.files.health)
        assert child.look(20) is None


@pytest.mark.parametrize(
    ("number", "asks"), [(signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGCHLD, False), (1, False), (0, False)]
)
def test_only_a_signal_that_asks_is_a_request_to_stop(number: int, asks: bool) -> None:
    # 1 is what a runner is told after a pause, though nobody has sent it anything.
    got = signal.struct_siginfo((number, 0, 0, 0, 0, 0, 0))
    assert is_request(got) is asks


def test_a_wait_that_ends_without_a_signal_is_no_request() -> None:
    assert not is_request(None)
