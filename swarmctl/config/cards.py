"""One entry of `nodes` with `gpus` → a node for each card, with its part of the blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from swarmctl.addresses import HIGHEST_PORT
from swarmctl.blocks import BlockRange, NodeName
from swarmctl.config.document import Path
from swarmctl.config.draft import Hosts, Placed
from swarmctl.config.names import BOOTSTRAP_NAME, NODE_NAME
from swarmctl.config.reading import Reading
from swarmctl.config.schema import NodeSection
from swarmctl.spec import HostSpec


def one_per_card(reading: Reading, node: Placed, section: NodeSection, hosts: Hosts) -> list[Placed]:
    """`NAME-CARD` for each card of the entry; the entry alone, on no host, if its cards are not known.

    Blocks are split into runs whose lengths differ by one at most, the longer ones first; ports count up.
    """
    cards = _cards(reading, node, section, hosts)
    shares = _shares(reading, node, cards)
    if not cards or not shares or not _can_be_several(reading, node, section, cards):
        return [replace(node, host=None)]
    return [
        replace(
            node,
            name=NodeName(f"{node.entry}-{card}"),
            one_of_several=True,
            gpu=card,
            blocks=share,
            port=None if node.port is None else node.port + index,
        )
        for index, (card, share) in enumerate(zip(cards, shares, strict=True))
    ]


def unseen(host: HostSpec) -> tuple[str, str]:
    """Message and hint for a host whose cards matter and are not known."""
    return f"the cards of {host.name} are not known yet", f"swarmctl host check {host.name}"


def _cards(reading: Reading, node: Placed, section: NodeSection, hosts: Hosts) -> tuple[int, ...]:
    path: Path = ("nodes", node.entry, "gpus")
    if not reading.usable(*path) or section.gpus is None or node.host is None:
        return ()
    if section.gpus == []:
        reading.report(path, "needs at least one card", hint="gpus: all")
    if section.gpus != "all":
        return tuple(section.gpus)
    if node.host.name in hosts.unseen:
        message, hint = unseen(node.host)
        reading.report(path, message, hint=hint)
    elif not node.host.gpus:
        message = f"all cards of host {node.host.name}, which lists no gpus"
        reading.report(path, message, hint=f"{node.host.name}: {{gpus: all}}")
    return node.host.gpus


def _shares(reading: Reading, node: Placed, cards: tuple[int, ...]) -> list[BlockRange | None]:
    """Each card's blocks; None where the entry's are not known."""
    if node.blocks is None or not cards:
        return [None] * len(cards)
    size, longer = divmod(len(node.blocks), len(cards))
    if size == 0:
        message = f'the {len(node.blocks)} blocks of "{node.blocks}" are too few for {len(cards)} cards'
        few = ", ".join(str(card) for card in cards[: len(node.blocks)])
        reading.report(("nodes", node.entry, "gpus"), message, hint=f"gpus: [{few}]")
        return []
    starts = [node.blocks.start + index * size + min(index, longer) for index in range(len(cards) + 1)]
    return [BlockRange(start, end) for start, end in pairwise(starts)]


def _can_be_several(reading: Reading, node: Placed, section: NodeSection, cards: tuple[int, ...]) -> bool:
    """False, with findings, for keys that only one node can have, and names and ports that cannot be."""
    path: Path = ("nodes", node.entry)
    before = len(reading.document.findings)
    if section.gpu is not None:
        reading.report((*path, "gpus"), "contradicts gpu; keep one of the two", at_key=True)
    if section.announce is not None:
        message = "is one address, and gpus makes several nodes; write an entry for each, with gpu"
        reading.report((*path, "announce"), message, hint=f"gpu: {cards[0]}")
    if node.port is not None and (last := node.port + len(cards) - 1) > HIGHEST_PORT:
        message = f"{node.port} and one more for each further card end at {last}; ports are 1 to {HIGHEST_PORT}"
        reading.report((*path, "port"), message, hint=f"port: {node.port - (last - HIGHEST_PORT)}")
    for name in (f"{node.entry}-{card}" for card in cards):
        if BOOTSTRAP_NAME.match(name):
            reading.report(path, f'its node "{name}" would be named as bootstrap peers are', at_key=True)
        elif NODE_NAME.match(node.entry) and not NODE_NAME.match(name):
            reading.report(path, f'the name of its node "{name}" has more than 63 letters', at_key=True)
        elif name in reading.file.nodes:
            reading.report(path, f'its node "{name}" is there already; take another name', at_key=True)
    return len(reading.document.findings) == before
