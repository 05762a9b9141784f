"""What `up` would do, or did: one line an action, with its reasons."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from swarmctl.plan import Action, ActionKind, Plan
from swarmctl_cli.views import columns, measure
from swarmctl_cli.views.symbols import Symbols

_STYLES = {
    ActionKind.START_BOOTSTRAP: "green",
    ActionKind.START_NODE: "green",
    ActionKind.REPLACE_BOOTSTRAP: "yellow",
    ActionKind.REPLACE_NODE: "yellow",
    ActionKind.STOP_UNDECLARED: "red",
    ActionKind.AWAIT: "cyan",
    ActionKind.SKIP: "bold red",
}


def render(plan: Plan, symbols: Symbols) -> Text:
    """The actions that are more than nothing, then their number; one sentence if there are none."""
    actions = [action for action in plan.actions if action.kind is not ActionKind.NOTHING]
    if not actions:
        return Text(nothing_to_do(plan))
    rows = []
    for action in actions:
        reasons = "; ".join(action.reasons).replace("→", symbols.arrow)
        kind = Text(action.kind.value, style=_STYLES[action.kind])
        rows.append((kind, str(action.node), str(action.host), reasons))
    return Text("\n").join((columns.render(("ACTION", "NODE", "HOST", "BECAUSE"), rows), Text(), Text(summary(plan))))


def summary(plan: Plan) -> str:
    """`5 to start, 1 to replace, 2 as they should be`."""
    kinds = [action.kind for action in plan.actions]
    replaced = sum(kind.starts and kind.stops for kind in kinds)
    counts = (
        (sum(kind.starts for kind in kinds) - replaced, "to start"),
        (replaced, "to replace"),
        (sum(kind.stops for kind in kinds) - replaced, "to stop"),
        (kinds.count(ActionKind.AWAIT), "on the way"),
        (kinds.count(ActionKind.SKIP), "out of reach"),
        (kinds.count(ActionKind.NOTHING), "as they should be"),
    )
    return ", ".join(f"{number} {words}" for number, words in counts if number)


def nothing_to_do(plan: Plan) -> str:
    """The sentence for a plan without changes."""
    return f"nothing to do: {measure.count(len(plan.actions), 'node')} as the file says"


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; `changes` counts what would be started or stopped."""
    return {"changes": len(plan.changes), "actions": [fields_of(action) for action in plan.actions]}


def fields_of(action: Action) -> dict[str, Any]:
    """One action as plain values."""
    return {
        "action": action.kind.value,
        "node": str(action.node),
        "host": str(action.host),
        "reasons": list(action.reasons),
    }
