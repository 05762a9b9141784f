"""Where torch keeps what it compiles: with the client that is open, and nowhere that has been removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarmctl.upstream.compat import import_petals

import_petals()

from torch._inductor.runtime.cache_dir_utils import cache_dir  # noqa: E402

from swarmctl.upstream.model import torch_cache_in  # noqa: E402

NAME = "TORCHINDUCTOR_CACHE_DIR"


def test_each_client_has_torchs_folder_and_a_removed_one_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    first, second = tmp_path / "first", tmp_path / "second"
    with torch_cache_in(first):
        assert cache_dir() == str(first)
        assert first.is_dir()
    first.rmdir()

    with torch_cache_in(second):
        assert cache_dir() == str(second)

    assert not first.exists()
    assert NAME not in os.environ


def test_a_folder_that_the_user_has_named_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, str(tmp_path / "users"))

    with torch_cache_in(tmp_path / "ours"):
        assert cache_dir() == str(tmp_path / "users")

    assert os.environ[NAME] == str(tmp_path / "users")
