from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from processes.conftest import command, eventually

from swarmctl import processes, tether

pytestmark = pytest.mark.process

SLEEP = "import time; time.sleep(600)"


def test_a_wrapped_program_dies_with_the_process_that_started_it() -> None:
    parent = (
        "import subprocess, sys, time; from swarmctl import tether\n"
        f"child = subprocess.Popen(tether.wrap([sys.executable, '-c', {SLEEP!r}]))\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        started = processes.start_of(child)
        eventually(lambda: "600" in command(child) and "tether" not in command(child), what="the program itself")

        process.kill()

        eventually(lambda: not processes.is_alive(child, started), within_s=5, what="the child to die")


def test_a_wrapped_program_does_not_begin_when_its_parent_is_gone_already() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    done = subprocess.run(
        [sys.executable, "-I", "-S", tether.__file__, str(gone.pid), sys.executable, "-c", "print('began')"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def test_a_forked_child_is_tethered_and_has_the_default_handlers_back() -> None:
    parent = (
        "import os, signal, sys, time; from swarmctl import tether\n"
        "tether.install()\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print(os.getpid(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
        "    inner = os.fork()\n"
        "    if inner == 0: print(os.getpid(), True, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(2)]
        family = [(int(pid), processes.start_of(int(pid))) for pid, _ in lines]
        assert [default for _, default in lines] == ["True", "True"]

        process.kill()

        eventually(lambda: not any(processes.is_alive(*member) for member in family), within_s=5, what="both to die")
