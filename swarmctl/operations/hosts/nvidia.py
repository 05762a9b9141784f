"""What nvidia-smi says, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from swarmctl.node.checkup import Said


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card. Memory in bytes, None where the driver does not tell (`[N/A]`)."""

    index: int
    name: str
    total: int | None
    free: int | None


def parse_cards(said: Said | None) -> tuple[Card, ...]:
    """The cards of a host; none without an nvidia-smi.

    Raises:
        ValueError: nvidia-smi fails, or says something else than cards; with its own words.
    """
    if said is None:
        return ()
    if said.code != 0:
        words = (said.stdout + said.stderr).strip().splitlines()
        raise ValueError(words[0] if words else f"it ended with {said.code}")
    return tuple(_card(line) for line in said.stdout.splitlines() if line.strip())


def _card(line: str) -> Card:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 4 or not fields[0].isdecimal():
        raise ValueError(f"it says: {line.strip()}")
    # A name may have a comma in it.
    name = ", ".join(fields[1:-2])
    return Card(index=int(fields[0]), name=name, total=_mebibytes(fields[-2]), free=_mebibytes(fields[-1]))


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None
