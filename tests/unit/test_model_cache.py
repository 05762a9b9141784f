"""Checkpoint folders: whole or recognised as broken, replaced at once or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.clock import FakeClock

from swarmctl.errors import DeadlineExceeded, Refused, SwarmctlError
from swarmctl.models import cache

ORIGIN = {"source": "a.gguf", "dtype": "float32"}


def build(folder: Path, content: bytes = b"weights") -> Path:
    with cache.building(folder, origin=ORIGIN) as partial:
        (partial / "config.json").write_text('{"swarmctl": {}}')
        (partial / "model.safetensors").write_bytes(content)
    return folder


def overwrite(path: Path, content: bytes, *, keep_time: bool) -> None:
    before = path.stat()
    path.write_bytes(content)
    shift_ns = 0 if keep_time else 10**9
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + shift_ns))


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [
        (None, "/home/me/.cache/swarmctl/models"),
        ("", "/home/me/.cache/swarmctl/models"),
        ("relative", "/home/me/.cache/swarmctl/models"),
        ("/elsewhere", "/elsewhere/swarmctl/models"),
    ],
)
def test_the_cache_is_where_xdg_says_only_if_that_is_absolute(xdg: str | None, expected: str) -> None:
    assert cache.default_cache(Path("/home/me"), xdg) == Path(expected)


def test_a_built_checkpoint_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = build(tmp_path / "deep" / "model")

    assert cache.verify(folder, deep=True, origin=ORIGIN) == ()
    assert cache.is_complete(folder)
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]


def test_a_truncated_file_is_found_by_its_size(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    overwrite(folder / "model.safetensors", b"wei", keep_time=True)

    assert cache.verify(folder) == ("model.safetensors has 3 of 7 bytes",)
    assert not cache.is_complete(folder)


def test_a_file_that_is_gone_is_found(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    (folder / "model.safetensors").unlink()

    assert cache.verify(folder) == ("model.safetensors is missing",)


def test_other_bytes_of_the_same_length_are_found(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    overwrite(folder / "model.safetensors", b"WEIGHTS", keep_time=False)

    assert cache.verify(folder) == ("model.safetensors is not what was written",)


def test_other_bytes_with_the_old_time_are_found_by_the_deep_check(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    overwrite(folder / "model.safetensors", b"WEIGHTS", keep_time=True)

    assert cache.verify(folder) == ()
    assert cache.verify(folder, deep=True) == ("model.safetensors is not what was written",)


def test_the_same_bytes_with_another_time_are_whole(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    overwrite(folder / "model.safetensors", b"weights", keep_time=False)

    assert cache.verify(folder) == ()


def test_a_folder_without_a_manifest_was_never_finished(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    (folder / cache.MANIFEST).unlink()

    assert cache.verify(folder) == ("swarmctl.json is missing, so it was never finished",)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": []}', '{"origin": {}, "files": [{"name": "a"}]}'])
def test_a_broken_manifest_is_a_problem_and_no_crash(tmp_path: Path, content: str) -> None:
    folder = build(tmp_path / "model")
    (folder / cache.MANIFEST).write_text(content)

    assert cache.verify(folder) == ("swarmctl.json cannot be read",)


def test_a_checkpoint_of_another_origin_is_not_the_one_that_was_asked_for(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")

    assert cache.verify(folder, origin={**ORIGIN, "dtype": "float16"}) == (
        "it was made from something else: dtype changed",
    )


def test_an_absent_folder_is_a_problem(tmp_path: Path) -> None:
    assert cache.verify(tmp_path / "none") == (f"there is no folder {tmp_path / 'none'}",)


def test_the_old_checkpoint_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", b"old")

    with cache.building(folder) as partial:
        (partial / "model.safetensors").write_bytes(b"new")
        assert cache.verify(folder, deep=True) == ()
        assert (folder / "model.safetensors").read_bytes() == b"old"

    assert (folder / "model.safetensors").read_bytes() == b"new"
    assert not (folder / "config.json").exists()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_build_that_fails_changes_nothing(tmp_path: Path, error: BaseException) -> None:
    folder = build(tmp_path / "model", b"old")

    def fail() -> None:
        with cache.building(folder) as partial:
            (partial / "model.safetensors").write_bytes(b"new")
            raise error

    with pytest.raises(type(error)):
        fail()

    assert cache.verify(folder, deep=True, origin=ORIGIN) == ()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_build_left_behind_goes_with_the_next_build(tmp_path: Path) -> None:
    for name in (".model.partial-0badcafe", ".model.old-0badcafe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / ".model.lock").write_text("12345")
    neighbour = tmp_path / ".model-2.partial-0badcafe"
    neighbour.mkdir()

    build(tmp_path / "model")

    assert {entry.name for entry in tmp_path.iterdir()} == {"model", neighbour.name}


def test_a_folder_that_swarmctl_did_not_make_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))

    with pytest.raises(Refused, match="did not make") as caught:
        build(tmp_path)

    assert caught.value.hints
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")

    with pytest.raises(Refused):
        build(tmp_path / "model")

    assert (tmp_path / "model").read_text() == "mine"


@pytest.mark.parametrize("lost", [cache.MANIFEST, "config.json"])
def test_a_half_lost_checkpoint_of_swarmctl_may_be_replaced(tmp_path: Path, lost: str) -> None:
    folder = build(tmp_path / "model")
    (folder / lost).unlink()

    build(folder)

    assert cache.is_complete(folder, origin=ORIGIN)


def test_a_link_to_a_folder_keeps_being_a_link(tmp_path: Path) -> None:
    (tmp_path / "big-disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "big-disk")

    build(tmp_path / "model")

    assert (tmp_path / "model").is_symlink()
    assert cache.is_complete(tmp_path / "big-disk")


def test_a_parent_that_cannot_be_made_is_a_known_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SwarmctlError, match="cannot write"):
        build(tmp_path / "file" / "model")


def test_who_waits_too_long_for_another_build_is_told_whose_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    with (
        cache.exclusive(folder),
        pytest.raises(DeadlineExceeded) as caught,
        cache.exclusive(folder, clock=FakeClock(), within_s=0),
    ):
        pass

    assert f"process {os.getpid()}" in caught.value.reasons[0]


def test_who_waits_for_another_build_goes_on_when_that_ends(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    first = cache.exclusive(folder)

    class ReleasingClock(FakeClock):
        def sleep(self, seconds: float) -> None:
            first.__exit__(None, None, None)

    first.__enter__()
    with cache.exclusive(folder, clock=ReleasingClock()):
        assert (tmp_path / ".model.lock").exists()

    assert list(tmp_path.iterdir()) == []
