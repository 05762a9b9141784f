from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from swarmctl.blocks import HostName, NodeName
from swarmctl.operations.systemd import UnitFacts, units

FACTS = UnitFacts(
    swarm="lab",
    node=NodeName("a0"),
    host=HostName("gpu-a"),
    python="/opt/swarm/bin/python",
    launch="/var/lib/swarm/lab/a0/launch.json",
)


def lines(facts: UnitFacts) -> dict[str, str]:
    ((_, text),) = units([facts]).items()
    settings = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key: value for key, _, value in settings}


def test_a_unit_runs_the_nodes_runner_and_starts_it_again_unless_it_was_stopped_or_another_has_the_node() -> None:
    said = lines(FACTS)

    assert said["ExecStart"] == ("/opt/swarm/bin/python -m swarmctl.node --launch /var/lib/swarm/lab/a0/launch.json")
    assert (said["Type"], said["Restart"], said["RestartPreventExitStatus"]) == ("exec", "on-failure", "9")
    assert (said["KillMode"], said["WantedBy"]) == ("mixed", "default.target")


def test_systemd_waits_longer_for_a_runner_than_a_runner_for_its_child() -> None:
    from swarmctl.node import runner

    assert float(lines(FACTS)["TimeoutStopSec"]) > runner.GRACE_S + 2 * runner._SWEEP_S


def test_what_means_something_to_systemd_is_taken_as_it_is_written() -> None:
    odd = replace(FACTS, python='/opt/my "swarm"/python', launch="/var/100%/$HOME/launch.json")

    said = lines(odd)

    assert said["ExecStart"] == (r'"/opt/my \"swarm\"/python" -m swarmctl.node --launch /var/100%%/$$HOME/launch.json')
    assert said["ConditionPathExists"] == "/var/100%%/$HOME/launch.json"


def test_every_node_has_a_unit_of_its_own_name() -> None:
    second = replace(FACTS, node=NodeName("b0"), swarm="other")

    assert [*units([FACTS, second])] == ["swarmctl-lab-a0.service", "swarmctl-other-b0.service"]


def test_systemd_itself_finds_no_fault_with_a_unit(tmp_path: Path) -> None:
    ((name, text),) = units([replace(FACTS, python=sys.executable)]).items()
    file = tmp_path / name
    file.write_text(text)
    program = shutil.which("systemd-analyze")
    if program is None:
        # Where there is none, at least its grammar: sections, and one setting a line.
        assert all(line.startswith(("#", "[")) or "=" in line for line in text.splitlines() if line)
        return

    done = subprocess.run(
        [program, "verify", "--user", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )

    assert name not in done.stderr
    assert "Unknown" not in done.stderr


def test_units_are_printed_for_what_has_been_started(shell) -> None:
    assert shell("up").code == 0

    done, names = shell("export", "systemd"), shell("export", "systemd", "-o", "name")

    assert names.out.split()[:2] == ["swarmctl-lab-bootstrap-0.service", "swarmctl-lab-left-a.service"]
    assert len(names.out.split()) == 6
    assert "\nDescription=swarmctl node left-a of swarm lab\n" in done.out
    assert done.out.count("[Service]") == 6


def test_units_of_some_nodes_are_written_into_a_folder(shell) -> None:
    shell("up")

    file = shell.folder / "units" / "swarmctl-lab-left-a.service"
    done = shell("export", "systemd", "left-a", "--dir", str(file.parent), "-o", "json")

    assert (done.code, done.document["kind"]) == (0, "Units")
    assert [one["unit"] for one in done.data] == [file.name]
    assert file.read_text() == done.data[0]["text"]
    assert [*file.parent.iterdir()] == [file]


def test_nodes_that_were_never_started_have_nothing_that_a_unit_could_start(shell) -> None:
    done = shell("export", "systemd")

    assert done.code == 5
    assert "none of these nodes has ever been started" in done.err
    assert "swarmctl up" in done.err
