"""Several real hosts on one machine: namespaces with addresses, files and processes of their own, and an sshd in each.

    the operator, 10.x.y.1 ──┬── bridge ──┬── gpu-a, 10.x.y.11   sshd, /root, /tmp, process table of its own
                             │            ├── gpu-b, 10.x.y.12
                             │            └── gpu-c, 10.x.y.13

What can go wrong with hosts can be done to them: unplugged, slow, powered off, another key, a wrong clock. It needs
root and a handful of Debian's programs (`why_not`), and leaves nothing, also if its owner is killed.
"""

from swarmctl.lab.lab import Lab
from swarmctl.lab.needs import why_not

__all__ = ["Lab", "why_not"]
