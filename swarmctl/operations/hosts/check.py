"""Looks at hosts, all at the same time, and says what is wrong with them; `up` asks the same before it starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from swarmctl.blocks import HostName
from swarmctl.errors import CheckFailed, DeadlineExceeded, HostUnreachable, SwarmctlError
from swarmctl.models.profile import ModelProfile, read_profile
from swarmctl.node.checkup import Checkup, Question
from swarmctl.operations.hosts import judging
from swarmctl.operations.hosts.clocks import judge_clocks
from swarmctl.operations.hosts.dialling import DialTable, dial
from swarmctl.operations.hosts.findings import Finding, Level
from swarmctl.operations.hosts.judging import cards_of, judge, judge_copies
from swarmctl.operations.hosts.seen import Clock, Seen
from swarmctl.operations.site import Site
from swarmctl.plan import listen_ip
from swarmctl.spec import SwarmSpec
from swarmctl.transport.base import AgentFacts, Transport

_CHECKUP_S = 40.0
_CLOCK_LOOKS = 2
_CHECKUPS: TypeAdapter[Checkup] = TypeAdapter(Checkup)

Progress = Callable[[HostName], None]
"""Told of each host that has been looked at, from several threads."""


@dataclass(frozen=True, kw_only=True)
class HostCheck:
    """What `host check` found. `cards`: of each host that could say."""

    hosts: tuple[HostName, ...]
    findings: tuple[Finding, ...]
    dials: DialTable
    cards: dict[HostName, tuple[int, ...]]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What must be repaired before nodes can work, and hosts that are silent."""
        return tuple(one for one in self.findings if one.level in (Level.FAULT, Level.SILENT))

    @property
    def error(self) -> SwarmctlError | None:
        """The negative answer; None if all is well. Silence alone is `HostUnreachable`."""
        return failure_of(self.faults)


def failure_of(faults: Sequence[Finding]) -> SwarmctlError | None:
    """What to raise for these findings; None for none."""
    if not faults:
        return None
    hosts = ", ".join(dict.fromkeys(one.host for one in faults))
    reasons = [one.sentence for one in faults if one.sentence]
    hints = list(dict.fromkeys(one.hint for one in faults if one.hint))
    if all(one.level is Level.SILENT for one in faults):
        return HostUnreachable(f"no answer from {hosts}", reasons=reasons, hints=hints)
    return CheckFailed(f"not fit: {hosts}", reasons=reasons, hints=hints)


def check(site: Site, hosts: Collection[HostName] = (), *, progress: Progress = lambda _host: None) -> HostCheck:
    """Look at these hosts, or at all of the file, and let them call each other."""
    asked = tuple(host for host in site.spec.hosts if host in hosts or not hosts)
    seen = look(site, asked, progress)
    dials = dial(site, seen)
    findings = (*_judged(site.spec, seen, estimates=True), *dials.findings)
    cards = {
        one.host: tuple(card.index for card in cards_of(one))
        for one in seen
        if one.checkup is not None and (one.checkup.smi is None or cards_of(one))
    }
    return HostCheck(hosts=asked, findings=_in_order(findings, asked), dials=dials, cards=cards)


def precheck(site: Site, hosts: Collection[HostName] = ()) -> tuple[Finding, ...]:
    """What is wrong with these hosts, or all, as far as they say themselves: the faults and warnings alone.

    Hosts that are silent are among them (`Level.SILENT`); whether they may be left out is the caller's business.
    """
    asked = tuple(host for host in site.spec.hosts if host in hosts or not hosts)
    findings = _judged(site.spec, look(site, asked), estimates=False)
    return tuple(one for one in _in_order(findings, asked) if one.level is not Level.OK)


def look(site: Site, hosts: Sequence[HostName], progress: Progress = lambda _host: None) -> tuple[Seen, ...]:
    """What each host says, in the order of `hosts`."""

    def one(host: HostName, transport: Transport) -> Seen:
        try:
            return _look(site, host, transport)
        finally:
            progress(host)

    answers, failures = site.ask(hosts, one)
    return tuple(answers[host] if host in answers else Seen(host=host, failure=failures[host]) for host in hosts)


def _look(site: Site, host: HostName, transport: Transport) -> Seen:
    facts = transport.facts()
    clock, round_trip_s = _clock(site, transport)
    checkup: Checkup | None = None
    broken: str | None = None
    try:
        checkup = _checkup(site, host, transport)
    except (ValueError, DeadlineExceeded) as error:
        broken = str(error)
    return Seen(
        host=host,
        facts=facts,
        round_trip_s=round_trip_s,
        clock=clock,
        nodes=transport.survey(),
        checkup=checkup,
        broken=broken,
    )


def _clock(site: Site, transport: Transport) -> tuple[Clock, float]:
    """How far the clock is off, by the fastest of some looks, and how long that took."""
    looks: list[tuple[float, float, AgentFacts]] = []
    for _ in range(_CLOCK_LOOKS):
        began, at = site.clock.monotonic(), site.clock.now().timestamp()
        facts = transport.facts()
        looks.append((site.clock.monotonic() - began, at, facts))
    took_s, at, facts = min(looks, key=lambda found: found[0])
    return Clock(ahead_s=facts.now - (at + took_s / 2), error_s=took_s / 2), took_s


def _checkup(site: Site, host: HostName, transport: Transport) -> Checkup:
    """Raises ValueError for an answer that makes no sense."""
    question = question_for(site, host, transport)
    argv = (site.python_on(host), "-m", "swarmctl.node.checkup")
    done = transport.run(argv, timeout_s=_CHECKUP_S, stdin=json.dumps(asdict(question)))
    if done.code != 0:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit status {done.code}"])[-1])
    try:
        return _CHECKUPS.validate_json(done.stdout)
    except ValidationError as error:
        raise ValueError("its answer is not understood here") from error


def question_for(site: Site, host: HostName, transport: Transport) -> Question:
    """What to look at on a host."""
    spec = site.spec
    declared = [node for node in judging.declared_in(spec).values() if node.host == host]
    return Question(
        ip=listen_ip(spec.hosts[host]),
        ports=tuple(sorted({node.port for node in declared if node.port is not None})),
        model=spec.model.source,
        keys=tuple(str(transport.layout.node(node.name).identity) for node in declared),
    )


def _judged(spec: SwarmSpec, seen: Sequence[Seen], *, estimates: bool) -> tuple[Finding, ...]:
    profile = _profile(spec)
    names = {name: node.host for name, node in judging.declared_in(spec).items()}
    findings = [finding for one in seen for finding in judge(one, spec, profile, estimates=estimates)]
    return (*findings, *judge_clocks(seen), *judge_copies(seen, names))


def _profile(spec: SwarmSpec) -> ModelProfile | None:
    try:
        return read_profile(spec.model.source) if spec.model.source else None
    except ValueError:
        # The folder need not be on this machine.
        return None


def _in_order(findings: Sequence[Finding], hosts: Sequence[HostName]) -> tuple[Finding, ...]:
    places = {str(host): place for place, host in enumerate(hosts)}
    return tuple(sorted(findings, key=lambda one: places.get(one.host, len(places))))
