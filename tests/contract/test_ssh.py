"""What is ssh's alone: lines that fail, hosts that are not what they should be, words on their way to a shell."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sshd
from support.eventually import eventually
from support.needed import unless

from swarmctl import processes
from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import HostNotSetUp, HostUnreachable
from swarmctl.transport.oplock import LockNote
from swarmctl.transport.quoting import shell_line
from swarmctl.transport.reach import Reach, ssh_command
from swarmctl.transport.ssh import SshTransport

NOTE = LockNote(who="ada@desk", doing="up", since="2026-01-02T03:04:05+00:00")


@pytest.fixture(scope="module")
def served() -> Iterator[sshd.Sshd]:
    unless(sshd.why_not())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-")))
        there = {"SWARMCTL_STATE": str(folder / "state"), "SWARMCTL_RUN": str(folder / "run")}
        yield stack.enter_context(sshd.serving(folder, there))


@pytest.fixture
def reach(served: sshd.Sshd) -> Reach:
    return Reach(host=HostName("far"), destination="far", python=sys.executable, command=served.command)


@pytest.fixture
def line(reach: Reach) -> Iterator[SshTransport]:
    transport = SshTransport(reach, "lab")
    yield transport
    transport.close()


def agents() -> list[processes.ProcessSeen]:
    return [
        one
        for one in processes.read_processes().values()
        if b"swarmctl.node.agent" in Path(f"/proc/{one.pid}/cmdline").read_bytes()
        and b"python" in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")[0]
    ]


def mine(line: SshTransport) -> processes.ProcessSeen:
    (note,) = [line.read_lock()]
    assert note is not None
    found = processes.read_process(note.pid)
    assert found is not None
    return found


# --- words ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))), min_size=1, max_size=5)
)
def test_a_shell_gives_back_the_words_that_were_put_in(words: list[str]) -> None:
    show = (sys.executable, "-I", "-S", "-c", "import os, sys; os.write(1, repr(sys.argv[1:]).encode())")

    done = subprocess.run(["/bin/sh", "-c", shell_line([*show, *words])], capture_output=True, check=True)

    assert done.stdout.decode() == repr(words)


def test_only_a_program_in_the_home_folder_of_the_far_side_is_looked_up_there() -> None:
    assert shell_line(["~/a b/python", "~/x", "$HOME"]) == "~/'a b/python' '~/x' '$HOME'"


@pytest.mark.parametrize("words", [[], ["a", "b\0c"]])
def test_what_no_shell_can_pass_on_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"a command has|a NUL"):
        shell_line(words)


def test_another_ssh_is_given_as_a_shell_would_split_it() -> None:
    assert ssh_command(None) == ssh_command("  ") == ("ssh",)
    assert ssh_command("ssh -F '/a b/config'") == ("ssh", "-F", "/a b/config")


def test_a_word_of_the_command_is_never_an_option_of_ssh(reach: Reach) -> None:
    argv = reach.argv(["-oProxyCommand=touch /tmp/x"])

    assert argv[argv.index("--") + 1 :] == ["far", "'-oProxyCommand=touch /tmp/x'"]
    assert ("-o", "BatchMode=yes") in set(pairwise(argv))


# --- hosts that are not what they should be ------------------------------------------------------------------------


def test_a_host_where_nothing_listens_is_unreachable_with_the_reason(reach: Reach) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    broken = SshTransport(replace(reach, command=(*reach.command, "-p", str(port))), "lab")

    with pytest.raises(HostUnreachable, match=r"host far \(far\): nothing listens for ssh there") as refused:
        broken.survey()

    assert refused.value.exit_code == 7
    assert any("Connection refused" in reason for reason in refused.value.reasons)
    assert refused.value.hints[0].endswith(" far true")


def test_a_host_that_accepts_and_says_nothing_is_given_up(reach: Reach) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        broken = SshTransport(replace(reach, command=(*reach.command, "-p", str(port), "-oConnectTimeout=1")), "lab")
        with pytest.raises(HostUnreachable, match="accepts connections there and says nothing"):
            broken.survey()


def test_a_host_with_another_key_is_not_talked_to(served: sshd.Sshd, reach: Reach, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    key = (served.folder / "client.pub").read_text().split()
    other.write_text(f"[127.0.0.1]:{served.port} {key[0]} {key[1]}\n")
    broken = SshTransport(replace(reach, command=(*reach.command, f"-oUserKnownHostsFile={other}")), "lab")

    with pytest.raises(HostUnreachable, match="its host key is not the one that is known here"):
        broken.facts()


def test_a_host_that_does_not_know_the_key_says_so(reach: Reach, tmp_path: Path) -> None:
    key = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = tmp_path / "config"
    config.write_text(
        f"Host far\n  IdentityFile {key}\n" + Path(reach.command[2]).read_text().replace("client", "none")
    )
    broken = SshTransport(replace(reach, command=("ssh", "-F", str(config))), "lab")

    with pytest.raises(HostUnreachable, match="it does not accept your key"):
        broken.facts()


def test_a_host_without_that_python_has_to_be_set_up(reach: Reach) -> None:
    broken = SshTransport(replace(reach, python="~/no/such/python"), "lab")

    with pytest.raises(HostNotSetUp, match=r"there is no ~/no/such/python there") as bare:
        broken.survey()

    assert bare.value.hints == ("swarmctl host setup far",)


def test_a_python_without_swarmctl_has_to_be_set_up(reach: Reach) -> None:
    broken = SshTransport(replace(reach, python="/usr/bin/python3"), "lab")

    with pytest.raises(HostNotSetUp, match="has no swarmctl"):
        broken.survey()


def test_a_host_with_another_version_is_not_talked_to(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmctl.transport.ssh.__version__", "9.9.9")

    with pytest.raises(HostNotSetUp, match="another swarmctl is installed there") as other:
        SshTransport(reach, "lab").survey()

    assert "here 9.9.9" in other.value.reasons[0]


# --- lines ---------------------------------------------------------------------------------------------------------


def test_a_host_that_did_not_answer_is_not_asked_again_at_once(reach: Reach) -> None:
    broken = SshTransport(replace(reach, python="/nowhere/python"), "lab")
    with pytest.raises(HostUnreachable) as first:
        broken.survey()
    began = time.monotonic()

    with pytest.raises(HostUnreachable) as second:
        broken.survey()

    assert second.value is first.value
    assert time.monotonic() - began < 0.05


def test_an_agent_that_dies_is_a_host_that_does_not_answer_and_takes_the_lock_with_it(
    line: SshTransport, reach: Reach
) -> None:
    line.take_lock(NOTE)
    agent = mine(line)
    processes.send(agent.pid, agent.started, signal.SIGKILL)

    with pytest.raises(HostUnreachable):
        eventually_raises(line)

    other = SshTransport(reach, "lab")
    assert other.take_lock(NOTE) is None
    other.close()


def eventually_raises(line: SshTransport) -> None:
    """Ask until the line is found dead; an answer in time is none that a dead agent gives."""

    def ask() -> None:
        line.survey()
        raise AssertionError("it still answers")

    eventually(ask, within_s=10.0, every_s=0.05)


def test_a_line_that_is_closed_leaves_no_agent(line: SshTransport) -> None:
    line.take_lock(NOTE)
    agent = mine(line)

    line.close()

    def gone() -> None:
        assert not processes.is_alive(agent.pid, agent.started)

    eventually(gone, within_s=10.0, every_s=0.05)


def test_an_operator_that_is_killed_leaves_no_agent_and_no_lock(reach: Reach) -> None:
    program = (
        "import sys\nfrom swarmctl.blocks import HostName\nfrom swarmctl.transport.oplock import LockNote\n"
        "from swarmctl.transport.reach import Reach\nfrom swarmctl.transport.ssh import SshTransport\n"
        "line = SshTransport(Reach(host=HostName('far'), destination='far', python=sys.executable,"
        f" command={reach.command!r}), 'killed')\n"
        "line.take_lock(LockNote(who='bob@desk', doing='up', since='now'))\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    operator = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert operator.stdout is not None
    assert operator.stdout.readline() == "held\n"
    here = SshTransport(reach, "killed")
    assert (note := here.read_lock()) is not None
    assert note.who == "bob@desk"

    operator.kill()
    operator.wait()

    def free() -> None:
        assert here.read_lock() is None
        assert not processes.is_alive(note.pid, note.started)

    eventually(free, within_s=10.0, every_s=0.05)
    here.close()


def test_many_questions_at_once_get_their_own_answers(line: SshTransport) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(number: int) -> str:
        program = f"import time; time.sleep({(number % 3) / 20}); print({number})"
        return line.run([sys.executable, "-c", program], timeout_s=30).stdout

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(16))) == [f"{number}\n" for number in range(16)]


def test_a_command_that_was_running_ends_with_the_line(reach: Reach, tmp_path: Path) -> None:
    from threading import Thread

    line = SshTransport(reach, "lab")
    pid_file = tmp_path / "pid"
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    def run() -> None:
        with pytest.raises(HostUnreachable):
            line.run([sys.executable, "-c", program], timeout_s=300)

    thread = Thread(target=run)
    thread.start()

    def written() -> int:
        assert pid_file.exists()
        assert pid_file.read_text()
        return int(pid_file.read_text())

    pid = eventually(written, within_s=20.0, every_s=0.02)
    started = processes.start_of(pid)

    line.close()

    def gone() -> None:
        assert not processes.is_alive(pid, started)

    eventually(gone, within_s=10.0, every_s=0.05)
    thread.join(10)
    assert not thread.is_alive()


def test_a_second_command_finds_the_connection_open(served: sshd.Sshd, reach: Reach) -> None:
    shared = replace(reach, control=served.folder / "c")
    first = SshTransport(shared, "lab")
    first.facts()
    sockets = list((served.folder / "c").iterdir())
    second = SshTransport(shared, "lab")

    assert len(sockets) == 1
    assert second.facts().hostname == first.facts().hostname
    for line in (first, second):
        line.close()
    ended = subprocess.run(shared.forget_argv(), capture_output=True, check=False)
    assert ended.returncode == 0


def test_a_shared_connection_that_is_dead_is_thrown_away(served: sshd.Sshd, reach: Reach) -> None:
    # Something is there under the name of the socket, takes connections and says nothing: a master whose line is dead.
    folder = served.folder / "d"
    shared = replace(reach, control=folder)
    probe = subprocess.run([*shared.command, "-G", "-o", f"ControlPath={folder}/ssh-%C", "far"], capture_output=True)
    path = next(word.split(" ", 1)[1] for word in probe.stdout.decode().splitlines() if word.startswith("controlpath"))
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
        line = SshTransport(shared, "lab")

        assert line.survey([NodeName("z")]) == ()
        line.close()
