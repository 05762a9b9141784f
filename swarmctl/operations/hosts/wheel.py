"""Wheels: the running swarmctl as one, and a folder of all that it needs, for hosts without a package index.

The wheel is written from the very files that run, in a checkout as in an installation, so it needs no build tool and
no network, and its build (`swarmctl.build.digest`) is this one.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import swarmctl
from swarmctl.config.presets import preset_path
from swarmctl.errors import SwarmctlError

PETALS = "petals==2.2.0.post1"
"""Installed without its own requirements, which cannot be met; see pyproject.toml."""

_WHEEL = "Wheel-Version: 1.0\nGenerator: swarmctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# A wheel made twice of the same files is the same file.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_LAST_LINES = 8


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("swarmctl")
    except metadata.PackageNotFoundError:
        raise SwarmctlError(
            "swarmctl is run from its source, so what it needs is not known", hints=["pip install -e ."]
        ) from None


def requirements() -> tuple[str, ...]:
    """What swarmctl needs, as pip takes it, without extras; petals is not among them."""
    return tuple(sorted(one for one in _distribution().requires or () if "extra ==" not in one))


def build_wheel(folder: Path) -> Path:
    """Write the wheel of the running swarmctl into a folder; milliseconds."""
    found = _distribution()
    stem = f"swarmctl-{found.version}"
    info = f"{stem}.dist-info"
    files = {
        **dict(_files()),
        f"{info}/METADATA": (found.read_text("METADATA") or "").encode(),
        f"{info}/WHEEL": _WHEEL.encode(),
        f"{info}/entry_points.txt": (found.read_text("entry_points.txt") or "").encode(),
    }
    if licence := found.read_text("licenses/LICENSE"):
        files[f"{info}/licenses/LICENSE"] = licence.encode()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _MOMENT), content, zipfile.ZIP_DEFLATED)
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    for package in ("swarmctl", "swarmctl_cli"):
        root = _folder_of(package)
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and "__pycache__" not in inside.parts and inside.parts[0] != "presets":
                yield f"{package}/{inside.as_posix()}", path.read_bytes()
    # In a checkout they are beside the package.
    for preset in sorted(preset_path("reference").parent.glob("*.yaml")):
        yield f"swarmctl/presets/{preset.name}", preset.read_bytes()


def _folder_of(package: str) -> Path:
    if package == "swarmctl":
        return Path(swarmctl.__file__).resolve().parent
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SwarmctlError(f"the package {package} is not installed here", hints=["pip install swarmctl"])
    return Path(found.origin).resolve().parent


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def fill_wheelhouse(folder: Path, *, python: str = sys.executable) -> int:
    """Have pip put all that swarmctl needs into a folder, petals too; returns how many wheels are there.

    They fit hosts with the same kind of processor, and the Python version of `python`.

    Raises:
        SwarmctlError: pip fails; with its last lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pip = (python, "-m", "pip", "wheel", "--disable-pip-version-check", "--progress-bar", "off")
    place = ("--wheel-dir", str(folder), "--find-links", str(folder))
    _run([*pip, *place, *requirements()])
    _run([*pip, *place, "--no-deps", PETALS])
    return len(list(folder.glob("*.whl")))


def _run(argv: Sequence[str]) -> None:
    # pip's own lines are the progress.
    done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
        raise SwarmctlError("pip cannot make the wheels", reasons=words, hints=["pip config list"])
