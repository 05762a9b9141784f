"""The demo's summary: what was proved, in a few lines."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from swarmctl_cli.errors import plain

if TYPE_CHECKING:
    from swarmctl.client.story import Failover

STOCK = (
    "not run here; in the source tree tests/swarm/stock_client.py runs it: petals' own client in the same place hangs "
    'until its request timeout (180 s), then fails with "Broken input cache" on every server that it tries'
)


def render(proof: Any, left: Sequence[str]) -> Text:
    """The summary; `proof` is an `operations.demo.Comparison`."""
    lines = [_answer("tokens lost", str(proof.tokens_lost), good=proof.tokens_lost == 0)]
    lines.append(_yes_no("identical to the run without a fault", proof.identical_to_undisturbed))
    lines.append(_yes_no("identical to transformers on this machine", proof.identical_to_local))
    for failover in proof.failovers:
        lines.append(_answer("killed in mid-step", _story(failover), good=True))
    if proof.pause_ms is not None and proof.step_ms_median is not None:
        usual = f"the median of all other steps, in both runs, is {proof.step_ms_median:.0f} ms"
        pause = f"{proof.pause_ms:.0f} ms between two tokens; {usual}"
        lines.append(_answer("pause", pause, good=True))
    lines.append(_answer("left running", ", ".join(left) or "nothing", good=not left))
    lines.append(Text.assemble(("stock client  ", "bold"), STOCK))
    return Text("\n").join(lines)


def document(proof: Any, left: Sequence[str]) -> dict[str, Any]:
    """The demo's data for `-o json`."""
    facts: dict[str, Any] = plain(proof)
    return {**facts, "left_running": list(left)}


def next_commands(scripts: Path, here: Path, search_path: str) -> tuple[str, ...]:
    """What to type for a swarm of one's own; first what makes the command known, where it is not.

    `scripts` is the folder of this installation's commands, `search_path` the shell's.
    """
    commands = (
        "swarmctl init && swarmctl model tiny --family llama -o ./tiny-llama && swarmctl up",
        "swarmctl status",
    )
    activate = scripts / "activate"
    if shutil.which("swarmctl", path=search_path) or not activate.exists():
        return commands
    shown = activate.relative_to(here) if activate.is_relative_to(here) else activate
    return (f". {shlex.quote(str(shown))}", *commands)


def _story(failover: Failover) -> str:
    lost = ", ".join(f"{hop.label} ({hop.blocks})" for hop in failover.lost)
    now = " + ".join(f"{hop.label} ({hop.blocks})" for hop in failover.taken_over_by)
    return (
        f"{lost}; taken over by {now}; noticed {failover.detect_ms:.0f} ms after the kill "
        "(the log counts from the request), "
        f"{failover.replayed_tokens} positions replayed in {failover.replay_ms:.0f} ms"
    )


def _yes_no(label: str, yes: bool) -> Text:
    return _answer(label, "yes" if yes else "NO", good=yes)


def _answer(label: str, value: str, *, good: bool) -> Text:
    return Text.assemble((f"{label}  ", "bold"), (value, "green" if good else "bold red"))
