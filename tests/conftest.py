"""What all tests share: how hypothesis runs."""

from __future__ import annotations

from hypothesis import settings

# No deadline: the machines that run this are shared, and a slow example is no fault of the code.
settings.register_profile("swarmctl", deadline=None, max_examples=150)
settings.load_profile("swarmctl")
