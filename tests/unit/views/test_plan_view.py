from __future__ import annotations

from swarmctl.blocks import HostName, NodeName
from swarmctl.plan import Action, ActionKind, Plan
from swarmctl_cli.views import plan, symbols


def an_action(kind: ActionKind, node: str, *reasons: str) -> Action:
    return Action(kind=kind, node=NodeName(node), host=HostName("here"), reasons=reasons)


FULL = Plan(
    actions=(
        an_action(ActionKind.NOTHING, "bootstrap-0"),
        an_action(ActionKind.START_NODE, "left-a", "it is CRASHED: killed by signal 9 (SIGKILL)"),
        an_action(ActionKind.REPLACE_NODE, "left-b1", "blocks: 0:7 → 0:8", "threads: 2 → 1"),
        an_action(ActionKind.AWAIT, "right-a", "it runs and is JOINING"),
        an_action(ActionKind.STOP_UNDECLARED, "old", "it is not in the file"),
    )
)


def test_a_plan_names_each_action_with_its_reasons_and_counts_them(golden):
    golden("plan", plan.render(FULL, symbols.UNICODE))
    golden("plan-ascii", plan.render(FULL, symbols.ASCII))


def test_a_plan_without_changes_is_one_sentence():
    idle = Plan(actions=(an_action(ActionKind.NOTHING, "left-a"), an_action(ActionKind.NOTHING, "left-b")))
    assert plan.render(idle, symbols.UNICODE).plain == "nothing to do: 2 nodes as the file says"


def test_the_document_counts_changes_and_keeps_every_action():
    data = plan.document(FULL)
    assert data["changes"] == 3
    assert [action["action"] for action in data["actions"]] == [
        "nothing",
        "start",
        "replace",
        "await",
        "stop undeclared",
    ]
