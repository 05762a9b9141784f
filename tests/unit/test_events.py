from __future__ import annotations

import json
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmctl import events
from swarmctl.blocks import BlockRange, NodeName, PeerId
from swarmctl.events import Event, Hop, RouteChosen, StepDone, decode, encode

KINDS = [kind for kind in Event.__subclasses__() if kind.__module__ == events.__name__]
RANGES = st.tuples(st.integers(0, 90), st.integers(1, 90)).map(lambda pair: BlockRange(pair[0], pair[0] + pair[1]))
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(),
    bool: st.booleans(),
    str: st.text(),
    PeerId: st.text(),
    NodeName: st.text(),
    type(None): st.none(),
    BlockRange: RANGES,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is Hop or hint in KINDS:
        return st.builds(hint, **{name: values(inner) for name, inner in get_type_hints(hint).items()})
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*(values(choice) for choice in get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    raise TypeError(f"no strategy for {hint}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_event_survives_its_json_line(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(values(kind))
    line = encode(event)
    assert "\n" not in line
    assert json.loads(line)["event"] == kind.__name__
    assert decode(line) == event


def test_the_kinds_under_test_are_all_that_the_codec_knows() -> None:
    assert {kind.__name__ for kind in KINDS} >= {"RouteChosen", "PeerFailed", "RecoveryDone", "NodeStopped"}
    assert set(KINDS) == set(events._KINDS.values())


def test_ranges_and_hops_are_plain_in_the_line() -> None:
    hop = Hop(blocks=BlockRange(0, 8), peer=PeerId("QmX"), node=NodeName("a0"))
    line = encode(RouteChosen(at_s=0.5, route=(hop,), took_ms=3.0))
    assert json.loads(line) == {
        "event": "RouteChosen",
        "at_s": 0.5,
        "route": [{"blocks": "0:8", "peer": "QmX", "node": "a0"}],
        "took_ms": 3.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "Nonsense"}',
        '{"at_s": 1.0}',
        '{"event": "StepDone", "step": 1}',
        '{"event": "NodeStopped", "node": "a0", "how": "killed", "took_s": 1.0, "colour": "red"}',
        '{"event": "WaitingForPeers", "blocks": "8:4", "remaining_s": 1.0}',
        '{"event": "WaitingForPeers", "blocks": 8, "remaining_s": 1.0}',
        '{"event": ["StepDone"]}',
        "[]",
        "null",
        "not json",
        "",
    ],
)
def test_a_line_that_is_no_event_is_refused_with_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(line)


def test_a_peer_without_a_name_is_labelled_by_its_last_six_characters() -> None:
    blocks = BlockRange(0, 8)
    assert Hop(blocks=blocks, peer=PeerId("QmAbcdefghij")).label == "…efghij"
    assert Hop(blocks=blocks, peer=PeerId("QmAbcdefghij"), node=NodeName("a0")).label == "a0"


def test_events_are_values() -> None:
    one = StepDone(step=1, position=8, tokens=1, batch=1, took_ms=5.0)
    assert one == StepDone(step=1, position=8, tokens=1, batch=1, took_ms=5.0)
    assert one != StepDone(step=2, position=8, tokens=1, batch=1, took_ms=5.0)
