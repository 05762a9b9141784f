from __future__ import annotations

import pytest

GROUPS: list[list[str]] = [[], ["config"], ["verify"], ["model"], ["export"]]
COMMANDS = [
    [],
    ["init"],
    ["plan"],
    ["up"],
    ["down"],
    ["restart"],
    ["status"],
    ["ps"],
    ["logs"],
    ["kill"],
    ["generate"],
    ["demo"],
    ["doctor"],
    ["version"],
    ["config"],
    ["config", "validate"],
    ["config", "show"],
    ["config", "schema"],
    ["verify"],
    ["verify", "redundancy"],
    ["verify", "recovery"],
    ["export"],
    ["export", "systemd"],
    ["model"],
    ["model", "tiny"],
    ["model", "import"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_a_summary_and_examples(bare, capsys, words):
    assert bare(*words, "--help").code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['swarmctl', *words])}")
    for open_end in ("[ARGS]...", "[NODE]...", "[PROMPT]...", "[CELL]..."):
        text = text.replace(open_end, "")
    assert "..." not in text, "a summary was cut"
    if words not in GROUPS:
        assert f"\n    swarmctl {' '.join(words)}" in text


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_without_a_verb_the_help_is_shown(bare, capsys, words):
    done = bare(*words)
    assert (done.code, done.err) == (0, "")
    assert capsys.readouterr().out.startswith("Usage: swarmctl")
