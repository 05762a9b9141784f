"""A swarm on three hosts behind ssh, and what happens to hosts."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from lab.conftest import BOOTSTRAPS, HOSTS, NODES, Place
from support.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

PROMPT = ("generate", "Once upon a time", "-n", "24", "-o", "json")


def ids(done: object) -> list[int]:
    return done.data["generations"][0]["ids"]  # type: ignore[attr-defined]


def test_every_block_is_on_two_hosts_and_a_second_up_has_nothing_to_do(swarm: Place) -> None:
    before = swarm.pids()

    again = swarm("up", "-o", "json")

    assert (again.code, again.data["changes"]) == (0, 0)
    assert swarm.pids() == before
    assert set(before) == {*NODES, *BOOTSTRAPS}
    assert swarm("verify", "redundancy", "--min", "2").code == 0


def test_a_host_that_is_unplugged_in_the_middle_costs_no_token_and_is_well_again_when_plugged_in(swarm: Place) -> None:
    calm = swarm(*PROMPT)
    before = swarm.pids()
    events = swarm.folder / "events.jsonl"
    events.unlink(missing_ok=True)

    with swarm.typed(*PROMPT, "--events", str(events)) as process:
        first = eventually(lambda: _route_after(events, tokens=4), within_s=60, every_s=0.01)
        host = _host_of(swarm, first)
        swarm.lab.unplug(host)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert json.loads(out)["data"]["generations"][0]["ids"] == ids(calm)
    seen = swarm.status()
    assert all(node["state"] != "ONLINE" for node in seen["nodes"] if node["host"] == host)
    swarm.lab.plug(host)
    swarm.healthy()
    assert swarm.pids() == before
    assert swarm.status()["strangers"] == []


def _route_after(events: Path, *, tokens: int) -> str:
    assert events.exists()
    lines = [json.loads(line) for line in events.read_text().splitlines() if line.endswith("}")]
    came = sum(len(line["ids"]) for line in lines if line.get("type", line.get("event")) == "TokensEmitted")
    assert came >= tokens
    (chosen,) = [line for line in lines if line.get("type", line.get("event")) == "RouteChosen"][:1]
    return str(chosen["route"][0]["node"])


def _host_of(swarm: Place, node: str) -> str:
    return next(one["host"] for one in swarm.status()["nodes"] if one["node"] == node)


def test_a_slow_line_raises_no_alarm(swarm: Place) -> None:
    calm = swarm(*PROMPT)
    swarm.lab.slow("gpu-c", delay_ms=100, loss_percent=1)
    try:
        until = time.monotonic() + 12
        while time.monotonic() < until:
            done = swarm("status", "-o", "json")
            assert done.data["verdict"] == "HEALTHY", done.data["reason"]
        assert ids(swarm(*PROMPT)) == ids(calm)
    finally:
        swarm.lab.normal("gpu-c")


def test_without_the_first_bootstrap_peer_new_servers_and_new_clients_still_join(swarm: Place) -> None:
    calm = swarm(*PROMPT)
    assert swarm("kill", "bootstrap-0").code == 0

    assert swarm("restart", "c").code == 0
    assert ids(swarm(*PROMPT)) == ids(calm)


def test_a_server_whose_main_process_is_killed_is_started_once_more_by_its_runner(swarm: Place) -> None:
    before = {node["node"]: node for node in swarm.status()["nodes"]}["c"]
    swarm.lab.run("gpu-c", ["kill", "-9", str(before["process"]["pid"])])

    def back() -> dict[str, object]:
        node = {one["node"]: one for one in swarm.status()["nodes"]}["c"]
        assert (node["state"], node["process"]["restarts"]) == ("ONLINE", before["process"]["restarts"] + 1)
        return node

    after = eventually(back, within_s=60, every_s=0.5)
    assert after["peer"] == before["peer"]
    assert swarm("down", "c").code == 0
    assert swarm.of_nodes("gpu-c") == []


def test_a_runner_that_is_killed_leaves_no_process_and_up_brings_its_node_back(swarm: Place) -> None:
    runner = next(row["runner_pid"] for row in swarm("ps", "-o", "json").data if row["node"] == "c")
    swarm.lab.run("gpu-c", ["kill", "-9", str(runner)])

    eventually(lambda: _empty(swarm, "gpu-c"), within_s=20, every_s=0.2)
    assert swarm.states()["c"] in ("CRASHED", "STALE")
    assert swarm("up").code == 0


def _empty(swarm: Place, host: str) -> None:
    assert swarm.of_nodes(host) == []


@pytest.mark.parametrize("fault", ["refuse_ssh", "hang_ssh", "change_host_key", "forget_operator"])
def test_a_host_that_lets_nobody_in_costs_seconds_and_is_named(swarm: Place, fault: str) -> None:
    getattr(swarm.lab, fault)("gpu-c")
    # A connection that is still open from before would let the operator in.
    for master in (swarm.folder / "r" / "ssh").glob("ssh-*"):
        master.unlink()
    try:
        began = time.monotonic()
        done = swarm("up", "-o", "json")
        assert (done.code, done.document["error"]["code"]) == (7, "HostUnreachable")
        assert "host gpu-c" in done.document["error"]["message"]
        assert time.monotonic() - began < 20
        assert swarm("up", "--on-unreachable", "skip").code == 7
        # Others see it serve all the same.
        assert swarm.states()["c"] == "ONLINE"
    finally:
        swarm.lab.serve_ssh("gpu-c")


def test_of_two_operators_at_once_one_is_told_and_one_who_waits_goes_on(swarm: Place) -> None:
    assert swarm("down", "c").code == 0
    with swarm.typed("up", "-m", "the first") as first:
        eventually(lambda: _held(swarm), within_s=30, every_s=0.05)
        second = swarm("up")
        third = swarm("up", "--lock-wait", "90s")
        first.communicate(timeout=60)

    assert (first.returncode, second.code, third.code) == (0, 9, 0)
    assert "(the first)" in second.err


def _held(swarm: Place) -> None:
    assert swarm("lock", "status", "-o", "json").data["holder"] is not None


def test_an_up_that_is_killed_half_way_is_settled_by_up_and_by_down(swarm: Place) -> None:
    assert swarm("down").code == 0
    swarm.nothing_left()
    with swarm.typed("up") as process:
        eventually(lambda: _some(swarm), within_s=60, every_s=0.1)
        os.kill(process.pid, signal.SIGKILL)

    assert swarm("up").code == 0
    swarm.healthy()
    assert swarm("down").code == 0
    swarm.nothing_left()


def _some(swarm: Place) -> None:
    assert any(swarm.of_nodes(host) for host in HOSTS[1:])
