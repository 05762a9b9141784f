"""What a lab needs of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
_PACKAGES = {
    "ip": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
# What a container may forbid even to its root.
_TRIAL = "ip link add trial type bridge && ip link add one type veth peer name two"
_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc")
_FAKETIME = "libfaketime.so.1"


def why_not() -> str | None:
    """Why there can be no lab here, in words that say what to do; None if there can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    missing = [name for name in _PACKAGES if program(name) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
        return f"{', '.join(missing)} missing: apt install {packages}"
    argv = [program("unshare") or "unshare", *_NAMESPACES, "sh", "-c", _TRIAL]
    done = subprocess.run(argv, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip()
        return f"namespaces and bridges cannot be made here ({said}): a container needs --privileged for that"
    return None


def program(name: str) -> str | None:
    """Where a program is; sbin is looked through too, whatever the PATH says."""
    return shutil.which(name, path=PATH)


def faketime() -> Path:
    """The library that gives a program another time.

    Raises:
        FileNotFoundError: with the package that has it.
    """
    for found in Path("/usr/lib").glob(f"*/faketime/{_FAKETIME}"):
        return found
    raise FileNotFoundError(f"{_FAKETIME} is missing: apt install faketime")
