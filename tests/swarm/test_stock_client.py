"""The negative control: the same fault, in the same place, under petals' own client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.connected import ConnectedClient
from support.swarm import ON_LLAMA

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

STOCK_CLIENT = Path(__file__).with_name("stock_client.py")
PROMPT = "The swarm keeps its blocks on many machines"
TOKENS = 30


def run_stock(client: ConnectedClient, *at_token: str) -> tuple[dict, str]:
    """What the program said of itself, all lines in one, and its errors; it has a time that is enough for retries."""
    file = str(client.swarm.site.spec.path)
    try:
        done = client.swarm.program(str(STOCK_CLIENT), file, PROMPT, str(TOKENS), *at_token, within_s=60)
        out, told = done.out, done.err
    except subprocess.TimeoutExpired as late:
        out, told = (late.stdout or b"").decode(), "it had not ended in time"
    said = {}
    for line in out.splitlines():
        said |= json.loads(line)
    return said, told


@ON_LLAMA
def test_stock_client_gives_the_right_tokens_when_nothing_happens(client: ConnectedClient):
    client.ready()

    said, told = run_stock(client)

    assert said == {"ids": list(client.locally(PROMPT, tokens=TOKENS)[0])}, told


@ON_LLAMA
def test_stock_client_does_not_survive_the_kill_that_ours_survives(client: ConnectedClient):
    client.ready()
    expected = list(client.locally(PROMPT, tokens=TOKENS)[0])

    said, told = run_stock(client, "10")

    assert "killed" in said, f"the fault did not bite: {told}"
    client.swarm.await_death(said["killed"])
    assert said.get("ids") != expected, told
    assert client.generate(PROMPT, tokens=TOKENS).ids == (tuple(expected),), "there are servers left for all blocks"
