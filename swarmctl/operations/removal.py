"""May these nodes go? The one judgement of `coverage.assess`, made on what is observed now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmctl.blocks import NodeName
from swarmctl.coverage import Assessment, Harm, assess, holders_of
from swarmctl.errors import Refused
from swarmctl.operations.site import Site
from swarmctl.operations.status import read_snapshot


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The assessment of taking `nodes` out together, and what of it would be a new gap.

    `last_bootstraps`: those of them that are the last bootstrap peers; without one nobody finds a server.
    """

    nodes: tuple[NodeName, ...]
    assessment: Assessment
    last_bootstraps: tuple[NodeName, ...] = ()

    @property
    def new_gaps(self) -> tuple[Harm, ...]:
        """The ranges that are served now and would not be afterwards."""
        return tuple(harm for harm in self.assessment.harms if harm.before > 0 and harm.after == 0)


def judge_removal(site: Site, nodes: Sequence[NodeName]) -> Removal:
    """What taking these nodes out at the same time would leave; a node that is not ONLINE is no loss."""
    snapshot = read_snapshot(site)
    up = [peer.name for peer in snapshot.bootstraps if peer.process.running]
    return Removal(
        nodes=tuple(nodes),
        assessment=assess(site.spec, holders_of(snapshot), frozenset(nodes)),
        last_bootstraps=tuple(up) if set(up) <= set(nodes) else (),
    )


def refuse_new_gaps(removals: Sequence[Removal], *, verb: str, override: str) -> None:
    """Stop here if any of these removals would leave blocks without a server.

    `verb` is what is about to be done (`killing`); `override` the command line that does it all the same.

    Raises:
        Refused: with one reason a range.
    """
    harmful = [removal for removal in removals if removal.new_gaps or removal.last_bootstraps]
    if not harmful:
        return
    names = ", ".join(name for removal in harmful for name in removal.nodes)
    reasons = [str(harm) for removal in harmful for harm in removal.new_gaps]
    last = [name for removal in harmful for name in removal.last_bootstraps]
    if last:
        reasons.append(f"{', '.join(last)}: the last bootstrap peer, without which nobody finds a server or can join")
    gaps = any(removal.new_gaps for removal in harmful)
    raise Refused(
        f"{verb} {names} would leave {'blocks without a server' if gaps else 'the swarm without a way in'}",
        reasons=reasons,
        hints=[f"accept the gap: {override}"],
        context={"gaps": [str(harm.blocks) for removal in harmful for harm in removal.new_gaps]},
    )
