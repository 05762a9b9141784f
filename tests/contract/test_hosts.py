"""Looking at a host that is really behind ssh, calls between listeners, and the wheel that is installed there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import sshd
from support.eventually import eventually
from support.needed import unless

from swarmctl import build, ports, processes
from swarmctl.blocks import HostName, NodeName
from swarmctl.node.checkup import find_model
from swarmctl.node.dial import Call, Listening, call
from swarmctl.operations.hosts.cards import read_cards, write_cards
from swarmctl.operations.hosts.check import check, precheck
from swarmctl.operations.hosts.findings import Level, Topic
from swarmctl.operations.hosts.remote import Remote
from swarmctl.operations.hosts.wheel import build_wheel
from swarmctl.operations.opening import open_site
from swarmctl.operations.site import Site
from swarmctl.spec import BootstrapSpec, HostSpec, ModelSpec, SwarmSpec
from swarmctl.transport.reach import Reach

FAR, NEAR = HostName("far"), HostName("near")


@pytest.fixture(scope="module")
def served() -> Iterator[sshd.Sshd]:
    unless(sshd.why_not())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-")))
        there = {"SWARMCTL_STATE": str(folder / "state"), "SWARMCTL_RUN": str(folder / "run"), "HOME": str(folder)}
        yield stack.enter_context(sshd.serving(folder, there))


@pytest.fixture
def port() -> int:
    (chosen,) = ports.choose("127.0.0.1", [0])
    return chosen


@pytest.fixture
def site(served: sshd.Sshd, port: int, tmp_path: Path) -> Iterator[Site]:
    spec = SwarmSpec(
        name="lab",
        model=ModelSpec(source="lab/model", dht_prefix="lab", num_blocks=8, hidden_size=8),
        hosts={
            NEAR: HostSpec(name=NEAR),
            FAR: HostSpec(name=FAR, ssh="far", address="127.0.0.1", python=sys.executable),
        },
        bootstraps=(BootstrapSpec(name=NodeName("bootstrap-0"), host=FAR, port=port),),
        nodes={},
    )
    opened = open_site(spec, tmp_path / "s", served.folder / "r", python=sys.executable, ssh=" ".join(served.command))
    yield opened
    opened.close()


def test_a_host_behind_ssh_that_is_fit_is_called_by_the_others_and_left_as_it_was(site: Site, port: int) -> None:
    found = check(site)

    assert [one for one in found.findings if one.level is not Level.OK] == []
    assert found.error is None
    assert [(one.source, one.target.host, one.words) for one in found.dials.calls] == [("near", "far", None)]
    eventually(lambda: _must_be_free(port), within_s=5.0, every_s=0.05)


def _must_be_free(port: int) -> None:
    assert ports.is_free("127.0.0.1", port)


def test_a_port_that_somebody_has_is_found_with_the_one_who_has_it(site: Site, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        (found,) = precheck(site)

    assert (found.host, found.topic, found.level) == (FAR, Topic.PORTS, Level.FAULT)
    assert found.sentence is not None
    assert found.sentence.startswith(f"port {port} of bootstrap-0 on host far is taken by process {os.getpid()} (")


def test_a_listener_answers_with_its_line_and_ends_when_it_is_told() -> None:
    listener = _listen("right")
    try:
        (opened,) = listener.opened
        assert opened is not None
        assert call(Call(ip="127.0.0.1", port=opened, nonce="right")) is None
        assert call(Call(ip="127.0.0.1", port=opened, nonce="wrong")) == "something else answers there"
        assert call(Call(ip="127.0.0.1", port=opened)) is None
    finally:
        assert processes.send(listener.pid, listener.started, signal.SIGKILL)
    eventually(lambda: _must_refuse(opened), within_s=5.0, every_s=0.02)


def _must_refuse(port: int) -> None:
    assert call(Call(ip="127.0.0.1", port=port)) == "connection refused"


def _listen(nonce: str) -> Listening:
    argv = [sys.executable, "-m", "swarmctl.node.dial", "listen"]
    said = json.dumps({"ip": "127.0.0.1", "ports": [0], "nonce": nonce})
    done = subprocess.run(argv, input=said, capture_output=True, text=True, timeout=20, check=True)
    answer = json.loads(done.stdout)
    return Listening(pid=answer["pid"], started=answer["started"], opened=tuple(answer["opened"]))


def test_a_model_folder_tells_its_blocks_and_what_its_index_names_and_it_lacks(tmp_path: Path) -> None:
    assert not find_model(tmp_path / "none").exists
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps(
        {
            "__metadata__": {},
            "model.layers.0.mlp.weight": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]},
            "model.layers.0.norm.weight": {"dtype": "F16", "shape": [1], "data_offsets": [8, 10]},
            "model.layers.12.mlp.weight": {"dtype": "F16", "shape": [4], "data_offsets": [10, 18]},
            "lm_head.weight": {"dtype": "F16", "shape": [1], "data_offsets": [18, 20]},
        }
    ).encode()
    (tmp_path / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(20))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    found = find_model(tmp_path)

    assert (found.exists, found.missing, found.block_bytes) == (True, ("two.safetensors",), {0: 10, 12: 8})


def test_the_cards_of_a_host_are_remembered_beside_those_of_others(tmp_path: Path) -> None:
    assert read_cards(tmp_path, "lab") == {}
    write_cards(tmp_path, "lab", {FAR: (0, 1)})
    write_cards(tmp_path, "lab", {NEAR: ()})

    assert read_cards(tmp_path, "lab") == {FAR: (0, 1), NEAR: ()}
    (tmp_path / "lab" / "hosts.json").write_text("{")
    assert read_cards(tmp_path, "lab") == {}


def test_the_wheel_is_this_very_build_with_the_presets_inside(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "there")
    script = (
        "import pathlib, swarmctl; from swarmctl import build; from swarmctl.config import presets; "
        "print(pathlib.Path(swarmctl.__file__).parent, build.digest(), *presets())"
    )
    argv = [sys.executable, "-c", script]
    there = str(tmp_path / "there")
    done = subprocess.run(
        argv, cwd=there, env={**os.environ, "PYTHONPATH": there}, capture_output=True, text=True, check=True
    )

    place, digest, *names = done.stdout.split()
    assert (place, digest) == (f"{there}/swarmctl", build.digest())
    assert "reference" in names


def test_a_file_is_copied_whole_and_a_script_fails_with_its_last_lines(served: sshd.Sshd, tmp_path: Path) -> None:
    reach = Reach(host=FAR, destination="far", python="~/env/bin/python", command=served.command)
    remote = Remote(reach, "~/env")
    (tmp_path / "x.whl").write_bytes(bytes(range(256)) * 5000)

    remote.store(tmp_path / "x.whl")

    assert (served.folder / "env.wheels" / "x.whl").read_bytes() == (tmp_path / "x.whl").read_bytes()
    heard: list[str] = []
    with pytest.raises(Exception, match="three") as failed:
        remote.script('echo "$1"; echo two; echo three; exit 3\n', hear=heard.append)
    assert failed.value.context == {"status": 3}  # type: ignore[attr-defined]
    assert heard == ["~/env", "two", "three"]
