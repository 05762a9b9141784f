"""What is done to a server, at once: made to be called in the middle of a step, from hivemind's event loop.

    undo = inject(stage, Fault.PAUSE, node)     returns within milliseconds
    struck(stage, Fault.PAUSE, node)            None if it bit (waits for a death), else why not; also after `undo()`
    undo()                                      takes back what can be taken back, and may be called again

KILL, KILL_MAIN, STOP, LATE and FULL cannot be taken back; `Stage.ready` starts the node again. Of LATE and FULL this is
the victim's part, a kill: that an answer is lost, or another server full, is the client's side. RESTART starts the node
again by itself as soon as it is dead; `undo()` waits until it has been started, not until it serves. SLOW ends by
itself after `slow_s`. FORGET needs a DHT that a client has lent to the stage (`stage.dht`). EXPIRE does nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import assert_never

from swarmctl import processes
from swarmctl.blocks import NodeName
from swarmctl.errors import DeadlineExceeded, Refused, SwarmctlError
from swarmctl.matrix import Fault
from swarmctl.operations.kill import kill
from swarmctl.operations.site import Site
from swarmctl.operations.trials.stage import Stage
from swarmctl.poll import Pending, wait_until
from swarmctl.processes import ProcessSeen
from swarmctl.store import KillOrder, Record, read_record, write_json
from swarmctl.transport.base import KILLED, Order

SLOW_S = 2.0
FORGET_S = 20.0
# A record lives two periods and three seconds; see `upstream.server`.
_PERIODS, _CLOCKS_S = 2, 3.0
# A server that is asked to stop says good-bye, and its runner gives it fifteen seconds for that.
_DIES_WITHIN_S = 20.0
# SIGSTOP is obeyed at once, but not before the signal has come.
_STOPS_WITHIN_S = 1.0

Evidence = Callable[[], str | None]


@dataclass
class Undo:
    """What was done to a node, and the way back. `fatal`: the process that was struck is to die of it."""

    fault: Fault
    node: NodeName
    evidence: Evidence
    back: Callable[[], object] = lambda: None
    record: Record | None = None
    fatal: bool = False
    _done: bool = False
    _missed: str | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self) -> None:
        """Take it back, once; keeps the evidence of before."""
        with self._lock:
            if not self._done:
                try:
                    self._missed = self.evidence()
                except SwarmctlError as error:
                    self._missed = str(error)
                self._done = True
                self.back()

    def missed(self) -> str | None:
        """Why it did not bite; None if it did."""
        with self._lock:
            return self._missed if self._done else self.evidence()

    def is_dying(self) -> bool:
        """True while the process that is to die of it lives, or its runner still buries it."""
        record = self.record
        return (
            self.fatal
            and record is not None
            and (
                processes.is_alive(record.child_pid, record.child_started)
                or processes.is_alive(record.runner_pid, record.runner_started)
            )
        )


def inject(stage: Stage, fault: Fault, node: NodeName, *, slow_s: float = SLOW_S, forget_s: float = FORGET_S) -> Undo:
    """Do this to the node now.

    Raises:
        Refused: when it does not run, or the stage cannot do this.
    """
    reason = stage.can(fault)
    if reason is not None:
        raise Refused(f"{fault.value} cannot be done here", reasons=[reason])
    undo = _inject(stage, fault, node, slow_s, forget_s)
    stage.undos.append(undo)
    return undo


def struck(stage: Stage, fault: Fault, node: NodeName) -> str | None:
    """Why the last such fault did not bite this node, or None if it did."""
    for undo in reversed(stage.undos):
        if (undo.fault, undo.node) == (fault, node):
            return undo.missed()
    return f"{fault.value} was never done to {node}"


def _inject(stage: Stage, fault: Fault, node: NodeName, slow_s: float, forget_s: float) -> Undo:
    match fault:
        case Fault.KILL | Fault.LATE | Fault.FULL | Fault.KILL_MAIN | Fault.STOP:
            return _end(stage, fault, node)
        case Fault.RESTART:
            return _restart(stage, node)
        case Fault.PAUSE | Fault.PAUSE_MAIN:
            return _pause(stage, fault, node)
        case Fault.SLOW:
            return _slow(stage, node, slow_s)
        case Fault.PARTITION:
            return _partition(stage, node)
        case Fault.FORGET:
            return _forget(stage, node, forget_s)
        case Fault.EXPIRE:
            return Undo(fault=fault, node=node, evidence=lambda: None)
        case _:
            assert_never(fault)


# --- death --------------------------------------------------------------------------------------------------------


def _end(stage: Stage, fault: Fault, node: NodeName) -> Undo:
    record = _record(stage.site, node)
    there = True
    if fault is Fault.KILL_MAIN:
        there = _kill_main(stage.site, node, record)
    elif fault is Fault.STOP:
        there = stage.site.transport(stage.site.spec.nodes[node].host).signal(node, Order.STOP)
    else:
        kill(stage.site, node, sink=lambda _event: None, wait=False)
    if not there:
        raise _absent(node)

    def look() -> str | None:
        alive = processes.is_alive(record.child_pid, record.child_started)
        return f"process {record.child_pid} of {node} is still there" if alive else None

    return Undo(
        fault=fault, node=node, record=record, fatal=True, evidence=lambda: _patiently(stage, look, _DIES_WITHIN_S)
    )


def _kill_main(site: Site, node: NodeName, record: Record) -> bool:
    if record.child_pid is None or record.child_started is None:
        return False
    # Without an order the runner would take it for a crash, and start the node again before the trial has seen it dead.
    order = KillOrder(child_pid=record.child_pid, child_started=record.child_started, reason=KILLED)
    write_json(site.layout.node(node).kill_order, order)
    return processes.send(record.child_pid, record.child_started, signal.SIGKILL)


def _restart(stage: Stage, node: NodeName) -> Undo:
    undo = _end(stage, Fault.RESTART, node)
    trouble: list[str] = []

    def bring_back() -> None:
        try:
            stage.start_again(node)
        except SwarmctlError as error:
            trouble.append(str(error))

    thread = threading.Thread(target=bring_back, name=f"restart-{node}", daemon=True)
    thread.start()
    died = undo.evidence
    undo.evidence = lambda: died() or next(iter(trouble), None)
    undo.back = thread.join
    return undo


def _patiently(stage: Stage, look: Evidence, within_s: float) -> str | None:
    """What `look` says when it has had time to say nothing."""

    def observe() -> bool | Pending:
        reason = look()
        return Pending(reasons=(reason,)) if reason is not None else True

    try:
        wait_until(observe, what="a fault to bite", within_s=within_s, clock=stage.site.clock, every_s=0.02)
    except DeadlineExceeded as error:
        return error.reasons[0]
    return None


# --- silence ------------------------------------------------------------------------------------------------------


def _pause(stage: Stage, fault: Fault, node: NodeName) -> Undo:
    group = _group(stage.site, node)
    targets = group[:1] if fault is Fault.PAUSE_MAIN else group
    stopped = [one for one in targets if processes.send(one.pid, one.started, signal.SIGSTOP)]
    if not stopped:
        raise _absent(node)

    def look() -> str | None:
        awake = [one.pid for one in stopped if not processes.is_stopped(one.pid, one.started)]
        return f"processes {awake} of {node} were not stopped" if awake else None

    def back() -> None:
        for one in stopped:
            processes.send(one.pid, one.started, signal.SIGCONT)

    return Undo(fault=fault, node=node, evidence=lambda: _patiently(stage, look, _STOPS_WITHIN_S), back=back)


def _slow(stage: Stage, node: NodeName, slow_s: float) -> Undo:
    undo = _pause(stage, Fault.SLOW, node)
    timer = threading.Timer(slow_s, undo)
    timer.daemon = True
    timer.start()
    go_on = undo.back

    def back() -> None:
        timer.cancel()
        go_on()

    undo.back = back
    return undo


def _partition(stage: Stage, node: NodeName) -> Undo:
    gate = stage.gate(node)
    gate.shut()

    def evidence() -> str | None:
        view = gate.look()
        if not view.shut:
            return f"the gate of {node} is open"
        return None if view.connections else f"nobody was connected to {node} through its gate"

    return Undo(fault=Fault.PARTITION, node=node, evidence=evidence, back=gate.open)


# --- oblivion -----------------------------------------------------------------------------------------------------


def _forget(stage: Stage, node: NodeName, forget_s: float) -> Undo:
    if stage.dht is None:
        raise Refused(f"nobody has lent a DHT through which {node} could be forgotten")
    from swarmctl.upstream.dht import block_uids
    from swarmctl.upstream.tombstone import Tombstone

    model, peer = stage.site.spec.model, stage.peer(node)
    uids = block_uids(model.dht_prefix, model.num_blocks)
    lives_s = _PERIODS * stage.settings(node).update_period_s + _CLOCKS_S
    stone = Tombstone(stage.dht, peer, uids, for_s=forget_s, record_lives_s=lives_s)

    def evidence() -> str | None:
        return None if stone.stands() else f"the swarm did not take the record that says {node} is gone"

    # If it is not taken back, the client that lent the DHT has gone, and it ends by itself.
    return Undo(fault=Fault.FORGET, node=node, evidence=evidence, back=stone.remove)


# --- whom ---------------------------------------------------------------------------------------------------------


def _record(site: Site, node: NodeName) -> Record:
    record = read_record(site.layout.node(node))
    if record is None or record.ended is not None:
        raise _absent(node)
    return record


def _absent(node: NodeName) -> Refused:
    return Refused(f"node {node} does not run, so nothing can be done to it", hints=["swarmctl status"])


def _group(site: Site, node: NodeName) -> tuple[ProcessSeen, ...]:
    """Everything that the node has started, and the process that computes before all others."""
    record = _record(site, node)
    mark = str(site.layout.node(node).folder)
    found = processes.members(processes.read_processes(), record.child_pid, record.child_started, mark=mark)
    return tuple(sorted(found, key=lambda one: one.pid != record.child_pid))
