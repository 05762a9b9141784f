"""What keeping the history costs: petals' way (join everything at each step) over ours (append).

Prints `ratio R (joined J s, appended A s, T tokens of H values)`; both sides are measured in this run.
"""

from __future__ import annotations

import time

import torch

from swarmctl.upstream.history import History

TOKENS, HIDDEN = 1024, 4096


def joined() -> float:
    """Seconds to keep the inputs by joining them at each step."""
    begun = time.perf_counter()
    kept = torch.zeros(1, 1, HIDDEN, dtype=torch.float16)
    for _ in range(TOKENS - 1):
        kept = torch.cat([kept, torch.zeros(1, 1, HIDDEN, dtype=torch.float16)], dim=1)
    return time.perf_counter() - begun


def appended() -> float:
    """Seconds to keep the same inputs as chunks, and to read all of them once, as a replay does."""
    begun = time.perf_counter()
    history = History()
    for position in range(TOKENS):
        history.extend(position, torch.zeros(1, 1, HIDDEN, dtype=torch.float16))
    history.read(0, TOKENS)
    return time.perf_counter() - begun


def main() -> None:
    """Entry point."""
    slow, fast = min(joined() for _ in range(3)), min(appended() for _ in range(3))
    print(f"ratio {slow / fast:.0f} (joined {slow:.3f} s, appended {fast:.3f} s, {TOKENS} tokens of {HIDDEN} values)")


if __name__ == "__main__":
    main()
