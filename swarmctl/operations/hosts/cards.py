"""The cards that hosts were found to have, remembered on the operator's machine for `gpus: all`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from swarmctl import store
from swarmctl.blocks import HostName

_NAME = "hosts.json"


def read_cards(state: Path, swarm: str) -> dict[HostName, tuple[int, ...]]:
    """What is known; nothing if nobody has looked, or the file is broken. `state`: the folder of all swarms."""
    try:
        raw = json.loads((state / swarm / _NAME).read_text(encoding="utf-8"))
        return {HostName(str(host)): tuple(int(card) for card in cards) for host, cards in raw["cards"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_cards(state: Path, swarm: str, cards: Mapping[HostName, tuple[int, ...]]) -> None:
    """Remember the cards of these hosts; what is known of others stays."""
    known = {**read_cards(state, swarm), **cards}
    (state / swarm).mkdir(mode=0o700, parents=True, exist_ok=True)
    store.write_json(state / swarm / _NAME, {"cards": {str(host): list(found) for host, found in known.items()}})
