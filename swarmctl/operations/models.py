"""Makes and imports checkpoints, once: what is there, whole and the same is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarmctl.errors import Refused
from swarmctl.models import cache
from swarmctl.models.tiny import TinyShape

__all__ = ["ImportResult", "TinyShape", "folder_for", "import_model", "make_tiny"]

Progress = Callable[[int, int], None]
"""Called with the tensors done and the tensors in all."""


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What `import_model` found or did. `reason`: why it was built, or that it was whole."""

    path: Path
    rebuilt: bool
    reason: str


def make_tiny(shape: TinyShape, folder: Path, *, force: bool = False) -> bool:
    """A small random checkpoint of `shape` in `folder`; False if just this one was there, and nothing was done.

    A broken one of this shape is made anew; another checkpoint that is whole only with `force`.

    Raises:
        Refused: when `folder` holds another whole checkpoint, or something that swarmctl did not make.
    """
    from swarmctl.upstream import tiny

    problems = cache.verify(folder, origin=tiny.origin_of(shape))
    if not problems:
        return False
    if not force and cache.is_complete(folder):
        raise Refused(
            f"{folder} holds another checkpoint and was left as it is",
            reasons=problems,
            hints=["to replace it, add --force", "or choose another folder: -o DIR"],
        )
    tiny.write_tiny(shape, folder)
    return True


def import_model(
    source: Path | str, folder: Path, *, progress: Progress, force: bool = False, dtype: str = "float32"
) -> ImportResult:
    """A checkpoint of the GGUF file `source` (or `demo:smollm2`) in `folder`: at once if a whole one is there.

    A broken one, one from another file and, with `force`, any one is made anew; until the new one is whole the old
    one stays. Of two imports into one folder the second waits for the first and takes what it made. `progress` is
    called from the calling thread, and not at all when nothing is converted.

    Raises:
        RequestInvalid: when there is no such file, or `dtype` is neither float32 nor float16.
        Refused: when `folder` holds something that swarmctl did not make.
        UpstreamMissing: when gguf or the demo's model is not installed.
        SwarmctlError: when the file cannot be converted, or the disk is too full.
    """
    from swarmctl.upstream import gguf

    origin = gguf.origin_of(source, dtype=dtype)
    whole = ImportResult(path=folder, rebuilt=False, reason="it was whole")
    if not force and cache.is_complete(folder, origin=origin):
        return whole
    with cache.exclusive(folder):
        problems = cache.verify(folder, origin=origin) if folder.exists() else ("there was none before",)
        if not problems and not force:
            return whole
        with cache.replacing(folder, origin=origin) as partial:
            gguf.import_gguf(source, partial, progress, dtype=dtype)
    return ImportResult(path=folder, rebuilt=True, reason="; ".join(problems) or "asked for")


def folder_for(source: Path | str, cache_folder: Path) -> Path:
    """Where an import of `source` goes unless told otherwise, within the cache folder."""
    from swarmctl.upstream import gguf

    if str(source) == gguf.DEMO_SOURCE:
        return cache_folder / "smollm2-135m-instruct"
    return cache_folder / Path(source).stem.lower()
