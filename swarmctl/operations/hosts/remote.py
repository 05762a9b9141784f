"""Shell scripts on a host that has nothing of swarmctl yet: run over ssh, line by line as they speak."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from swarmctl.errors import SwarmctlError
from swarmctl.transport.reach import SSH_FAILED, Reach, failure_of

LAST_LINES = 8
NO_PYTHON = 4
"""The exit status of `ENVIRONMENT` where nothing can make one."""

_CHUNK = 1 << 20

FOLDER = """\
case $1 in "~/"*) venv=$HOME/${1#"~/"} ;; *) venv=$1 ;; esac
wheels=$venv.wheels
"""
"""The beginning of every script: its first argument is the environment's folder."""

LOOK = f"""{FOLDER}
echo "build $(cat "$venv/swarmctl-build" 2>/dev/null)"
echo "packages $(cat "$venv/swarmctl-packages" 2>/dev/null)"
test -x "$venv/bin/python" && echo "python $("$venv/bin/python" -c 'import sys; print(sys.version.split()[0])' 2>&1)"
for process in /proc/[0-9]*; do
  line=$(tr '\\0' ' ' < "$process/cmdline" 2>/dev/null)
  case $line in "$venv/bin/python -m swarmctl.node --launch "*) echo "runs $line" ;; esac
done
true
"""
"""What is there: build, packages, Python, and the runners that run from it."""

ENVIRONMENT = f"""{FOLDER}
fits='import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))'
if "$venv/bin/python" -c "$fits; import pip" 2>/dev/null && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  exit 0
fi
if test -e "$venv" && ! test -e "$venv/pyvenv.cfg" && test -n "$(ls -A "$venv" 2>/dev/null)"; then
  echo "$venv is there and is no virtual environment; nothing was changed"; exit 3
fi
for python in $2 python3.11 python3.10 python3 /usr/local/bin/python3.11 "$HOME"/.pyenv/versions/3.1[01]*/bin/python; do
  if "$python" -c "$fits" 2>/dev/null; then
    mkdir -p "$(dirname "$venv")" && rm -f "$venv/swarmctl-build" "$venv/swarmctl-packages"
    exec "$python" -m venv --clear "$venv" 2>&1
  fi
  test -z "$2" || {{ echo "$2 is no Python 3.10 or 3.11 with venv"; exit {NO_PYTHON}; }}
done
echo "there is no Python 3.10 or 3.11 with venv"; exit {NO_PYTHON}
"""
"""Make the environment, unless it works already. The second argument: the Python to make it with, empty for any."""

WHEELS_THERE = f"""{FOLDER}
mkdir -p "$wheels" && cd "$wheels" && rm -f ./*.partial && set -- ./*.whl
test ! -e "$1" || sha256sum "$@"
"""

PACKAGES = f"""{FOLDER}
shift; mark=$1; from=$2; petals=$3; shift 3
test "$from" = index || from="--no-index --find-links $wheels"
test "$from" != index || from=
pip() {{ "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" 2>&1; }}
rm -f "$venv/swarmctl-packages"
pip $from "$@" && pip $from --no-deps "$petals" && echo "$mark" > "$venv/swarmctl-packages"
"""
"""Arguments after the folder: the mark of a finished job, `index` or `wheels`, petals, and the requirements."""

SWARMCTL = f"""{FOLDER}
rm -f "$venv/swarmctl-build"
"$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off --no-index --no-deps \\
  --force-reinstall "$wheels/$3" 2>&1 && echo "$2" > "$venv/swarmctl-build" && rm -rf "$wheels"
"""
"""Arguments after the folder: the build, and the wheel's name."""

_STORE = f"""{FOLDER}mkdir -p "$wheels" && cat > "$wheels/$2.partial" && mv "$wheels/$2.partial" "$wheels/$2\""""


class Remote:
    """One host behind ssh. `cancel` ends what runs, from another thread."""

    def __init__(self, reach: Reach, venv: str) -> None:
        self._reach = reach
        self._venv = venv
        self._guard = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        if reach.shares and reach.control is not None:
            reach.control.mkdir(mode=0o700, parents=True, exist_ok=True)

    def script(self, text: str, *arguments: str, hear: Callable[[str], None] = lambda _line: None) -> tuple[str, ...]:
        """Run a script; its first argument is the environment's folder. Returns its lines.

        Raises:
            HostUnreachable: ssh fails.
            SwarmctlError: the script does; with its last lines.
        """
        return self._run(["sh", "-s", "--", self._venv, *arguments], text.encode(), None, hear)

    def store(self, file: Path) -> None:
        """Copy a file into the folder for wheels; it is there whole or not at all.

        Raises:
            HostUnreachable, SwarmctlError: as `script`.
        """
        self._run(["sh", "-c", _STORE, "sh", self._venv, file.name], b"", file, lambda _line: None)

    def cancel(self) -> None:
        """Hang up; what has been done stays, and the next setup goes on from there."""
        with self._guard:
            self._cancelled = True
            if self._running is not None:
                self._running.terminate()

    def _run(
        self, words: Sequence[str], said: bytes, file: Path | None, hear: Callable[[str], None]
    ) -> tuple[str, ...]:
        # A file, not a pipe: a shared connection's master holds it open for longer than the command lives.
        with tempfile.TemporaryFile() as complaints:
            with self._guard:
                if self._cancelled:
                    raise SwarmctlError("interrupted")
                process = self._running = subprocess.Popen(
                    self._reach.argv(words),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    start_new_session=True,
                )
            feeder = threading.Thread(target=_feed, args=(process, said, file), daemon=True)
            feeder.start()
            lines = []
            assert process.stdout is not None
            with process.stdout:
                for raw in process.stdout:
                    lines.append(raw.decode("utf-8", "replace").rstrip())
                    hear(lines[-1])
            code = process.wait()
            feeder.join()
            complaints.seek(0)
            words_of_ssh = complaints.read().decode("utf-8", "replace")
        if code == SSH_FAILED:
            raise failure_of(self._reach, code, words_of_ssh)
        if code != 0:
            last = [line for line in (*lines, *words_of_ssh.splitlines()) if line.strip()][-LAST_LINES:]
            raise SwarmctlError(last[-1] if last else f"exit status {code}", reasons=last, context={"status": code})
        return tuple(lines)


def _feed(process: subprocess.Popen[bytes], said: bytes, file: Path | None) -> None:
    # Whoever does not read to the end says so by how it ends.
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(said)
            if file is not None:
                with file.open("rb") as source:
                    while chunk := source.read(_CHUNK):
                        stdin.write(chunk)
