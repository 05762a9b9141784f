"""The picture of a model's blocks: one column a block, the number of replicas above, a lane for each node below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from swarmctl.blocks import BlockRange
from swarmctl_cli.views.symbols import Symbols


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One node's span. `counts`: it is a replica now; a lane that does not count is drawn hollow."""

    label: str
    blocks: BlockRange
    counts: bool
    style: str = ""


def render(replicas: Sequence[int], lanes: Sequence[Lane], *, minimum: int, width: int, symbols: Symbols) -> Text:
    """The map, in as many pieces of a multiple of ten blocks as `width` asks for.

    Ten replicas and more are a `+`. A piece leaves out the lanes that have nothing in it.
    """
    gutter = max((len(text) for text in ("replicas", *(lane.label for lane in lanes))), default=0) + 2
    room = max(10, (width - gutter) // 10 * 10)
    step = len(replicas) if len(replicas) <= width - gutter else room
    pieces = []
    for start in range(0, len(replicas), max(1, step)):
        piece = BlockRange(start, min(len(replicas), start + step))
        pieces.append(_piece(piece, replicas, lanes, minimum=minimum, gutter=gutter, symbols=symbols))
    return Text("\n\n").join(pieces)


def _piece(
    piece: BlockRange, replicas: Sequence[int], lanes: Sequence[Lane], *, minimum: int, gutter: int, symbols: Symbols
) -> Text:
    lines = [Text("block".ljust(gutter) + _ruler(piece), style="dim"), Text("replicas".ljust(gutter))]
    for count, run in groupby(replicas[piece.start : piece.end]):
        lines[1].append(_digit(count) * len(list(run)), style=_shade(count, minimum))
    for lane in lanes:
        if lane.blocks.start >= piece.end or lane.blocks.end <= piece.start:
            continue
        mark = symbols.full if lane.counts else symbols.hollow
        start, end = max(piece.start, lane.blocks.start), min(piece.end, lane.blocks.end)
        line = Text(lane.label.ljust(gutter))
        line.append(symbols.absent * (start - piece.start), style="dim")
        line.append(mark * (end - start), style=lane.style)
        line.append(symbols.absent * (piece.end - end), style="dim")
        lines.append(line)
    return Text("\n").join(lines)


def _ruler(piece: BlockRange) -> str:
    return "".join(f"{block:<10}" for block in range(piece.start, piece.end, 10)).rstrip()


def _digit(replicas: int) -> str:
    return str(replicas) if replicas < 10 else "+"


def _shade(replicas: int, minimum: int) -> str:
    if replicas == 0:
        return "bold red"
    return "yellow" if replicas < minimum else "green"
