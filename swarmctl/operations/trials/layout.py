"""The nodes of a local stage, and the swarm file that declares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swarmctl.operations.trials.gate import LOOPBACK

NUM_BLOCKS = 6
# Each cover for each place in a route, with few servers at a time: `a` is replaced by `b` (same), or by `b1` and `b2`
# together (split); `b2` by `a` (longer, from earlier on), `c` by `d` (same) or by `e` (longer), `e` by `b2` and `c`.
# `m` is a middle of two blocks, which `b2` and `n` take over together; `r` is what follows it.
NODES: Mapping[str, str] = {
    "a": "0:3",
    "b": "0:3",
    "b1": "0:2",
    "b2": "2:3",
    "b3": "2:3",
    "c": "3:6",
    "d": "3:6",
    "e": "2:6",
    "m": "2:4",
    "n": "3:4",
    "r": "4:6",
}
# Servers that end a session after little time, for Fault.EXPIRE alone.
BRIEF: Mapping[str, str] = {"s": "0:6", "s1": "0:3", "s2": "3:6"}
BRIEF_STEP_TIMEOUT_S = 4.0
BRIEF_SESSION_TIMEOUT_S = 10.0

_FILE = """\
version: 1
swarm: {name}
model: {{source: ./model}}
redundancy: {{min: 1, by: gpu}}
defaults:
  torch_dtype: float32
  threads: 1
  num_handlers: 2
  throughput: 100
  update_period: 5s
  inference_max_length: 256
  attn_cache_tokens: 1024
  max_batch_size: 64
  restarts: 0
client: {{update_period: 2s, replay_chunk_tokens: 32}}
nodes:
{nodes}
"""


def swarm_file(name: str, ports: Mapping[str, int], announced: Mapping[str, int]) -> str:
    """The YAML text. Every node listens on its port of `ports`, and tells others the one of `announced`."""
    return _FILE.format(name=name, nodes="\n".join(_lines(ports, announced)))


def _lines(ports: Mapping[str, int], announced: Mapping[str, int]) -> Iterator[str]:
    brief = f", step_timeout: {BRIEF_STEP_TIMEOUT_S:g}s, session_timeout: {BRIEF_SESSION_TIMEOUT_S:g}s"
    for node, blocks in {**NODES, **BRIEF}.items():
        reached = f'port: {ports[node]}, announce: "{LOOPBACK}:{announced[node]}"'
        yield f'  {node}: {{blocks: "{blocks}", {reached}{brief if node in BRIEF else ""}}}'
