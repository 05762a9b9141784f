"""Makes petals importable on the hivemind that installs today.

petals takes names from hivemind's top level that hivemind 1.1.12 keeps only in its submodules. They are put back
into hivemind's namespace before petals is imported; nothing else of hivemind changes. petals is also kept from
taking over the root logger, which it does on import unless it is told not to.

To go: a petals release that imports these names from where they are.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from swarmctl.errors import UpstreamMissing

# name that petals takes from `hivemind` → the submodule that has it (hivemind 1.1.12)
RESTORED: dict[str, str] = {
    "BatchTensorDescriptor": "hivemind.utils.tensor_descr",
    "MAX_DHT_TIME_DISCREPANCY_SECONDS": "hivemind.utils.timed_storage",
    "MSGPackSerializer": "hivemind.utils.serializer",
    "P2P": "hivemind.p2p",
    "P2PContext": "hivemind.p2p",
    "PeerID": "hivemind.p2p",
    "TensorDescriptor": "hivemind.utils.tensor_descr",
    "TimedStorage": "hivemind.utils.timed_storage",
    "anext": "hivemind.utils.asyncio",
    "deserialize_tensor_stream": "hivemind.compression",
    "deserialize_torch_tensor": "hivemind.compression",
    "get_dht_time": "hivemind.utils.timed_storage",
    "get_logger": "hivemind.utils.logging",
    "nested_compare": "hivemind.utils.nested",
    "nested_flatten": "hivemind.utils.nested",
    "nested_pack": "hivemind.utils.nested",
    "serialize_torch_tensor": "hivemind.compression",
}

INSTALL_PETALS = "pip install --no-deps petals==2.2.0.post1"


def import_hivemind() -> ModuleType:
    """hivemind, with the names that petals asks for.

    Raises:
        UpstreamMissing: when hivemind is not installed, or a name is neither there nor where it is expected.
    """
    os.environ.setdefault("PETALS_LOGGING", "False")  # read by petals at its import
    os.environ.setdefault("BITSANDBYTES_NOWELCOME", "1")
    try:
        hivemind = importlib.import_module("hivemind")
    except ImportError as error:
        raise UpstreamMissing(
            "hivemind cannot be imported", reasons=[str(error)], hints=["pip install swarmctl"]
        ) from error
    for name, home in RESTORED.items():
        if not hasattr(hivemind, name):
            setattr(hivemind, name, _found(name, home))
    return hivemind


def import_petals() -> ModuleType:
    """petals, ready to use on this hivemind.

    Raises:
        UpstreamMissing: when petals or what it needs is not installed, with the command that installs it.
    """
    import_hivemind()
    try:
        with _root_logger_kept(), warnings.catch_warnings():
            # transformers 4.34 registers its types through a torch name that newer torch calls by another name.
            warnings.filterwarnings("ignore", message=".*_register_pytree_node.*", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*_register_pytree_node.*", category=UserWarning)
            _import_accelerate()
            return importlib.import_module("petals")
    except ImportError as error:
        raise UpstreamMissing(
            "petals cannot be imported", reasons=[str(error)], hints=[INSTALL_PETALS, "swarmctl doctor"]
        ) from error


def quiet_transformers() -> None:
    """No progress bars and no advice from transformers on the user's screen; errors are raised, not logged."""
    # A program that connects a second time forks after it has used a tokenizer, which says so on stderr.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs = importlib.import_module("transformers.utils.logging")
    logs.disable_progress_bar()
    logs.set_verbosity_error()


@contextmanager
def _root_logger_kept() -> Iterator[None]:
    """petals.utils.convert_block installs hivemind's handler in the root logger, whatever PETALS_LOGGING says."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        # hivemind's own way back first, or it would think that its handler is still there.
        importlib.import_module("hivemind.utils.logging").use_hivemind_log_handler("nowhere")
        root.handlers[:] = handlers
        root.setLevel(level)


def _import_accelerate() -> None:
    """accelerate, which petals needs for `init_empty_weights`, without what it would load for sharded training.

    Where torch can train on several machines, accelerate imports torch's sharded checkpoints and with them its tensor
    compiler and sympy: seven hundred modules, a quarter of what a client or a server imports, and none is ever used. A
    program that has imported accelerate for itself before keeps what it has.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    is_available = distributed.is_available
    distributed.is_available = lambda: False
    try:
        importlib.import_module("accelerate")
    finally:
        distributed.is_available = is_available


def _found(name: str, home: str) -> object:
    try:
        return getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise UpstreamMissing(
            f"hivemind has no {name}, which petals needs",
            reasons=[f"expected in {home}: {error}"],
            hints=["pip install hivemind==1.1.12"],
            context={"name": name, "module": home},
        ) from error
