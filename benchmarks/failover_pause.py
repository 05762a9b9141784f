"""The pause that a killed server makes: the step with the failover over a normal step, on a real local swarm.

Starts a tiny swarm of its own, generates, kills the first server in mid-step, and takes everything down again.
Prints `ratio R (pause P ms, step S ms, noticed after D ms, N positions replayed)`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from swarmctl import config
from swarmctl.client.generate import Sampling
from swarmctl.models.tiny import TinyShape
from swarmctl.operations import down, up
from swarmctl.operations.drill import Kill
from swarmctl.operations.generate import GenerateRequest, run
from swarmctl.operations.models import make_tiny
from swarmctl.operations.opening import open_site

SWARM = """
version: 1
swarm: bench
model: {source: ./tiny}
redundancy: {min: 2, by: gpu}
defaults: {torch_dtype: float32, threads: 1, num_handlers: 2, throughput: 100}
nodes: {a: {blocks: "0:3"}, b: {blocks: "0:3"}, c: {blocks: "3:6"}, d: {blocks: "3:6"}}
"""


def main() -> None:
    """Entry point."""
    with tempfile.TemporaryDirectory(prefix="sb-", dir="/tmp") as name:
        folder = Path(name)
        make_tiny(TinyShape(), folder / "tiny")
        (folder / "swarm.yaml").write_text(SWARM, encoding="utf-8")
        spec = config.load(folder / "swarm.yaml")
        site = open_site(spec, folder / "state", folder / "run", python=sys.executable)
        try:
            up.up(site, sink=lambda _event: None)
            asked = GenerateRequest(
                prompts=("The swarm keeps its blocks",),
                sampling=Sampling(max_new_tokens=100),
                kills=(Kill(node="first", token=60),),
            )
            story = run(site, asked).story
        finally:
            down.down(site, sink=lambda _event: None, purge=True)
    (failover,) = story.failovers
    step_ms = story.step_ms_median or float("nan")
    print(
        f"ratio {failover.pause_ms / step_ms:.1f} (pause {failover.pause_ms:.0f} ms, step {step_ms:.0f} ms, "
        f"noticed after {failover.detect_ms:.0f} ms, {failover.replayed_tokens} positions replayed)"
    )


if __name__ == "__main__":
    main()
