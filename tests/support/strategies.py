"""Random swarms, small enough that a test can try every loss."""

from __future__ import annotations

from hypothesis import strategies as st
from support.builders import a_host, a_server, a_spec

from swarmctl.blocks import BlockRange
from swarmctl.spec import Domain, SwarmSpec

HOSTS = (
    a_host("a", rack="r1", zone="z1", gpus=(0, 1)),
    a_host("b", rack="r1", zone="z1", gpus=(0, 1)),
    a_host("c", rack="r2", zone="z1"),
    a_host("d"),
)


def ranges(num_blocks: int) -> st.SearchStrategy[BlockRange]:
    """Block ranges within a model of so many blocks."""
    starts = st.integers(0, num_blocks - 1)
    return starts.flatmap(lambda start: st.integers(start + 1, num_blocks).map(lambda end: BlockRange(start, end)))


@st.composite
def specs(draw: st.DrawFn) -> SwarmSpec:
    """At most six nodes with at most five blocks on `HOSTS`, under any policy."""
    num_blocks = draw(st.integers(1, 5))
    nodes = []
    for index in range(draw(st.integers(0, 6))):
        host = draw(st.sampled_from("abcd"))
        gpu = draw(st.sampled_from((None, 0, 1))) if host in "ab" else None
        nodes.append(a_server(f"{host}{index}", str(draw(ranges(num_blocks))), host=host, gpu=gpu))
    return a_spec(
        nodes,
        num_blocks=num_blocks,
        minimum=draw(st.integers(1, 3)),
        target=draw(st.integers(1, 4)),
        by=draw(st.sampled_from(Domain)),
        hosts=HOSTS,
    )
