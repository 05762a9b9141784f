"""Our client of a stage: connected once for many cells, led through the route of each, and what it says undisturbed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swarmctl.blocks import NodeName, PeerId
from swarmctl.client.connect import address_of
from swarmctl.client.generate import Client, Connection
from swarmctl.errors import CheckFailed
from swarmctl.matrix import Traffic
from swarmctl.models.profile import ModelProfile, read_profile
from swarmctl.operations.generate import connection_to
from swarmctl.operations.status import read_snapshot
from swarmctl.operations.trials.casting import Cast
from swarmctl.operations.trials.playing import Stuck, Take, play
from swarmctl.operations.trials.stage import Stage
from swarmctl.operations.trials.traffic import Script, scripts
from swarmctl.poll import Pending, wait_until
from swarmctl.trial import Tokens

if TYPE_CHECKING:
    from swarmctl.upstream.model import ClientModel
    from swarmctl.upstream.router import Router

# petals' own defaults of `max_batch_size`; the second with grouped-query attention.
_BATCH_TOKENS, _BATCH_TOKENS_GROUPED = 2048, 8192
# What transformers alone may take of this machine's memory: any tiny or small model, and none that needs a swarm.
_ALONE_BYTES = 4e9
_FLOAT_BYTES = 4
# Matrices of a block in units of hidden_size²: four of attention, eight or so behind it.
_BLOCK_SQUARES = 12
_KNOWN_S = 30.0
_LOOK_S = 2.0
# Longer than any cell: who is held back for it is not asked while somebody else is there.
_HOLD_S = 600.0
_UNDISTURBED_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Calm:
    """A session that nothing happened to: what others are compared with. See `swarmctl.trial.Run`.

    `took_s`: it and those of its traffic together.
    """

    script: Script
    took_s: float
    ids: Tokens
    local: Tokens | None
    outputs: tuple[Any, ...]
    margins: tuple[float, ...]


@dataclass
class TrialClient:
    """A client of the stage's swarm; make it with `connected`. `spoiled`: a session of it does not end."""

    stage: Stage
    opened: ClientModel
    connection: Connection
    spoiled: bool = False
    _calm: dict[Traffic, tuple[Calm, ...]] = field(default_factory=dict)

    @property
    def router(self) -> Router:
        """Its table of the swarm."""
        return self.opened.router

    def client(self, **limits: float) -> Client:
        """The product's client on this connection, with other limits of `swarmctl.spec.ClientSpec`."""
        return Client(self.opened, replace(self.connection, **limits))  # type: ignore[arg-type]

    # --- who is known, and who is asked ---------------------------------------------------------------------

    def admit(self, cast: Cast) -> None:
        """Know only the cell's servers, all of them, and let the next route be the cast's.

        Raises:
            DeadlineExceeded: when one of them is not seen in the DHT.
        """
        connection = connection_to(self.stage.site, read_snapshot(self.stage.site))
        self.connection = replace(self.connection, names=connection.names)
        wanted = set(cast.needed)
        self.router.roster = {peer: name for peer, name in connection.names.items() if name in wanted}
        self.await_known(wanted)
        # A second look: what the client still holds against those who were away has been forgotten then.
        self.router.refresh(timeout_s=_LOOK_S)
        self.favour(wanted)
        self.hold_back(wanted - {part.node for part in cast.route})

    def known(self) -> set[NodeName]:
        """Who serves, as far as the client knows."""
        names = self.connection.names
        return {names[record.peer] for record in self.router.records() if record.state.value == "ONLINE"}

    def await_known(self, nodes: Collection[NodeName], *, gone: Collection[NodeName] = ()) -> None:
        """Wait until the client has seen that these serve, and those do not.

        Raises:
            DeadlineExceeded: when it does not.
        """

        def look() -> bool | Pending:
            self.router.refresh(timeout_s=_LOOK_S)
            known = self.known()
            wrong = [*(f"{name} is not seen" for name in nodes if name not in known)]
            wrong += [f"{name} is still seen" for name in gone if name in known]
            return Pending(reasons=tuple(wrong)) if wrong else True

        wait_until(look, what="the DHT to say who serves", within_s=_KNOWN_S, clock=self.stage.site.clock)

    def hold_back(self, nodes: Collection[NodeName]) -> None:
        """Ask these only when nobody else is left, as after a failure."""
        for peer in self._peers(nodes):
            self.router.bans.record_failure(peer, time.monotonic() + _HOLD_S, "lost")

    def favour(self, nodes: Collection[NodeName]) -> None:
        """Hold nothing against these."""
        for peer in self._peers(nodes):
            self.router.bans.record_success(peer)

    def _peers(self, nodes: Collection[NodeName]) -> list[PeerId]:
        return [peer for peer, name in self.connection.names.items() if name in nodes]

    # --- what it says ---------------------------------------------------------------------------------------

    def scripts(self, traffic: Traffic) -> tuple[Script, ...]:
        """The sessions of a traffic, in this model's tokens."""
        profile = self._profile
        grouped = profile is not None and profile.num_kv_heads < profile.num_heads
        usual = _BATCH_TOKENS_GROUPED if grouped else _BATCH_TOKENS
        limits = [self.stage.settings(node).max_batch_size or usual for node in self.stage.nodes]
        return scripts(traffic, lambda text: self.client().encode(text, chat=False), max_batch_tokens=max(limits))

    def undisturbed(self, traffic: Traffic) -> tuple[Calm, ...]:
        """The same sessions when nothing happens, and by transformers alone; played once, then remembered.

        Raises:
            CheckFailed: when one of them fails. DeadlineExceeded: when they do not end.
        """
        if traffic not in self._calm:
            takes = [Take(script=script) for script in self.scripts(traffic)]
            began = self.stage.site.clock.monotonic()
            self.play(traffic, takes, self.client(), within_s=_UNDISTURBED_S)
            took_s = self.stage.site.clock.monotonic() - began
            self._calm[traffic] = tuple(self._calm_of(take, took_s) for take in takes)
        return self._calm[traffic]

    def play(self, traffic: Traffic, takes: Sequence[Take], client: Client, *, within_s: float) -> None:
        """See `playing.play`."""
        at_once = traffic is Traffic.CROWD
        try:
            with self._tuned(takes[0].script):
                play(client, takes, at_once=at_once, clock=self.stage.site.clock, within_s=within_s)
        except Stuck:
            self.spoiled = True
            raise

    @contextmanager
    def _tuned(self, script: Script) -> Iterator[None]:
        from swarmctl.upstream.tuning import deep_prompts

        with ExitStack() as stack:
            if script.deep:
                stack.enter_context(deep_prompts(self.opened, positions=script.deep))
            yield

    def _calm_of(self, take: Take, took_s: float) -> Calm:
        from swarmctl.upstream.closeness import margins

        if take.ids is None:
            raise CheckFailed(
                "the undisturbed run failed, so there is nothing to compare with", reasons=[str(take.error)]
            )
        script = take.script
        return Calm(
            script=script,
            took_s=took_s,
            ids=take.ids,
            local=self._locally(script) if script.has_local and self._fits_here else None,
            outputs=tuple(take.outputs),
            margins=margins(self.opened, take.outputs) if script.has_margins else (),
        )

    @cached_property
    def _profile(self) -> ModelProfile | None:
        return read_profile(self.connection.source)

    @property
    def _fits_here(self) -> bool:
        profile = self._profile
        if profile is None:
            return False
        per_block = _BLOCK_SQUARES * profile.hidden_size**2
        numbers = profile.num_blocks * per_block + 2 * profile.vocab_size * profile.hidden_size
        return numbers * _FLOAT_BYTES <= _ALONE_BYTES

    def _locally(self, script: Script) -> Tokens:
        client = self.client()
        said: list[tuple[int, ...]] = [()] * script.batch
        came: list[tuple[int, ...]] = [()] * script.batch
        for turn in script.turns:
            said = [(*before, *ids) for before, ids in zip(said, turn.ids, strict=True)]
            new = client.generate_locally(said, turn.sampling)
            said = [(*before, *ids) for before, ids in zip(said, new, strict=True)]
            came = [(*before, *ids) for before, ids in zip(came, new, strict=True)]
        return tuple(came)


@contextmanager
def connected(stage: Stage) -> Iterator[TrialClient]:
    """A client of the stage's swarm, of which something must run already; it lends the stage its DHT."""
    connection = connection_to(stage.site, read_snapshot(stage.site))
    from swarmctl.upstream.model import open_model

    with open_model(address_of(connection)) as opened:
        stage.dht = opened.router.dht
        try:
            yield TrialClient(stage=stage, opened=opened, connection=connection)
        finally:
            stage.dht = None
