from __future__ import annotations

import os
import re
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.eventually import eventually

from swarmctl.node.log import Pump, RotatingLog
from swarmctl.transport import logfile
from swarmctl.transport.base import LogChunk, LogLine, LogPosition

TIME = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", re.MULTILINE)
LINE_BYTES = len(b"2026-12-07T08:27:22.123Z line 0000\n")
MOMENT = datetime(2026, 12, 7, 8, 27, tzinfo=timezone.utc)


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %04d\n" % number for number in range(start, start + count))


def bare(path: Path) -> bytes:
    """What is in a log but the times of its lines, of which each must have one."""
    data = path.read_bytes()
    assert len(TIME.findall(data)) == len(data.rstrip(b"\n").split(b"\n")), data
    return TIME.sub(b"", data)


def at(seconds: float) -> float:
    return (MOMENT + timedelta(seconds=seconds)).timestamp()


def stamped(seconds: float, text: str) -> bytes:
    moment = (MOMENT + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    return f"{moment.replace('+00:00', 'Z')} {text}\n".encode()


def whole(path: Path, **begin: float | int) -> tuple[list[LogLine], int]:
    """All lines from the beginning that `begin` says, and how many calls that took."""
    chunk = logfile.read(path, **begin)  # type: ignore[arg-type]
    chunks = [chunk]
    while chunk.more:
        chunk = logfile.read(path, after=chunk.position)
        chunks.append(chunk)
    return [line for chunk in chunks for line in chunk.entries], len(chunks)


# --- writing -------------------------------------------------------------------------------------------------------


def test_a_log_is_set_aside_at_its_limit_between_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=1000) as log:
        for number in range(150):
            log.write(numbered(1, number))

    aside = tmp_path / "node.log.1"
    assert path.stat().st_size <= 1000
    assert aside.stat().st_size <= 1000
    assert (bare(aside) + bare(path)).endswith(numbered(30, 120))


def test_a_line_that_never_ends_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=1000) as log:
        for _ in range(100):
            log.write(b"\r" + b"#" * 4000)

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 200_000


