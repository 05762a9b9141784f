"""What all tests share: how hypothesis runs, and that assertions in `support` say what they saw."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("support")

# No deadline: the machines that run this are shared, and a slow example is no fault of the code.
settings.register_profile("swarmctl", deadline=None, max_examples=150)
settings.load_profile("swarmctl")
