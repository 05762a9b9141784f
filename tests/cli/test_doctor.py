from __future__ import annotations

import importlib.util

import pytest

from swarmctl.blocks import NodeName
from swarmctl.operations import doctor


def levels(done) -> dict[str, str]:
    return {check["name"]: check["level"] for check in done.data["checks"]}


def test_a_fit_machine_gives_zero_and_lists_what_is_patched(shell):
    done = shell("doctor", "-o", "json")
    assert (done.code, done.data["fit"]) == (0, True)
    assert levels(done)["swarm file"] == "ok"
    assert {"sessions-recover", "daemon-dies-with-us"} <= {patch["name"] for patch in done.data["patches"]}


def test_missing_petals_comes_with_the_command_that_installs_it(shell, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "petals" else known(name))
    done = shell("doctor", "-o", "json")
    assert (done.code, levels(done)["petals"]) == (4, "failed")
    assert done.document["error"]["hints"] == ["pip install --no-deps petals==2.2.0.post1"]


def test_a_python_that_cannot_work_is_named_with_the_remedy(shell, monkeypatch):
    monkeypatch.setattr(doctor, "_PYTHONS", ((3, 8), (3, 9)))
    done = shell("doctor")
    assert done.code == 4
    assert "hint: install Python 3.11" in done.out


def test_a_folder_for_sockets_that_is_too_long_is_found_ahead_of_time(shell):
    shell.env["SWARMCTL_RUN"] = "/tmp/" + "x" * 90
    done = shell("doctor", "-o", "json")
    assert (done.code, levels(done)["socket paths"]) == (4, "failed")


def test_an_invalid_file_is_named_with_the_command_that_shows_its_faults(shell):
    (shell.folder / "swarm.yaml").write_text("version: 2\n")
    done = shell("doctor")
    assert done.code == 4
    assert f"hint: swarmctl config validate -c {shell.folder}/swarm.yaml" in done.out


def test_without_a_swarm_file_there_is_nothing_to_say_about_it(bare):
    assert "swarm file" not in levels(bare("doctor", "-o", "json"))


@pytest.mark.parametrize("name", ["state", "run"])
def test_a_folder_below_a_file_cannot_be_made(bare, name):
    (bare.folder / "file").write_text("")
    bare.env[f"SWARMCTL_{name.upper()}"] = str(bare.folder / "file" / "x")
    assert levels(bare("doctor", "-o", "json"))[f"{name} folder"] == "failed"


def test_nothing_is_said_of_servers_that_nobody_sees(shell):
    assert "servers" not in levels(shell("doctor", "-o", "json"))


def test_servers_without_the_patches_are_named_with_the_command_that_replaces_them(shell):
    shell("up")
    fit = shell("doctor")
    shell.host.stock.add(NodeName("left-b1"))
    done = shell("doctor", "-o", "json")

    assert "servers       5 online, all with swarmctl's patches" in fit.out
    (servers,) = [check for check in done.data["checks"] if check["name"] == "servers"]
    assert servers["level"] == "warning"
    assert servers["found"] == "5 online, of which without swarmctl's patches: left-b1"
    assert servers["hint"] == f"swarmctl restart left-b1 -c {shell.folder}/swarm.yaml"
    assert done.code == 0
