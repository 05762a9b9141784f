from __future__ import annotations

import os
from pathlib import Path

from swarmctl.node.log import Pump, RotatingLog
from swarmctl.transport import logfile


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %04d\n" % number for number in range(start, start + count))


def test_a_log_is_set_aside_at_its_limit_between_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=1000) as log:
        for number in range(150):
            log.write(numbered(1, number))

    aside = tmp_path / "node.log.1"
    assert path.stat().st_size <= 1000
    assert aside.stat().st_size <= 1000
    assert path.read_bytes().startswith(b"line ")
    assert (aside.read_bytes() + path.read_bytes()).endswith(numbered(50, 100))


def test_a_line_that_never_ends_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=1000) as log:
        for _ in range(100):
            log.write(b"\r" + b"#" * 4000)

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 200_000


def test_descriptors_follow_the_log_to_its_new_file(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    spare = os.open(os.devnull, os.O_WRONLY)
    with RotatingLog(path, limit_bytes=20, descriptors=(spare,)) as log:
        log.write(b"the first line is long\n")
        log.write(b"second\n")
        os.write(spare, b"from a library\n")
    os.close(spare)

    assert path.read_text() == "second\nfrom a library\n"


def test_the_pump_copies_everything_up_to_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    reading, writing = os.pipe()
    with RotatingLog(path) as log:
        pump = Pump(reading, log)
        os.write(writing, numbered(2000) + b"no end")
        os.close(writing)
        assert pump.finish(10)

    assert path.read_bytes() == numbered(2000) + b"no end"


def test_a_pipe_that_stays_open_does_not_hold_the_runner_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with RotatingLog(tmp_path / "node.log") as log:
        pump = Pump(reading, log)
        assert not pump.finish(0.01)
        os.close(writing)
        assert pump.finish(10)


def test_reading_goes_on_where_it_stopped_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=100) as log:
        log.write(numbered(8))
        first = logfile.read(path, after=None, tail=3)
        log.write(numbered(2, 8))
        log.write(numbered(2, 10))
        second = logfile.read(path, after=first.position, tail=None)
        log.write(b"half a")
        third = logfile.read(path, after=second.position, tail=None)
        log.write(b" line\n")
        fourth = logfile.read(path, after=third.position, tail=None)

    assert first.lines == ("line 0005", "line 0006", "line 0007")
    assert second.lines == ("line 0008", "line 0009", "line 0010", "line 0011")
    assert third.lines == ()
    assert fourth.lines == ("half a line",)


def test_the_tail_reaches_back_into_the_log_that_was_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=100) as log:
        log.write(numbered(9))
        log.write(numbered(2, 9))

    assert logfile.read(path, after=None, tail=4).lines == ("line 0007", "line 0008", "line 0009", "line 0010")
    assert logfile.read(path, after=None, tail=0).lines == ()
    assert len(logfile.read(path, after=None, tail=None).lines) == 11


def test_what_a_progress_bar_has_written_over_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"\r  0%\r 50%\r100%\r\nnext\n")

    assert logfile.read(path, after=None, tail=None).lines == ("100%", "next")


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert logfile.read(tmp_path / "node.log", after=None, tail=10).lines == ()
