"""Opens a swarm as a client: petals' model with our router, and its shutdown in order."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmctl import scratch, tether
from swarmctl.blocks import NodeName, PeerId
from swarmctl.errors import RequestInvalid, UsageError
from swarmctl.upstream.compat import import_petals, quiet_transformers

import_petals()

import torch  # noqa: E402
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker  # noqa: E402
from petals.client.routing.sequence_manager import SequenceManagerState  # noqa: E402
from petals.utils.auto_config import AutoDistributedModelForCausalLM  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from swarmctl.upstream import patches  # noqa: E402
from swarmctl.upstream.patching import applied  # noqa: E402
from swarmctl.upstream.router import Router  # noqa: E402
from swarmctl.upstream.session import RecoverableSession  # noqa: E402
from swarmctl.upstream.threads import spare_threads  # noqa: E402

logger = logging.getLogger(__name__)

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, kw_only=True)
class ClientModel:
    """A model whose blocks are in the swarm. `model` is petals' own class; sessions are made with `router`."""

    model: Any
    tokenizer: Any
    router: Router


@dataclass(frozen=True, kw_only=True)
class SwarmAddress:
    """What a client must know. `roster` None routes to whoever announces; `initial_peers` must not be empty.

    `update_period_s`: how often the DHT is read in the background. `sockets`: a folder for libp2p's unix sockets.
    """

    source: str
    dht_prefix: str
    initial_peers: tuple[str, ...]
    sockets: Path
    roster: Mapping[PeerId, NodeName] | None = None
    revision: str | None = None
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 15.0
    update_period_s: float = 5.0
    torch_dtype: str = "float32"


@contextmanager
def open_model(address: SwarmAddress, *, stock: bool = False) -> Iterator[ClientModel]:
    """petals' model for this swarm, connected; on leaving, every process and socket it made is gone.

    With `stock` nothing of petals' client is replaced: its own router and session, the negative control.

    Raises:
        UsageError: without a bootstrap peer, which petals would take for the public swarm.
    """
    if not address.initial_peers:
        raise UsageError("no bootstrap peer is known", hints=["swarmctl up"])
    quiet_transformers()
    address.sockets.mkdir(parents=True, exist_ok=True, mode=0o700)
    tether.install(str(scratch.pids_file(address.sockets)))
    with ExitStack() as stack:
        stack.callback(scratch.sweep, address.sockets)
        stack.enter_context(torch_cache_in(address.sockets))
        stack.enter_context(spare_threads())
        stack.enter_context(applied(patches.daemon_dies_with_us(), patches.sockets_in(address.sockets)))
        if not stock:
            ours = (patches.late_answers_are_dropped(), patches.sessions_are(RecoverableSession))
            stack.enter_context(applied(*ours))
        model = _load(address)
        manager = model.transformer.h.sequence_manager
        stack.callback(_shut_down, manager)
        router = manager
        if not stock:
            router = Router(
                manager.config,
                manager.block_uids,
                dht=manager.dht,
                state=SequenceManagerState(p2p=manager.state.p2p),
                roster=address.roster,
            )
            stack.callback(router.shutdown)
            model.transformer.h.sequence_manager = router
        yield ClientModel(model=model, tokenizer=read_tokenizer(address.source, address.revision), router=router)


@contextmanager
def torch_cache_in(folder: Path) -> Iterator[None]:
    """What torch compiles is kept in `folder` meanwhile, unless the user has named another one.

    torch makes its folder whether or not anything is compiled: left alone, in the system's temporary folder; and told
    of one for good, again and again after that has been removed.
    """
    if _TORCH_CACHE in os.environ:
        yield
        return
    os.environ[_TORCH_CACHE] = os.fspath(folder)
    try:
        yield
    finally:
        os.environ.pop(_TORCH_CACHE, None)


def read_tokenizer(source: str, revision: str | None = None) -> Any:
    """The model's tokenizer.

    Raises:
        RequestInvalid: when there is none beside the model.
    """
    try:
        return AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        raise RequestInvalid(
            f"{source} has no tokenizer that can be read", reasons=[str(error).splitlines()[0]]
        ) from error


def _load(address: SwarmAddress) -> Any:
    roster = None if address.roster is None else list(address.roster)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return AutoDistributedModelForCausalLM.from_pretrained(
            address.source,
            revision=address.revision,
            initial_peers=list(address.initial_peers),
            dht_prefix=address.dht_prefix,
            allowed_servers=roster,
            connect_timeout=address.connect_timeout_s,
            request_timeout=address.request_timeout_s,
            update_period=address.update_period_s,
            use_server_to_server=False,
            show_route=False,
            torch_dtype=getattr(torch, address.torch_dtype),
        )


def _shut_down(manager: Any) -> None:
    """End petals' threads, the client's libp2p connection, and hivemind's DHT process, in this order.

    Left to the interpreter's exit, hivemind closes its connection from a destructor, without an event loop.
    """
    manager.shutdown()
    p2p = manager.state.p2p
    with suppress(Exception):
        RemoteExpertWorker.run_coroutine(p2p.shutdown(), return_future=True).result(5)
    manager.dht.shutdown()
    manager.dht.join(5)
