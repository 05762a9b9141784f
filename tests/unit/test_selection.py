from __future__ import annotations

import pytest

from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import UsageError
from swarmctl.operations.selection import Candidate, select

AMONG = (
    Candidate(name=NodeName("boot"), host=HostName("gpu-a"), peer=PeerId("QmBootxxAAAA")),
    Candidate(name=NodeName("left-a"), host=HostName("gpu-a"), peer=PeerId("QmLeftAxBBBB")),
    Candidate(name=NodeName("left-b"), host=HostName("gpu-b"), peer=PeerId("QmLeftBxCCCC")),
    Candidate(name=NodeName("left"), host=HostName("gpu-b"), peer=PeerId("QmLeftxxBBBB")),
    Candidate(name=NodeName("right"), host=HostName("gpu-b")),
)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["right"], ["right"]),
        (["left"], ["left"]),
        (["left*"], ["left-a", "left-b", "left"]),
        (["left-?"], ["left-a", "left-b"]),
        (["@gpu-a"], ["boot", "left-a"]),
        (["r"], ["right"]),
        (["CCCC"], ["left-b"]),
        (["…xCCCC"], ["left-b"]),
        (["right", "@gpu-a", "boot"], ["boot", "left-a", "right"]),
        ([], []),
    ],
    ids=["name", "name-before-prefix", "glob", "glob-one", "host", "prefix", "peer", "peer-cut", "several", "none"],
)
def test_a_pattern_means_these_nodes_in_the_order_of_the_file(patterns: list[str], names: list[str]) -> None:
    assert list(select(AMONG, patterns)) == names


@pytest.mark.parametrize(("pattern", "matches"), [("left-", "left-a, left-b"), ("BBBB", "left-a, left")])
def test_a_pattern_that_means_several_nodes_is_refused_with_all_of_them(pattern: str, matches: str) -> None:
    with pytest.raises(UsageError, match="means several nodes") as refused:
        select(AMONG, [pattern])

    assert refused.value.reasons == (f"it could be {matches}",)


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("rigth", "there is no node 'rigth'", "did you mean right?"),
        ("@gpu-c", "there is no host 'gpu-c'", "did you mean gpu-b?"),
        ("x*", "there is no node 'x*'", "there are: boot, left-a, left-b, left, right"),
        ("CCC", "there is no node 'CCC'", "there are: boot, left-a, left-b, left, right"),
        ("", "there is no node ''", "there are: boot, left-a, left-b, left, right"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused_with_what_there_is(pattern: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        select(AMONG, [pattern])

    assert refused.value.message == message
    assert refused.value.hints == (hint,)
