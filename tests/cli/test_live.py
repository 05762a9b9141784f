from __future__ import annotations

import re

from support.builders import peer_of
from support.shell import Stream, Terminal

from swarmctl.blocks import NodeName, parse_range
from swarmctl.events import Event, Hop, NodeReady, NodeStarted, PeerFailed, RouteChosen, StepDone
from swarmctl_cli.live import follow_rollout, progress_bar, transcript
from swarmctl_cli.output import Format, Output

HOP = Hop(blocks=parse_range("0:8"), peer=peer_of("a"), node=NodeName("a"))
STORY: tuple[Event, ...] = (
    RouteChosen(at_s=0.01, route=(HOP,), took_ms=2.0),
    StepDone(at_s=0.5, step=1, position=5, tokens=5, batch=1, took_ms=90.0),
    PeerFailed(at_s=0.6, hop=HOP, kind="lost", reason="gone", position=5, in_flight=True, detect_ms=12.0),
)


def an_output(*, terminal: bool, quiet: bool = False) -> Output:
    kind = Terminal if terminal else Stream
    out = Output(stdout=kind(), stderr=kind(), env={"TERM": "xterm", "COLUMNS": "80"})
    out.quiet = quiet
    return out


def written(stream: object) -> str:
    assert isinstance(stream, Stream)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def test_on_a_pipe_text_and_log_go_to_their_own_streams_as_they_come():
    out = an_output(terminal=False)
    with transcript(out, stream_text=True) as shown:
        shown.event(STORY[0])
        shown.text("once ")
        assert written(out.stdout) == "once "
        shown.event(STORY[2])
        shown.text("upon")
    assert written(out.stdout) == "once upon\n"
    assert written(out.stderr).splitlines() == [
        "[  0.01 s] route a (0:8), found in 2.0 ms",
        "[  0.60 s] a (0:8) lost in mid-step at position 5: gone, noticed after 12 ms",
    ]


def test_on_a_terminal_the_text_is_left_behind_once_under_what_happened():
    out = an_output(terminal=True)
    with transcript(out, stream_text=True) as shown:
        for event in STORY:
            shown.event(event)
        shown.text("once upon\na time")
    assert written(out.stdout) == "once upon\na time\n"
    assert written(out.stderr).rstrip().endswith("a (0:8) lost in mid-step at position 5: gone, noticed after 12 ms")


def test_with_a_machine_format_the_text_is_not_streamed():
    out = an_output(terminal=False)
    out.format = Format.JSON
    with transcript(out, stream_text=False) as shown:
        shown.text("once")
    assert written(out.stdout) == ""


def test_an_interrupted_generation_leaves_what_was_written():
    out = an_output(terminal=True)
    try:
        with transcript(out, stream_text=True) as shown:
            shown.text("once")
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert written(out.stdout) == "once\n"


def test_a_rollout_is_a_line_a_change_on_a_pipe_and_its_last_picture_on_a_terminal():
    events = (
        NodeStarted(node=NodeName("a"), pid=1, peer=peer_of("a"), port=2),
        NodeReady(node=NodeName("a"), took_s=3.0),
    )
    pipe, terminal = an_output(terminal=False), an_output(terminal=True)
    for out in (pipe, terminal):
        with follow_rollout(out) as sink:
            for event in events:
                sink(event)
    assert written(pipe.stderr) == "a: started (pid 1, port 2)\na: online after 3.0 s\n"
    assert "✓ a  online after 3.0 s" in written(terminal.stderr)


def test_quiet_shows_no_progress_even_on_a_terminal():
    out = an_output(terminal=True, quiet=True)
    with follow_rollout(out) as sink:
        sink(NodeReady(node=NodeName("a"), took_s=3.0))
    with progress_bar(out, "importing") as progress:
        progress(1, 2)
    assert written(out.stderr) == ""


def test_a_long_import_says_each_quarter_once_on_a_pipe():
    out = an_output(terminal=False)
    with progress_bar(out, "importing") as progress:
        for done in range(101):
            progress(done, 100)
    assert written(out.stderr).splitlines() == [f"importing: {done} of 100" for done in (0, 25, 50, 75, 100)]
