"""What the setup of several hosts comes to, and where it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.builders import a_host

from swarmctl.blocks import HostName
from swarmctl.errors import HostUnreachable, PartialFailure, Refused, SwarmctlError, UsageError
from swarmctl.operations.hosts.setup import HostSetup, Outcome, failure_of, reach_to
from swarmctl.spec import DEFAULT_PYTHON


def ended(host: str, outcome: Outcome = Outcome.DONE, error: SwarmctlError | None = None) -> HostSetup:
    return HostSetup(host=HostName(host), outcome=Outcome.FAILED if error else outcome, error=error)


def test_hosts_that_were_all_set_up_are_no_failure() -> None:
    assert failure_of([ended("a"), ended("b", Outcome.NOTHING), ended("here", Outcome.LOCAL)]) is None


def test_one_host_that_fails_beside_others_is_a_partial_failure_with_its_last_lines() -> None:
    error = SwarmctlError("pip cannot install the packages on b", reasons=["ERROR: no space left"], hints=["df"])

    failure = failure_of([ended("a"), ended("b", error=error)])

    assert isinstance(failure, PartialFailure)
    assert failure.message == "b could not be set up"
    assert failure.reasons == ("b: pip cannot install the packages on b", "ERROR: no space left")
    assert failure.hints == ("df",)


@pytest.mark.parametrize("kind", [HostUnreachable, Refused, SwarmctlError])
def test_where_nothing_was_done_the_failure_is_of_the_kind_of_the_hosts(kind: type[SwarmctlError]) -> None:
    failure = failure_of([ended("here", Outcome.LOCAL), ended("a", error=kind("x")), ended("b", error=kind("y"))])

    assert type(failure) is kind


def test_the_environment_is_the_one_of_the_files_python_or_the_usual_one() -> None:
    host = a_host("a")

    usual, own = (reach_to(one, Path("/run"), "ssh -F x") for one in (host, replace(host, python="/opt/s/bin/python")))

    assert usual is not None
    assert own is not None
    assert (usual.python, usual.command, own.python) == (DEFAULT_PYTHON, ("ssh", "-F", "x"), "/opt/s/bin/python")
    assert reach_to(replace(host, ssh=None), Path("/run"), None) is None


def test_a_python_that_is_in_no_environment_is_refused() -> None:
    with pytest.raises(Refused, match=r"host a runs /usr/bin/python3.11, which is not in an environment"):
        reach_to(replace(a_host("a"), python="/usr/bin/python3.11"), Path("/run"), None)


def test_an_ssh_command_that_makes_no_sense_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="SWARMCTL_SSH makes no sense"):
        reach_to(a_host("a"), Path("/run"), "ssh '")
