"""How many cores a client takes from a machine that may be running servers too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def spare_threads() -> Iterator[None]:
    """torch on half of the cores meanwhile.

    A thread of torch's pool that waits for another one spins. Where servers share the machine, as many threads as
    cores make both crawl: a generation of seconds was seen to take minutes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, (os.cpu_count() or 2) // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
