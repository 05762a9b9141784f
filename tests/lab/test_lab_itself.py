"""The lab's hosts are hosts, its faults are the faults, and nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.eventually import eventually

from swarmctl import processes
from swarmctl.lab import Lab, why_not

pytestmark = pytest.mark.lab

A, B = "gpu-a", "gpu-b"
OWNER = """\
import sys, threading
from pathlib import Path
from swarmctl.lab import Lab
with Lab(Path(sys.argv[1]), ("gpu-a",)) as lab:
    lab.slow("gpu-a")
    print(lab.address("gpu-a"), flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Below the /tmp that hosts hide: a folder of the lab must be seen there all the same.
    made = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
    with Lab(made / "lab", (A, B)) as lab:
        yield lab
    shutil.rmtree(made, ignore_errors=True)


def ssh(lab: Lab, host: str, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["-F", str(lab.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=2"]
    return subprocess.run(["ssh", *options, host, *words], capture_output=True, text=True, check=False, timeout=20)


def interfaces(owner: int) -> set[str]:
    """The bridge of the lab of this process, and its lines; other labs may come and go meanwhile."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    bridges = [link["ifname"] for link in links if f" {owner} " in link.get("ifalias", "")]
    return {link["ifname"] for link in links for bridge in bridges if link["ifname"][3:7] == bridge[3:7]}


def every_interface() -> set[str]:
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    return {link["ifname"] for link in links}


def round_trip_s(lab: Lab, host: str, count: int = 5) -> float:
    """The shortest of some: what the line takes, without what a busy machine adds."""
    taken = []
    for _ in range(count):
        began = time.monotonic()
        socket.create_connection((lab.address(host), 22), 10).close()
        taken.append(time.monotonic() - began)
    return min(taken)


def test_hosts_have_names_addresses_processes_and_files_of_their_own(lab: Lab) -> None:
    for host in (A, B):
        assert lab.run(host, ["hostname"]).strip() == host
        assert f" {lab.address(host)}/24 " in lab.run(host, ["ip", "-4", "addr", "show", "eth0"])
        for path in ("/root", "/tmp", "/run", "/dev/shm"):
            lab.run(host, ["sh", "-c", f"echo {host} >{path}/whose"])
    assert lab.address(A) != lab.address(B)
    for path in ("/root", "/tmp", "/run", "/dev/shm"):
        assert [lab.run(host, ["cat", f"{path}/whose"]).strip() for host in (A, B)] == [A, B]
        assert not Path(path, "whose").exists()
    assert (lab.disk(A, "/root") / "whose").read_text().strip() == A
    assert all("sshd" in line for line in lab.processes(A).values()), lab.processes(A)
    assert str(os.getpid()) not in lab.run(A, ["ls", "/proc"]).split()


def test_a_session_has_the_bare_environment_of_ssh_and_can_run_this_python(lab: Lab) -> None:
    names = {line.partition("=")[0] for line in ssh(lab, A, "env").stdout.splitlines()}

    assert names <= {"SHELL", "PWD", "LOGNAME", "HOME", "USER", "SHLVL", "PATH", "MAIL", "_"} | {
        "SSH_CONNECTION",
        "SSH_CLIENT",
    }
    done = ssh(lab, A, sys.executable, "-c", "'import swarmctl.lab, os; print(os.environ[\"HOME\"])'")
    assert (done.returncode, done.stdout.strip()) == (0, "/root"), done.stderr


def test_a_cable_that_is_pulled_is_silent_and_connections_outlive_it(lab: Lab) -> None:
    echo = "import socket\ns = socket.create_server(('', 7))\nc = s.accept()[0]\nwhile d := c.recv(9): c.send(d)"
    argv = ["setsid", "--fork", sys.executable, "-c", echo]
    lab.run(A, ["sh", "-c", '"$@" >/dev/null 2>&1 </dev/null', "sh", *argv])

    def connected() -> socket.socket:
        try:
            return socket.create_connection((lab.address(A), 7), 5)
        except ConnectionRefusedError:
            raise AssertionError("nobody listens yet") from None

    with eventually(connected, within_s=10) as held:
        lab.unplug(A)
        try:
            with pytest.raises(TimeoutError):
                socket.create_connection((lab.address(A), 22), 0.5)
            held.send(b"late")
            held.settimeout(0.3)
            with pytest.raises(TimeoutError):
                held.recv(9)
        finally:
            lab.plug(A)
        held.settimeout(10)
        assert held.recv(9) == b"late"


def test_a_slow_line_is_slow_both_ways_also_after_it_was_unplugged_until_it_is_normal(lab: Lab) -> None:
    before = round_trip_s(lab, A)
    lab.slow(A, delay_ms=50, loss_percent=0)
    try:
        # Hosts ask anew who has the operator's address: the answer must come by the slow line too.
        lab.run(A, ["ip", "neigh", "flush", "all"])
        assert round_trip_s(lab, A) >= 0.099
        lab.unplug(A)
        lab.plug(A)
        assert round_trip_s(lab, A) >= 0.099
    finally:
        lab.normal(A)
    assert before < 0.05
    assert round_trip_s(lab, A) < 0.05


def test_a_line_that_loses_everything_lets_nothing_through(lab: Lab) -> None:
    lab.slow(A, delay_ms=1, loss_percent=100)
    try:
        with pytest.raises(OSError, match=r"timed out|No route"):
            socket.create_connection((lab.address(A), 22), 0.5)
    finally:
        lab.normal(A)


def test_a_cut_of_the_power_ends_every_process_and_keeps_the_disk(lab: Lab) -> None:
    lab.run(B, ["sh", "-c", "echo kept >/root/kept; echo lost >/tmp/lost; setsid --fork sleep 1000 >/dev/null 2>&1"])
    inside = lab.run(B, ["readlink", "/proc/1/ns/pid"]).strip()
    assert len(_in_namespace(inside)) > 2

    lab.power_off(B)
    assert _in_namespace(inside) == []
    for _ in range(3):
        lab.power_on(B)
        lab.power_off(B)
    lab.slow(A, delay_ms=1)
    lab.power_off(A)
    lab.power_on(A)
    lab.power_on(B)

    assert lab.run(B, ["cat", "/root/kept"]).strip() == "kept"
    assert lab.run(B, ["ls", "/tmp"]).split().count("lost") == 0
    assert [ssh(lab, host, "hostname").stdout.strip() for host in (A, B)] == [A, B]


def _in_namespace(namespace: str) -> list[int]:
    found = []
    for pid in processes.read_processes():
        try:
            if str(Path(f"/proc/{pid}/ns/pid").readlink()) == namespace:
                found.append(pid)
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("refuse_ssh", "Connection refused"),
        ("hang_ssh", "timed out"),
        ("change_host_key", "HOST IDENTIFICATION HAS CHANGED"),
        ("forget_operator", "Permission denied"),
    ],
)
def test_each_fault_of_ssh_is_told_as_what_it_is_and_can_be_undone(lab: Lab, fault: str, says: str) -> None:
    getattr(lab, fault)(A)
    broken = ssh(lab, A, "true")
    lab.serve_ssh(A)

    assert (broken.returncode, says in broken.stderr) == (255, True), broken.stderr
    assert ssh(lab, A, "true").returncode == 0


def test_a_session_that_is_open_outlives_the_end_of_sshd(lab: Lab) -> None:
    argv = ["ssh", "-F", str(lab.ssh_config), A, "echo here; cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        assert session.stdout.readline() == "here\n"
        lab.refuse_ssh(A)
        lab.serve_ssh(A)
        session.stdin.write("still\n")
        session.stdin.close()
        assert session.stdout.read() == "still\n"


def test_a_clock_is_off_for_what_ssh_starts_and_for_nobody_else(lab: Lab) -> None:
    lab.set_clock_off(A, 3600)
    off = float(ssh(lab, A, "date", "+%s").stdout) - time.time()
    lab.set_clock_off(A, 0)

    assert 3590 < off < 3610
    assert abs(float(ssh(lab, A, "date", "+%s").stdout) - time.time()) < 10
    assert abs(float(ssh(lab, B, "date", "+%s").stdout) - time.time()) < 10


def test_a_second_lab_does_not_touch_the_first(lab: Lab, folder: Path) -> None:
    mine = interfaces(os.getpid())
    with Lab(folder / "lab", (A,)) as other:
        assert other.address(A) != lab.address(A)
        assert ssh(other, A, "hostname").stdout.strip() == A
        assert ssh(lab, A, "hostname").stdout.strip() == A
    assert ssh(lab, A, "true").returncode == 0
    assert interfaces(os.getpid()) == mine


def test_an_owner_that_is_killed_leaves_no_process_and_the_next_lab_clears_its_lines(lab: Lab, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder / "lab")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        family = processes.below(processes.read_processes(), owner.pid)
        assert len(family) >= 3, family
        lines = interfaces(owner.pid)
        assert len(lines) >= 2
        owner.send_signal(signal.SIGKILL)

    def gone() -> None:
        left = [one for one in family if processes.is_alive(one.pid, one.started)]
        assert left == []

    eventually(gone, within_s=10)
    with Lab(folder / "next", (A,)) as after:
        assert ssh(after, A, "true").returncode == 0
    assert interfaces(owner.pid) == set()
    assert not lines & every_interface()


def test_a_machine_without_the_programs_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmctl.lab.needs.PATH", "/nowhere")

    assert "apt install" in str(why_not())


def test_a_root_that_may_not_make_namespaces_is_told_so() -> None:
    asking = "from swarmctl.lab import why_not; print(why_not())"
    bare = ["setpriv", "--bounding-set=-sys_admin,-net_admin", sys.executable, "-c", asking]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)

    assert "--privileged" in done.stdout
