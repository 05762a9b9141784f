"""JUnit's XML of `verify recovery`: one test case a cell, for the pages that CI systems make of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from swarmctl.trial import Subject, Verdict
from swarmctl_cli.views import recovery
from swarmctl_cli.views.recovery import Outcome, Row

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, not even escaped; a reason may quote a server's words."""


def render(outcomes: Sequence[Outcome]) -> str:
    """The document. The stock client's verdicts are told beside ours, and fail nothing: it is the control."""
    root = Element("testsuites", {"name": "swarmctl verify recovery"})
    rows = recovery.rows_of(outcomes)
    for family, members in groupby(rows, key=lambda row: row.cell.family):
        suite = SubElement(root, "testsuite", {"name": family})
        cases = [_case(suite, row) for row in members]
        _count(suite, cases)
    _count(root, root.findall("testsuite/testcase"))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: Element, row: Row) -> Element:
    result = row.shown.result
    family, _, rest = str(row.cell).partition("/")
    took_s = sum(one.trial.took_s for one in (row.shown, row.stock) if one is not None and one.trial is not None)
    about = {"classname": f"recovery.{family}", "name": rest, "time": f"{took_s:.3f}"}
    case = SubElement(suite, "testcase", {name: _clean(text) for name, text in about.items()})
    if result.subject is Subject.STOCK:
        said = f"only the stock client was tried, which is the control: {_told(row.shown)}"
        SubElement(case, "skipped", {"message": _clean(said)})
        return case
    if result.verdict is Verdict.NOT_HIT:
        SubElement(case, "skipped", {"message": _clean(_told(row.shown))})
    elif result.verdict not in recovery.PROVED:
        about = {"type": result.verdict.value, "message": _clean(_told(row.shown))}
        SubElement(case, "failure", about).text = _clean(_numbers(row.shown))
    lines = [_numbers(row.shown)]
    if result.verdict is Verdict.WITHIN:
        lines.append(_told(row.shown))
    if row.stock is not None:
        lines.append(f"stock client: {_told(row.stock)}")
    SubElement(case, "system-out").text = _clean("\n".join(lines))
    return case


def _count(parent: Element, cases: Sequence[Element]) -> None:
    parent.set("tests", str(len(cases)))
    parent.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    parent.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    parent.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _told(outcome: Outcome) -> str:
    result = outcome.result
    return f"{result.verdict.value}: {result.reason}" if result.reason else result.verdict.value


def _numbers(outcome: Outcome) -> str:
    names = ("detect", "replay", "pause", "step", "replayed tokens", "lost tokens")
    return ", ".join(f"{name} {number}" for name, number in zip(names, recovery.numbers(outcome.result), strict=True))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
