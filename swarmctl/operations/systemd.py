"""systemd units for nodes: the host's own supervisor starts each runner, at boot too, and again when it dies.

A runner starts its child again by itself (`swarmctl.node.runner`); nobody does that for a runner that is killed, or
whose host was restarted. These are user units, so that no root is needed; `loginctl enable-linger` lets them run
without a login. A unit starts what `swarmctl up` has last written to the node's launch file, and takes the same lock:
a node is never run twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarmctl.blocks import HostName, NodeName
from swarmctl.errors import ExitCode
from swarmctl.operations.site import Hosted, Site

# Above the runner's own: fifteen seconds for its child, five for what the child leaves behind, five for its output.
_STOP_S = 40
# A server that boots before its bootstrap peer ends at once, and is to be tried again until that one is there.
_AGAIN_S = 15

_UNIT = """\
# Written by `swarmctl export systemd` for host {host}.
# Into ~/.config/systemd/user/ there, then: systemctl --user daemon-reload && systemctl --user enable {file}
# It runs without a login after: loginctl enable-linger

[Unit]
Description=swarmctl node {node} of swarm {swarm}
ConditionPathExists={condition}
# Each start is slow enough not to be counted.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
# SIGTERM goes to the runner, which stops its child in good order; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={stop_s}
# 0: somebody stopped the node. {locked}: another runner has it.
Restart=on-failure
RestartPreventExitStatus={locked}
RestartSec={again_s}

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """What a unit says. `python` and `launch` are absolute paths on the host."""

    swarm: str
    node: NodeName
    host: HostName
    python: str
    launch: str


def units(facts: Sequence[UnitFacts]) -> Mapping[str, str]:
    """The text of each node's unit, by the name of its file. Pure."""
    return {unit_name(each): _text(each) for each in facts}


def unit_name(facts: UnitFacts) -> str:
    """The file's name; node names are unique in a swarm, and swarms' names on a host."""
    return f"swarmctl-{facts.swarm}-{facts.node}.service"


def read_facts(site: Site, hosted: Mapping[NodeName, Hosted]) -> tuple[UnitFacts, ...]:
    """What the units of these nodes need, in the order of the file.

    Left out are nodes that the file does not name, and those that were never started and so have no launch file.

    Raises:
        HostUnreachable: when a host does not say which interpreter it has.
    """
    declared = [*(peer.name for peer in site.spec.bootstraps), *site.spec.nodes]
    return tuple(
        UnitFacts(
            swarm=site.spec.name,
            node=name,
            host=hosted[name].host,
            python=site.python_on(hosted[name].host),
            launch=os.fspath(site.transport(hosted[name].host).layout.node(name).launch),
        )
        for name in declared
        if name in hosted and hosted[name].node.launch is not None
    )


def _text(facts: UnitFacts) -> str:
    words = (facts.python, "-m", "swarmctl.node", "--launch", facts.launch)
    return _UNIT.format(
        host=facts.host,
        file=unit_name(facts),
        node=facts.node,
        swarm=facts.swarm,
        condition=facts.launch.replace("%", "%%"),
        command=" ".join(map(_quoted, words)),
        stop_s=_STOP_S,
        locked=int(ExitCode.LOCKED),
        again_s=_AGAIN_S,
    )


def _quoted(word: str) -> str:
    """A word of a command line as systemd reads it: `%` and `$` mean something there, within quotes too."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if set(plain) & set(" \t\\\"';") else plain
