from __future__ import annotations

import pytest

from swarmctl.blocks import NodeName

LEFT_A, RIGHT_A, RIGHT_B = NodeName("left-a"), NodeName("right-a"), NodeName("right-b")
ALL = ["left-a", "left-b1", "left-b2", "right-a", "right-b"]


def test_up_starts_everything_tells_each_step_on_stderr_and_the_result_on_stdout(shell):
    done = shell("up")
    assert done.code == 0
    assert done.out.startswith("lab is up: 6 nodes ready after ")
    assert "bootstrap-0: online after" in done.err
    for name in ALL:
        assert f"{name}: started (pid" in done.err
        assert f"{name}: online after" in done.err


def test_up_for_the_second_time_has_nothing_to_do_and_says_so(shell):
    shell("up")
    again = shell("up", "-o", "json")
    assert (again.code, again.data["changes"], again.err) == (0, 0, "")
    assert shell("up").out == "nothing to do: 6 nodes as the file says\n"


def test_a_dry_run_shows_the_plan_and_starts_nothing(shell):
    plan, dry = shell("plan"), shell("up", "--dry-run")
    assert plan.out == dry.out
    assert "start            left-a       here  it does not run" in plan.out
    assert "6 to start" in plan.out
    assert shell("ps").out == "nothing runs\n"


def test_up_of_one_node_starts_it_and_the_bootstrap_peers_alone(shell):
    assert shell("up", "--only", "left-a").code == 0
    assert shell("ps", "-o", "name").out.split() == ["bootstrap-0", "left-a"]


def test_up_fails_with_the_culprits_last_log_lines_when_a_node_ends(shell):
    shell("plan")
    shell.host.doomed[RIGHT_B] = "exited with code 1"
    done = shell("up", "-o", "json")
    assert (done.code, done.document["kind"], done.data) == (1, "Up", None)
    error = done.document["error"]
    assert error["code"] == "NodeFailed"
    assert error["message"] == "node right-b on here ended before it was ready: exited with code 1"
    assert "exited with code 1" in error["reasons"][-1]
    assert "right-b: lost: exited with code 1" in done.err


def test_up_ends_at_its_deadline_and_says_whom_it_waits_for(shell):
    shell("plan")
    shell.host.stuck[RIGHT_A] = "loading"
    done = shell("up", "--timeout", "30s")
    assert done.code == 6
    assert "error: gave up after 30 s waiting for right-a" in done.err
    assert "hint: they go on; wait longer with: swarmctl up --timeout 120\n" in done.err
    assert "restart" not in done.err, "30 s are no sign that it hangs"
    assert "hint: if it hangs: swarmctl restart right-a" in shell("up", "--timeout", "5m").err


def test_a_healthy_swarm_gives_zero_and_the_verdict_in_the_first_line(shell):
    shell("up")
    done = shell("status")
    assert done.code == 0
    assert done.out.splitlines()[0] == "HEALTHY  every block on >= 2 gpus"
    assert "replicas  222222222222222222222222222222" in done.out


def test_a_killed_node_makes_status_negative_with_a_command_that_helps(shell):
    shell("up")
    killed = shell("kill", "left-a")
    assert killed.code == 0
    assert "warning: blocks 0:15 would have 1 replica instead of 2" in killed.err
    done = shell("status", "-o", "json")
    assert (done.code, done.data["verdict"]) == (4, "DEGRADED")
    assert done.document["error"]["code"] == "CheckFailed"
    assert done.document["error"]["hints"][0] == "swarmctl up --only left-a"
    states = {node["node"]: node["state"] for node in done.data["nodes"]}
    assert states == {**dict.fromkeys(ALL, "ONLINE"), "left-a": "CRASHED"}
    assert shell("up", "-q").code == 0
    assert shell("status", "-o", "name").out.split() == ALL


def test_the_killing_of_the_last_server_of_a_block_is_refused_and_changes_nothing(shell):
    shell("up")
    shell("kill", "right-b")
    done = shell("kill", "right-a")
    assert done.code == 5
    assert "error: killing right-a would leave blocks without a server" in done.err
    assert "hint: accept the gap: swarmctl kill right-a --allow-gap" in done.err
    assert shell("ps", "-o", "name").out.split() == ["bootstrap-0", "left-a", "left-b1", "left-b2", "right-a"]
    assert shell("kill", "right-a", "--allow-gap").code == 0
    status = shell("status")
    assert status.code == 4
    assert status.out.startswith("DOWN  blocks 15:30 have no server; right-a and right-b CRASHED\n")


def test_killing_the_last_bootstrap_peer_is_refused(shell):
    shell("up")
    done = shell("kill", "bootstrap-0")
    assert done.code == 5
    assert "error: killing bootstrap-0 would leave the swarm without a way in" in done.err
    assert "hint: accept the gap: swarmctl kill bootstrap-0 --allow-gap" in done.err


def test_a_swarm_whose_bootstrap_peer_is_dead_is_down_and_up_is_what_helps(shell):
    shell("up")
    assert shell("kill", "bootstrap-0", "--allow-gap").code == 0
    done = shell("status", "-o", "json")
    assert (done.code, done.data["verdict"]) == (4, "DOWN")
    assert "no way into the swarm; bootstrap-0 CRASHED" in done.document["error"]["message"]
    assert done.document["error"]["hints"] == ["swarmctl up"]
    assert shell("up").code == 0
    assert shell("status").code == 0


