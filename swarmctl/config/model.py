"""The `model` section → `ModelSpec`: where the checkpoint is, its shape, and its name in the swarm."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from swarmctl.config.reading import Reading, listed
from swarmctl.models.profile import ModelProfile, read_profile
from swarmctl.spec import ModelSpec

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")

# petals 2.2.0.post1 serves the first three; its main branch added mixtral.
_SERVED = ("bloom", "falcon", "llama", "mixtral")


@dataclass(frozen=True, kw_only=True)
class ResolvedModel:
    """The model, and the type its weights are stored in, where that is known."""

    spec: ModelSpec
    stored_dtype: str | None


def resolve_model(reading: Reading, base: Path) -> ResolvedModel | None:
    """The model of the file, or None if it cannot be known; then a finding says why.

    `base` is the folder that a relative source starts from. Reads the checkpoint's `config.json`, nothing else.
    """
    section = reading.file.model
    if section.source is None:
        if reading.usable("model", "source"):
            reading.report(("model", "source"), "is missing", hint="source: a folder, or a hub name", at_key=True)
        return None
    located = _locate(reading, section.source, base)
    if located is None:
        return None
    source, profile = located
    if profile and profile.family not in _SERVED:
        message = f"petals cannot serve a {profile.family} model; it serves {listed(_SERVED)}"
        reading.report(("model", "source"), message)
    blocks = _agreed(reading, "blocks", section.blocks, profile.num_blocks if profile else None)
    hidden_size = _agreed(reading, "hidden_size", section.hidden_size, profile.hidden_size if profile else None)
    prefix = _dht_prefix(reading, source, profile)
    if blocks is None or hidden_size is None:
        return None
    spec = ModelSpec(
        source=source,
        dht_prefix=prefix,
        num_blocks=blocks,
        hidden_size=hidden_size,
        revision=section.revision,
    )
    return ResolvedModel(spec=spec, stored_dtype=profile.torch_dtype if profile else None)


def _locate(reading: Reading, written: str, base: Path) -> tuple[str, ModelProfile | None] | None:
    """The source as others use it, and its profile; a profile of None is a hub name that the file must describe."""
    expanded = Path(os.path.expandvars(written)).expanduser()
    folder = Path(os.path.normpath(base / expanded))
    says_folder = expanded.is_absolute() or written.startswith((".", "~", "$")) or written.endswith("/")
    try:
        if folder.is_dir():
            return str(folder), read_profile(str(folder))
        if not says_folder and (profile := read_profile(written)):
            return written, profile
    except ValueError as error:
        reading.report(("model", "source"), str(error), hint=_how_to_make(written, folder))
        return None
    if not says_folder and _HUB_NAME.match(written):
        return written, None
    reading.report(("model", "source"), f"there is no folder {folder}", hint=_how_to_make(written, folder))
    return None


def _how_to_make(written: str, folder: Path) -> str:
    """The command that makes a checkpoint there; the folder's name tells which one was meant."""
    understood = re.fullmatch(r"[~/$][\w./~$-]*", written) is not None
    target = written if understood else shlex.quote(str(folder))
    if "smollm2" in folder.name.lower():
        return f"swarmctl model import demo:smollm2 -o {target}"
    family = "bloom" if "bloom" in folder.name.lower() else "llama"
    return f"a small one to play with: swarmctl model tiny --family {family} -o {target}"


def _agreed(reading: Reading, key: str, written: int | None, known: int | None) -> int | None:
    """The file's number or the checkpoint's; a finding if they differ, or if there is neither."""
    path = ("model", key)
    if written is None and known is None and reading.usable(*path):
        source = reading.file.model.source
        message = f"is missing; {source} is no folder here and no hub name whose shape is known"
        reading.report(path, message, hint=f"{key}: the number in the model's config.json", at_key=True)
    if written is not None and known is not None and written != known:
        reading.report(path, f"{written} contradicts the checkpoint, which has {known}", hint="leave this key out")
    return known if known is not None else written


def _dht_prefix(reading: Reading, source: str, profile: ModelProfile | None) -> str:
    written = reading.file.model.dht_prefix
    if written is None:
        return _default_prefix(reading.file.swarm or "", source, profile)
    # petals takes a prefix apart at dots, and a list of prefixes at spaces.
    if written == "" or re.search(r"[.\s]", written):
        better = _plain(written)
        message = f'"{written}" may not contain dots or spaces' if written else "must not be empty"
        reading.report(("model", "dht_prefix"), message, hint=f"dht_prefix: {better}" if better else None)
    return written


def _default_prefix(swarm: str, source: str, profile: ModelProfile | None) -> str:
    """Petals' own default for a hub name whose family is known, so that stock clients find it; else our own."""
    name = source.rsplit("/", 1)[-1]
    if profile and not Path(source).is_absolute():
        if profile.family == "llama":
            dashed = name.replace(".", "-")
            return dashed if dashed.endswith("-hf") else f"{dashed}-hf"
        return f"{source}-petals".replace(".", "-") if profile.family == "bloom" else name.replace(".", "-")
    return "-".join(part for part in (swarm, _plain(name)) if part)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")
