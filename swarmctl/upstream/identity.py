"""Makes libp2p identities: `python -m swarmctl.upstream.identity KEY_FILE…` prints one line `KEY_FILE PEER_ID` each.

A key is made where it will be used, mode 0400, and never leaves its host; an existing key is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarmctl.blocks import PeerId
from swarmctl.store import NodeFiles, write_peer


def ensure_identity(path: Path) -> PeerId:
    """The peer id of the key at `path`, a node's `identity.key`, which is made if it is not there.

    The folder must exist.
    """
    from hivemind.p2p import P2P, PeerID

    if not path.exists():
        # Written beside and renamed, so that a crash leaves no half a key.
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        P2P.generate_identity(str(partial))
        partial.replace(path)
    peer = PeerId(PeerID.from_identity(path.read_bytes()).to_base58())
    # So that the next one who asks need not import hivemind.
    write_peer(NodeFiles(folder=path.parent, sockets=path.parent), peer)
    return peer


def main(arguments: list[str]) -> int:
    """Entry point."""
    for argument in arguments:
        sys.stdout.write(f"{argument} {ensure_identity(Path(argument))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
