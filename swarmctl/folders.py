"""Where swarmctl keeps files on the machine that this runs on; the same rules for an operator and on a distant host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home_of(env: Mapping[str, str]) -> Path:
    """The user's home folder."""
    return Path(env.get("HOME") or Path.home())


def state_of(env: Mapping[str, str]) -> Path:
    """Where swarms keep their files: $SWARMCTL_STATE, else below $XDG_STATE_HOME, else ~/.local/state/swarmctl."""
    if env.get("SWARMCTL_STATE"):
        return Path(env["SWARMCTL_STATE"]).expanduser().absolute()
    base = env.get("XDG_STATE_HOME", "")
    # The rules of XDG: a relative folder is to be ignored.
    return (Path(base) if base.startswith("/") else home_of(env) / ".local" / "state") / "swarmctl"


def run_of(env: Mapping[str, str]) -> Path:
    """Where unix sockets are made; short, because the kernel limits the length of their paths."""
    if env.get("SWARMCTL_RUN"):
        return Path(env["SWARMCTL_RUN"]).expanduser().absolute()
    # The system's own temporary folder, not $TMPDIR, which is often long.
    return Path("/tmp") / f"swarmctl-{os.getuid()}"
