"""Makes libp2p identities: `python -m swarmctl.upstream.identity KEY_FILE…` prints one line `KEY_FILE PEER_ID` each.

A key is made where it will be used, mode 0400, and never leaves its host; an existing key is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

from swarmctl.blocks import PeerId


def ensure_identity(path: Path) -> PeerId:
    """The peer id of the key at `path`, which is made if it is not there. The folder must exist."""
    from hivemind.p2p import P2P, PeerID

    if not path.exists():
        # Written beside and renamed, so that a crash leaves no half a key.
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        P2P.generate_identity(str(partial))
        partial.replace(path)
    return PeerId(PeerID.from_identity(path.read_bytes()).to_base58())


def main(arguments: list[str]) -> int:
    """Entry point."""
    for argument in arguments:
        sys.stdout.write(f"{argument} {ensure_identity(Path(argument))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