def test_a_broken_file_does_not_keep_anybody_from_stopping_what_runs(shell):
    shell("up")
    # The host in memory has no files; this folder is what a real one leaves.
    (shell.folder / ".local/state/swarmctl/lab").mkdir(parents=True)
    (shell.folder / "swarm.yaml").write_text("version: 1\nswarm: lab\nnodse: {}\n")
    done = shell("down")
    assert done.code == 3
    assert "hint: without the file: add --swarm NAME; here are: lab" in done.err
    assert shell("ps", "--swarm", "lab", "-o", "name").out.split() == ["bootstrap-0", *ALL]
    assert shell("down", "--swarm", "lab").out == "6 nodes down, nothing left\n"
    assert shell("ps", "--swarm", "lab").out == "nothing runs\n"


def test_a_swarm_of_an_unknown_name_is_a_usage_error_that_lists_the_known(shell):
    shell("up")
    (shell.folder / ".local/state/swarmctl/lab").mkdir(parents=True)
    done = shell("down", "--swarm", "lba")
    assert done.code == 2
    assert "there are: lab" in done.err


def test_killing_what_does_not_run_is_refused(shell):
    done = shell("kill", "left-a")
    assert (done.code, done.out) == (5, "")
    assert "node left-a does not run" in done.err


@pytest.mark.parametrize("verb", ["kill", "restart", "down"])
def test_a_dry_run_changes_nothing(shell, verb):
    shell("up")
    before = shell("ps", "-o", "name").out
    done = shell(verb, "left-a", "--dry-run", "-o", "json")
    assert (done.code, done.data["dry_run"]) == (0, True)
    assert shell("ps", "-o", "name").out == before


def test_restart_brings_each_node_back_before_the_next(shell):
    shell("up")
    done = shell("restart", "left-a", "right-a")
    assert (done.code, done.out) == (0, "2 nodes restarted and ready\n")
    told = [line.split(" (pid")[0] for line in done.err.splitlines() if "started" in line or "online" in line]
    assert [line.split(" after")[0] for line in told] == [
        "left-a: started",
        "left-a: online",
        "right-a: started",
        "right-a: online",
    ]
    assert shell("status").code == 0


def test_restarting_the_only_server_of_a_block_is_refused(shell):
    shell("up")
    shell("kill", "left-b1")
    done = shell("restart", "left-a")
    assert done.code == 5
    assert "blocks 0:8 would have no replica instead of 1" in done.err


def test_down_leaves_nothing_and_a_second_down_has_nothing_to_do(shell):
    shell("up")
    done = shell("down")
    assert (done.code, done.out) == (0, "6 nodes down, nothing left\n")
    assert shell("ps").out == "nothing runs\n"
    assert shell("down").out == "nothing ran, nothing to do\n"


def test_removing_keys_asks_and_without_somebody_to_ask_it_is_refused(shell):
    shell("up")
    refused = shell("down", "--purge")
    assert refused.code == 5
    assert "hint: swarmctl down --purge -y" in refused.err
    assert shell("down", "--purge", "-y").code == 0


def test_a_name_that_means_several_nodes_lists_them(shell):
    done = shell("kill", "left-b")
    assert done.code == 2
    assert "it could be left-b1, left-b2" in done.err


def test_a_wrong_name_comes_with_the_nearest_right_one(shell):
    done = shell("restart", "lefta")
    assert done.code == 2
    assert "did you mean left-a?" in done.err


def test_hints_carry_the_file_that_the_user_named(shell):
    done = shell("-c", str(shell.folder / "swarm.yaml"), "kill", "left-a")
    assert f"hint: swarmctl -c {shell.folder}/swarm.yaml status" in done.err


def test_redundancy_is_judged_for_what_runs_or_for_what_is_declared(shell):
    live = shell("verify", "redundancy", "-o", "json")
    assert (live.code, live.data["verdict"]) == (4, "GAP")
    assert live.document["warnings"] == ["no bootstrap peer runs: only processes are shown, nothing of the DHT"]
    declared = shell("verify", "redundancy", "--source", "config")
    assert declared.code == 0
    assert declared.out.startswith("REDUNDANT  every block on >= 2 gpus\n")


def test_a_stricter_question_names_the_thin_ranges_and_the_repair(shell):
    done = shell("verify", "redundancy", "--source", "config", "--by", "host", "-o", "json")
    assert done.code == 4
    assert done.data["thin"] == [{"blocks": "0:30", "replicas": 1, "wanted": 2}]
    assert [repair["blocks"] for repair in done.data["repairs"]] == ["0:30"]
    assert done.document["error"]["code"] == "CoverageError"


def test_what_is_declared_and_down_is_to_be_started_before_anything_is_added(shell):
    shell("up")
    shell("kill", "right-b")
    done = shell("verify", "redundancy")
    assert done.code == 4
    assert "Declared, but not up: right-b CRASHED; with them every block has enough replicas.\n" in done.out
    assert "hint: swarmctl up --only right-b\n" in done.out
    assert "Smallest repair" not in done.out
    assert shell("verify", "redundancy", "-o", "json").document["error"]["hints"][0] == "swarmctl up --only right-b"
