from __future__ import annotations

import pytest

from swarmctl.errors import Finding
from swarmctl_cli.views import blockmap, columns, demo, diagnosis, findings, measure, processes, symbols


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 m 00 s"), (185, "3 m 05 s")],
)
def test_an_age_has_one_form_for_each_size(seconds, words):
    assert measure.age(seconds) == words


def test_milliseconds_turn_into_seconds_when_there_are_many():
    assert [measure.millis(value) for value in (None, 0.42, 16.2, 999.4, 1840)] == [
        "-", "0.4 ms", "16 ms", "999 ms", "1.84 s",
    ]  # fmt: skip


def test_a_list_of_names_reads_like_a_sentence():
    assert measure.listing([]) == ""
    assert measure.listing(["a"]) == "a"
    assert measure.listing(["a", "b", "c"], "or") == "a, b or c"


def test_sizes_are_binary():
    assert [measure.size(value) for value in (0, 1023, 1536, 3 * 2**30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]


def test_a_table_pads_and_never_cuts():
    text = columns.render(
        ("NAME", "N"), [("a-very-long-name-that-stays-whole", "7"), ("b", "12")], right=frozenset({"N"})
    )
    assert text.plain.splitlines() == [
        "NAME                                N",
        "a-very-long-name-that-stays-whole   7",
        "b                                  12",
    ]


def test_a_narrow_table_leaves_columns_out_in_the_given_order_and_cuts_none():
    header, rows = ("NAME", "HOST", "CACHE"), [("left-a", "here", "16384")]
    shown = {
        width: columns.render(header, rows, width=width, spare=("CACHE", "HOST")).plain.splitlines()[1]
        for width in (19, 18, 12, 11, 2)
    }
    assert shown == {19: "left-a  here  16384", 18: "left-a  here", 12: "left-a  here", 11: "left-a", 2: "left-a"}


def test_columns_that_are_left_out_are_named_below_the_table_in_one_dim_line():
    header, rows = ("NAME", "HOST", "CACHE"), [("left-a", "here", "16384")]
    whole = columns.lay_out(header, rows, width=19, spare=("CACHE", "HOST"))
    narrow = columns.render(header, rows, width=11, spare=("CACHE", "HOST"))
    assert (whole.left_out, whole.footer) == ((), ())
    assert narrow.plain.splitlines()[2:] == ["columns left out: HOST, CACHE (wider terminal, or -o json)"]
    assert [str(span.style) for span in narrow.spans if span.start >= narrow.plain.index("columns")] == ["dim"]


def test_ten_replicas_are_a_plus_and_a_gap_is_a_zero():
    text = blockmap.render([0, 9, 10, 12], [], minimum=1, width=80, symbols=symbols.ASCII)
    assert text.plain.splitlines()[1].endswith("09++")


def test_a_finding_shows_its_line_with_a_mark_under_the_place(golden):
    first = Finding(
        file="swarm.yaml",
        line=14,
        column=22,
        path="nodes.a0.blocks",
        message='"8:4" is empty; the end must be greater than the start',
        hint='"4:8"',
        source_line='  a0: {host: gpu-a, blocks: "8:4"}',
    )
    second = Finding(file="swarm.yaml", line=1, column=1, path="", message="the file is empty")
    golden("findings", findings.render([first, second]))


def test_a_diagnosis_puts_each_remedy_under_its_fault(golden):
    checks = [
        ("python", "ok", "3.11.7", None),
        ("torch", "warning", "2.14.0, verified with <=2.13.0", "pip install 'torch<=2.13.0'"),
        ("petals", "failed", "cannot be imported", "pip install --no-deps petals==2.2.0.post1"),
    ]
    patches = [
        ("sessions-recover", "petals.client.remote_sequential:InferenceSession", "a dead server is not replaced")
    ]
    golden("diagnosis", diagnosis.render(checks, patches, symbols.ASCII))


def test_processes_are_a_table_and_nothing_is_a_sentence(golden):
    node = processes.ProcessLine(
        name="left-a",
        host="here",
        kind="server",
        pid=812,
        processes=9,
        rss_bytes=512 << 20,
        cpu_s=71.0,
        port=31400,
        started_at="2024-05-01T12:00:00.515162+00:00",
    )
    child = processes.ProcessLine(
        name="  child", host="here", kind="", pid=812, processes=None, rss_bytes=400 << 20, cpu_s=60.0, command="python"
    )
    golden("processes", processes.render([node]))
    golden("processes-wide", processes.render([node, child]))
    assert processes.render([]).plain == "nothing runs"


def test_the_demo_ends_with_commands_that_work_in_the_shell_that_it_was_called_from(tmp_path):
    scripts = tmp_path / "my env" / "bin"
    scripts.mkdir(parents=True)
    known = scripts / "swarmctl"
    known.touch(mode=0o755)
    assert [line.split()[0] for line in demo.next_commands(scripts, tmp_path, str(scripts))] == ["swarmctl"] * 2
    assert demo.next_commands(scripts, tmp_path, "")[0].startswith("swarmctl init"), "it is no environment"
    (scripts / "activate").touch()
    assert demo.next_commands(scripts, tmp_path, "")[0] == ". 'my env/bin/activate'"
