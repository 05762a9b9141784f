"""Faults of a swarm file: where, what, the line itself with a mark under the place, and a hint."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from swarmctl.errors import Finding


def render(findings: Sequence[Finding]) -> Text:
    """All findings in the order given, two spaces indented."""
    return Text("\n").join(_finding(finding) for finding in findings)


def _finding(finding: Finding) -> Text:
    text = Text.assemble(("  " + f"{finding.file}:{finding.line}:{finding.column}: ", "bold"))
    if finding.path:
        text.append(f"{finding.path}: ")
    text.append(finding.message)
    if finding.source_line.strip():
        number = f"{finding.line:>6}"
        mark = " " * (finding.column - 1) + "^"
        text.append(f"\n  {number} | {finding.source_line.rstrip()}")
        text.append(f"\n  {'':>6} | ")
        text.append(mark, style="red")
    if finding.hint:
        text.append("\n  ")
        text.append("hint: ", style="cyan")
        text.append(finding.hint)
    return text
