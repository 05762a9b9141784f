from __future__ import annotations

import re
from html.parser import HTMLParser

from support.outcomes import KILL, KILLED, LATE, MIXED, PAUSE, a_result, a_run, a_trial, an_outcome, stock

from swarmctl.trial import Verdict
from swarmctl_cli.views import recovery_html
from swarmctl_cli.views.recovery import Outcome

COMMAND = "swarmctl verify recovery"
EMPTY = ("meta", "br", "link", "img")


class Page(HTMLParser):
    """The page's elements and texts; elements that are not closed in order fail the test."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())

    def count(self, tag: str) -> int:
        return sum(one == tag for one, _ in self.elements)


def written(outcomes) -> str:
    return recovery_html.render(outcomes, command=COMMAND, about=("2024-05-01 12:00Z", "swarmctl 0.1.0"))


def test_the_page_is_well_formed_and_asks_for_nothing_from_outside():
    text = written((*MIXED, stock(KILL)))
    page = Page(text)
    assert page.count("script") + page.count("link") + page.count("img") + page.count("iframe") == 0
    assert {name for _, attrs in page.elements for name in attrs} & {"src", "srcset", "onclick", "onload"} == set()
    assert all(str(attrs["href"]).startswith("#") for _, attrs in page.elements if "href" in attrs)
    assert "://" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", text))
    (policy,) = (attrs["content"] for tag, attrs in page.elements if tag == "meta" and "http-equiv" in attrs)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_it_has_a_light_and_a_dark_form_of_every_colour():
    text = written(MIXED)
    light, dark = (
        re.search(r":root \{(.*?)\}", text, re.DOTALL),
        re.search(r"dark\) \{ :root \{(.*?)\}", text, re.DOTALL),
    )
    assert light is not None
    assert dark is not None
    names = [set(re.findall(r"--\w+(?=:)", found[1])) for found in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--\w+)\)", text)) <= names[0]


def test_every_cell_is_in_the_table_and_leads_to_its_own_time_line():
    page = Page(written(MIXED))
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    sections = [f"#{attrs['id']}" for tag, attrs in page.elements if tag == "section"]
    assert links == sections
    assert len(links) == len(MIXED)
    for outcome in MIXED:
        assert str(outcome.result.cell) in page.texts


def test_verdicts_are_words_with_a_sign_and_the_summary_is_on_top():
    page = Page(written(MIXED))
    assert {"✓ identical", "≈ within-tolerance", "✗ failed", "? not-hit"} <= set(page.texts)
    assert page.texts[2].startswith("2 of 5 cells identical, 1 within-tolerance, 1 failed, 1 not-hit; worst pause")


def test_a_time_line_for_each_failover_of_each_session():
    trial = a_trial(KILL, a_run(KILLED), a_run((*KILLED, *LATE)))
    page = Page(written([Outcome(result=a_result(KILL), trial=trial)]))
    captions = [text for text in page.texts if text.startswith("session") and "words" not in text]
    assert captions == [
        "session 1 of 2",
        "session 2 of 2, failover 1 of 2",
        "session 2 of 2, failover 2 of 2",
    ]
    assert page.count("figure") == 3
    assert "[  0.33 s] taken over by b1 (0:2) + b2 (2:3)" in "\n".join(page.texts)


def test_the_stock_verdict_stands_beside_ours_in_the_table_and_is_told_with_its_reason():
    page = Page(written([an_outcome(KILL), stock(KILL, reason="Broken input cache")]))
    assert "stock client" in page.texts
    assert ": Broken input cache" in page.texts
    assert Page(written([an_outcome(KILL)])).texts.count("stock client") == 0


def test_what_servers_say_is_text_and_never_markup():
    nasty = "</pre><script>alert(1)</script> & \"quoted\" 'so'"
    failed = an_outcome(PAUSE, Verdict.FAILED, reason=nasty)
    told = (*KILLED[:8], KILLED[8].__class__(**{**vars(KILLED[8]), "reason": nasty}))
    page = Page(written([failed, Outcome(result=a_result(KILL), trial=a_trial(KILL, a_run(told)))]))
    assert page.count("script") == 0
    assert sum(nasty in text for text in page.texts) == 2


def test_a_cell_that_came_to_no_trial_is_told_without_a_picture():
    page = Page(written([Outcome(result=a_result(KILL, Verdict.FAILED, reason="the swarm did not start"))]))
    assert page.count("figure") == 0
    assert ": the swarm did not start" in page.texts


def test_nothing_tried_makes_a_page_too():
    assert "no cell was tried" in Page(written([])).texts
