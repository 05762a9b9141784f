"""`host check` and `host setup` as command lines; what they find has tests of its own."""

from __future__ import annotations

FILE = """\
version: 1
swarm: lab
hosts:
  gpu-a: {ssh: ops@192.0.2.11, python: /usr/bin/python3.11}
  here: {connect: local}
"""


def test_setup_of_a_host_whose_python_is_in_no_environment_is_refused_with_what_to_write(bare):
    (bare.folder / "swarm.yaml").write_text(FILE)
    done = bare("host", "setup")
    assert done.code == 5
    assert "error: host gpu-a runs /usr/bin/python3.11, which is not in an environment that can be made" in done.err
    assert "~/.local/share/swarmctl/venv/bin/python" in done.err


def test_setup_of_this_machine_has_nothing_to_do(bare):
    (bare.folder / "swarm.yaml").write_text(FILE)
    done = bare("host", "setup", "here", "-o", "json")
    assert (done.code, done.document["kind"]) == (0, "HostSetup")
    assert done.document["data"]["hosts"] == [{"host": "here", "outcome": "this machine", "steps": [], "error": None}]


def test_setup_from_a_folder_without_wheels_is_refused_with_the_way_to_fill_it(bare):
    (bare.folder / "swarm.yaml").write_text(FILE)
    done = bare("host", "setup", "here", "--wheelhouse", "none")
    assert done.code == 5
    assert "hint: swarmctl host wheelhouse none" in done.err


def test_a_host_that_the_file_does_not_name_is_a_mistake(bare):
    (bare.folder / "swarm.yaml").write_text(FILE)
    done = bare("host", "setup", "gpu-b")
    assert done.code == 2
    assert "error: the file has no host gpu-b" in done.err
