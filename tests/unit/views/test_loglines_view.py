from __future__ import annotations

import pytest
from rich.color import Color
from rich.text import Text

from swarmctl_cli.views.loglines import COLOURS, LogLines

AT = 1796632042.123
NAMES = [f"n{number}" for number in range(7)]


def spans(line: Text) -> list[tuple[str, str]]:
    return [(line.plain[span.start : span.end], str(span.style)) for span in line.spans]


def luminance(colour: str) -> float:
    parts = [part / 255 for part in Color.parse(colour).get_truecolor()]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_nodes_colour_can_be_read_on_black_and_on_white(colour: str) -> None:
    assert (luminance(colour) + 0.05) / 0.05 >= 3
    assert 1.05 / (luminance(colour) + 0.05) >= 3


def test_each_node_keeps_its_colour_and_the_seventh_has_that_of_the_first() -> None:
    view = LogLines(NAMES)

    styles = [spans(view.line(name, AT, "words"))[0] for name in [*NAMES, *NAMES]]

    assert styles[:7] == styles[7:]
    assert [style for _, style in styles[:7]] == [*COLOURS, COLOURS[0]]


def test_names_are_as_wide_as_the_longest_and_a_single_node_has_none() -> None:
    view = LogLines(["a", "longer"])

    assert view.plain("a", AT, "words") == view.line("a", AT, "words").plain == "a      | words"
    assert LogLines(["a"]).plain("a", AT, "words") == LogLines(["a"]).line("a", AT, "words").plain == "words"


def test_times_are_shown_when_asked_for_and_a_line_without_one_stays_in_its_column() -> None:
    view = LogLines(["a", "b"], timestamps=True)

    assert view.plain("a", AT, "words") == view.line("a", AT, "words").plain == "a | 2026-12-07T08:27:22.123Z words"
    assert view.plain("b", None, "words") == "b |                          words"


def test_words_of_trouble_stand_out_and_no_others() -> None:
    line = LogLines(["a"]).line("a", AT, "[ERROR] errors, no TERRORS; WARNING: Traceback (most recent call last)")

    assert spans(line) == [("ERROR", "bold red"), ("WARNING", "yellow"), ("Traceback", "bold red")]


def test_a_line_cannot_act_on_the_terminal_or_colour_what_follows() -> None:
    line = LogLines(["a", "b"]).line("a", AT, "\x1b[31mred\x1b[2J \x1b]0;title\x07words")

    assert "\x1b" not in line.plain
    assert line.plain.startswith("a | red")
    assert ("red", "color(1)") in spans(line)
