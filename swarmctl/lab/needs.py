"""What a lab needs of the machine."""

from __future__ import annotations

import os
import shutil
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
_FAKETIME = "libfaketime.so.1"


def why_not() -> str | None:
    """Why there can be no lab here, in words that say what to do; None if there can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    missing = [name for name in _PACKAGES if program(name) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
        return f"{', '.join(missing)} missing: apt install {packages}"
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