def test_descriptors_follow_the_log_to_its_new_file(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    spare = os.open(os.devnull, os.O_WRONLY)
    with RotatingLog(path, limit_bytes=40, descriptors=(spare,)) as log:
        log.write(b"the first line is long\n")
        log.write(b"second\n")
        os.write(spare, b"from a library\n")
    os.close(spare)

    assert TIME.sub(b"", path.read_bytes()) == b"second\nfrom a library\n"


def test_a_line_has_the_time_of_its_first_byte_and_only_one(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    with RotatingLog(path) as log:
        for piece in (b"\r 10%", b"\r 20%", b"\r100%\nnext\nquestion? ", b"yes\n"):
            log.write(piece)

    assert bare(path) == b"\r 10%\r 20%\r100%\nnext\nquestion? yes\n"
    entries = logfile.read(path).entries
    assert [entry.text for entry in entries] == ["100%", "next", "question? yes"]
    assert all(before.timestamp() <= (entry.at or 0) <= time.time() for entry in entries)


def test_the_runner_does_not_speak_into_a_line_of_its_child(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path) as log:
        log.write(b"half")
        log.say("asked to stop")
        log.write(b"the other half\n")
        log.say("stopped")

    assert bare(path) == b"half\nswarmctl: asked to stop\nthe other half\nswarmctl: stopped\n"


def test_a_run_that_was_cut_off_in_a_line_does_not_get_the_next_ones_words_into_it(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    for word in (b"first", b"second"):
        with RotatingLog(path) as log:
            log.write(word)

    assert bare(path) == b"first\nsecond"


def test_the_pump_copies_everything_up_to_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    reading, writing = os.pipe()
    with RotatingLog(path) as log:
        pump = Pump(reading, log)
        os.write(writing, numbered(2000) + b"no end")
        os.close(writing)
        assert pump.finish(10)

    assert bare(path) == numbered(2000) + b"no end"


def test_a_question_reaches_the_log_before_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    reading, writing = os.pipe()

    def asked() -> None:
        assert bare(path) == b"go on? "

    with RotatingLog(path) as log:
        pump = Pump(reading, log)
        os.write(writing, b"go on? ")
        eventually(asked, within_s=10, every_s=0.01)
        os.close(writing)
        assert pump.finish(10)


def test_a_pipe_that_stays_open_does_not_hold_the_runner_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with RotatingLog(tmp_path / "node.log") as log:
        pump = Pump(reading, log)
        assert not pump.finish(0.01)
        os.close(writing)
        assert pump.finish(10)


# --- reading -------------------------------------------------------------------------------------------------------


def test_reading_goes_on_where_it_stopped_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=10 * LINE_BYTES) as log:
        log.write(numbered(8))
        first = logfile.read(path, tail=3)
        log.write(numbered(2, 8))
        log.write(numbered(2, 10))
        second = logfile.read(path, after=first.position)
        log.write(b"half a")
        third = logfile.read(path, after=second.position)
        log.write(b" line\n")
        fourth = logfile.read(path, after=third.position)

    assert (tmp_path / "node.log.1").exists()
    assert first.lines == ("line 0005", "line 0006", "line 0007")
    assert second.lines == ("line 0008", "line 0009", "line 0010", "line 0011")
    assert third.lines == ()
    assert third.unfinished is not None
    assert third.unfinished.text == "half a"
    assert fourth.lines == ("half a line",)
    assert fourth.unfinished is None


def test_who_was_away_while_the_log_was_set_aside_twice_reads_all_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=4 * LINE_BYTES) as log:
        log.write(numbered(3))
        position = logfile.read(path).position
        for number in range(3, 11):
            log.write(numbered(1, number))

    assert position is not None
    lines = logfile.read(path, after=LogPosition(file=0, offset=position.offset)).lines
    assert lines == tuple(f"line {number:04}" for number in range(4, 11))


def test_a_file_that_got_the_number_of_the_one_that_was_read_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(stamped(0, "one") + stamped(1, "two"))
    position = logfile.read(path, tail=1).position
    # Written over in place: the same number, other lines.
    path.write_bytes(stamped(2, "a line that is longer") + stamped(3, "than two"))

    assert logfile.read(path, after=position).lines == ("a line that is longer", "than two")
    path.write_bytes(stamped(4, "short"))
    assert logfile.read(path, after=position).lines == ("short",)


def test_the_tail_reaches_back_into_the_log_that_was_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    with RotatingLog(path, limit_bytes=10 * LINE_BYTES) as log:
        log.write(numbered(9))
        log.write(numbered(2, 9))

    assert (tmp_path / "node.log.1").exists()
    assert logfile.read(path, tail=4).lines == ("line 0007", "line 0008", "line 0009", "line 0010")
    assert logfile.read(path, tail=0).lines == ()
    assert len(logfile.read(path).lines) == 11


def test_a_line_without_an_end_is_one_of_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(stamped(0, "one") + stamped(1, "two") + stamped(2, "\r 10%\r 20%")[:-1])

    chunk = logfile.read(path, tail=2)

    assert chunk.lines == ("two",)
    assert chunk.unfinished == LogLine(at=at(2), text=" 20%")


def test_lines_without_a_time_have_that_of_the_line_before(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"early\n" + stamped(0, "one") + b"by a library\n" + stamped(1, "two") + b"again\n")

    first = logfile.read(path)
    path.write_bytes(path.read_bytes() + b"later\n")

    assert first.entries == (
        LogLine(at=None, text="early"),
        LogLine(at=at(0), text="one"),
        LogLine(at=at(0), text="by a library"),
        LogLine(at=at(1), text="two"),
        LogLine(at=at(1), text="again"),
    )
    assert logfile.read(path, after=first.position).entries == (LogLine(at=at(1), text="later"),)
    assert logfile.read(path, tail=1).entries == (LogLine(at=at(1), text="later"),)


def test_a_log_of_the_first_version_is_read_with_the_times_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(
        b"2026-12-07T08:27:00Z swarmctl: started\nDec 07 08:27:01.000 [INFO] words\n2026-99-99T99:99:99Z x\n"
    )

    assert logfile.read(path).entries == (
        LogLine(at=at(0), text="swarmctl: started"),
        LogLine(at=at(0), text="Dec 07 08:27:01.000 [INFO] words"),
        LogLine(at=at(0), text="x"),
    )


@pytest.mark.parametrize(
    ("since", "lines"),
    [
        (-1.0, ["one", "untimed", "two", "three"]),
        (0.0, ["one", "untimed", "two", "three"]),
        (0.5, ["two", "three"]),
        (1.5, ["three"]),
        (2.5, []),
    ],
)
def test_since_begins_at_the_first_line_that_is_not_older(tmp_path: Path, since: float, lines: list[str]) -> None:
    (tmp_path / "node.log.1").write_bytes(b"of no known time\n" + stamped(0, "one") + b"untimed\n")
    path = tmp_path / "node.log"
    path.write_bytes(stamped(1, "two") + stamped(2, "three"))

    assert list(logfile.read(path, since=at(since)).lines) == lines
    assert list(logfile.read(path, since=at(since), tail=1).lines) == lines[-1:]


def test_a_long_log_comes_in_pieces_and_none_of_it_twice(tmp_path: Path) -> None:
    (tmp_path / "node.log.1").write_bytes(b"".join(stamped(number, f"{number} {'#' * 90}") for number in range(9_000)))
    path = tmp_path / "node.log"
    path.write_bytes(b"".join(stamped(number, str(number)) for number in range(9_000, 20_000)))

    lines, calls = whole(path)
    assert [int(line.text.partition(" ")[0]) for line in lines] == list(range(20_000))
    assert calls > 3
    assert sum(len(line.text) for line in logfile.read(path).entries) <= logfile.CALL_BYTES
    assert len(logfile.read(path, tail=9_000).entries) == logfile.CALL_LINES
    assert whole(path, tail=9_000)[0] == lines[-9_000:]
    assert whole(path, since=at(5_000))[0] == lines[5_000:]


def test_a_line_that_is_longer_than_one_call_returns_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(stamped(0, "x" * (logfile.CALL_BYTES + 7)) + stamped(1, "next"))

    (long, short), calls = whole(path)

    assert long.text == "x" * logfile.CALL_BYTES + "… (7 bytes more)"
    assert (short.text, calls) == ("next", 2)


def test_what_a_progress_bar_has_written_over_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"\r  0%\r 50%\r100%\r\nnext\n")

    assert logfile.read(path).lines == ("100%", "next")


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert logfile.read(tmp_path / "node.log", tail=10) == LogChunk(entries=(), position=None)


def test_a_reader_who_never_stops_sees_each_line_once_while_the_log_is_set_aside_again_and_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node.log"
    position: LogPosition | None = None
    seen: list[str] = []
    # The writer is three lines ahead at most, so that the log is never set aside twice between two looks.
    allowed = threading.Semaphore(3)

    def write() -> None:
        with RotatingLog(path, limit_bytes=8 * LINE_BYTES) as log:
            for number in range(2_000):
                allowed.acquire(timeout=30)
                log.write(numbered(1, number))

    writer = threading.Thread(target=write)
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        writer.start()
        deadline = time.monotonic() + 60
        while len(seen) < 2_000 and time.monotonic() < deadline:
            chunk = logfile.read(path, after=position)
            position = chunk.position
            seen += chunk.lines
            for _ in chunk.lines:
                allowed.release()
    finally:
        writer.join(60)
        sys.setswitchinterval(switching)

    assert seen == [f"line {number:04}" for number in range(2_000)]
