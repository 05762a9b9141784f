"""Tests that need something of the machine: left out with the reason where it is missing, but never in CI."""

from __future__ import annotations

import os

import pytest


def unless(why_not: str | None) -> None:
    """Leave the test out if there is a reason to; in CI that is a failure, for nobody would see that it is missing."""
    if why_not is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have what its tests need: {why_not}")
    pytest.skip(why_not)
