from __future__ import annotations

from pathlib import Path

import pytest
from support.builders import a_spec
from unit.test_plan import a_launch

from swarmctl.node import child
from swarmctl.store import NodeFiles

FILES = NodeFiles(folder=Path("/state/lab/a0"), sockets=Path("/run/x"))
SPEC = a_spec()


def test_a_server_sees_its_card_alone_and_uses_the_threads_it_is_given() -> None:
    launch = a_launch(SPEC, "a0", gpu=3, settings={"threads": 4})

    values = child.environment(launch, FILES, {"PATH": "/bin", "OMP_NUM_THREADS": "64"})

    assert values["CUDA_VISIBLE_DEVICES"] == "3"
    assert values["OMP_NUM_THREADS"] == values["MKL_NUM_THREADS"] == "4"
    assert values["PATH"] == "/bin"
    assert values["SWARMCTL_NODE"] == "/state/lab/a0"


def test_a_server_without_a_card_or_threads_inherits_both() -> None:
    values = child.environment(a_launch(SPEC, "a0"), FILES, {"CUDA_VISIBLE_DEVICES": "1"})

    assert values["CUDA_VISIBLE_DEVICES"] == "1"
    assert "OMP_NUM_THREADS" not in values


def test_a_bootstrap_peer_sees_no_card() -> None:
    assert child.environment(a_launch(SPEC, "boot"), FILES, {})["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("source", "offline"), [("/", True), ("petals-team/StableBeluga2", False)])
def test_no_hub_is_asked_for_a_model_in_a_folder(source: str, offline: bool) -> None:
    values = child.environment(a_launch(SPEC, "a0", model_source=source), FILES, {})

    assert (values.get("HF_HUB_OFFLINE") == "1") is offline
    assert (values.get("TRANSFORMERS_OFFLINE") == "1") is offline


def test_each_kind_of_node_has_its_program() -> None:
    for name, program in (("a0", "swarmctl.upstream.server"), ("boot", "swarmctl.upstream.bootstrap")):
        argv = child.command(a_launch(SPEC, name), FILES)
        assert argv[1:] == ("-m", program, "--launch", "/state/lab/a0/launch.json")
