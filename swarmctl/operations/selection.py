"""Which nodes an operator means: names, globs, `@host`, prefixes, and the end of a peer id."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from swarmctl.blocks import HostName, NodeName, PeerId
from swarmctl.errors import UsageError
from swarmctl.operations.launching import declared
from swarmctl.operations.site import Site
from swarmctl.operations.status import peer_of

# Shorter ends of a peer id hit by chance too often to be meant.
_SUFFIX_CHARACTERS = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A node that can be meant."""

    name: NodeName
    host: HostName
    peer: PeerId | None = None


def candidates(site: Site) -> tuple[Candidate, ...]:
    """All nodes of the file in its order, bootstrap peers first, then others that have files on the hosts."""
    hosted = site.survey()
    inside = declared(site)
    listed = [
        Candidate(name=name, host=node.host, peer=peer_of(hosted[name].node) if name in hosted else None)
        for name, node in inside.items()
    ]
    outside = [(name, found) for name, found in hosted.items() if name not in inside]
    listed += [Candidate(name=name, host=found.host, peer=peer_of(found.node)) for name, found in outside]
    return tuple(listed)


def select(among: Sequence[Candidate], patterns: Sequence[str]) -> tuple[NodeName, ...]:
    """The nodes that the patterns mean, in the order of `among`, each once.

    A pattern is a name, a glob (`gpu-a*`), all of a host (`@gpu-a`), the beginning of one name, or the end of one
    peer id (four characters or more, with or without a leading …). No pattern means no node.

    Raises:
        UsageError: when a pattern means nothing, or a beginning or end means several.
    """
    chosen = {name for pattern in patterns for name in _matches(among, pattern)}
    return tuple(candidate.name for candidate in among if candidate.name in chosen)


def _matches(among: Sequence[Candidate], pattern: str) -> tuple[NodeName, ...]:
    names = tuple(candidate.name for candidate in among)
    if pattern in names:
        return (NodeName(pattern),)
    if pattern.startswith("@"):
        found = tuple(candidate.name for candidate in among if candidate.host == pattern[1:])
        return found or _unknown(pattern[1:], "host", sorted({candidate.host for candidate in among}))
    if any(character in pattern for character in "*?["):
        return tuple(name for name in names if fnmatchcase(name, pattern)) or _unknown(pattern, "node", names)
    found = tuple(name for name in names if pattern and name.startswith(pattern))
    if not found:
        found = _by_peer(among, pattern.removeprefix("…"))
    if len(found) > 1:
        raise UsageError(
            f"{pattern!r} means several nodes",
            reasons=[f"it could be {', '.join(found)}"],
            hints=[f"write more of the name, or '{pattern}*' for all of them"],
            context={"pattern": pattern, "matches": list(found)},
        )
    return found or _unknown(pattern, "node", names)


def _by_peer(among: Sequence[Candidate], ending: str) -> tuple[NodeName, ...]:
    if len(ending) < _SUFFIX_CHARACTERS:
        return ()
    return tuple(candidate.name for candidate in among if candidate.peer and candidate.peer.endswith(ending))


def _unknown(pattern: str, what: str, names: Sequence[str]) -> tuple[NodeName, ...]:
    near = difflib.get_close_matches(pattern, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names) or 'none'}"
    raise UsageError(f"there is no {what} {pattern!r}", hints=[hint], context={"pattern": pattern})
