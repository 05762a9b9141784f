"""Every upstream name that swarmctl rebinds, why, and what upstream must change for the entry to go.

Seams that exist come first: sessions go in through `generate(session=…)`, routers through `RemoteSequential`, server
settings through `Server(…)`. What is left is here, and nothing is bound outside `patching.applied`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarmctl import tether
from swarmctl.upstream.patching import Patch


def daemon_dies_with_us() -> Patch:
    """libp2p's daemon is started through a wrapper that ties its life to the process that started it."""

    def replacement(original: Any) -> Any:
        make = original.__func__

        def make_process_args(*args: Any, **kwargs: Any) -> list[str]:
            return tether.wrap(make(*args, **{**kwargs, "natPortMap": False, "autonat": False}))

        return staticmethod(make_process_args)

    return Patch(
        name="daemon-dies-with-us",
        target="hivemind.p2p.p2p_daemon:P2P._make_process_args",
        replacement=replacement,
        why="p2pd outlives a killed parent and goes on answering the network; it also asks routers for port mappings",
        until="hivemind arms a parent-death signal in p2pd and lets the caller switch NAT mapping off everywhere",
        relies_on={
            "hivemind.p2p.p2p_daemon:P2P._make_process_args": ("884deaf9",),
            "hivemind.p2p.p2p_daemon:P2P._terminate": ("26dc7fa0",),
        },
    )


def sockets_in(folder: Path) -> Patch:
    """libp2p's unix sockets are made in a folder of ours, so that they can be swept after a crash."""
    return Patch(
        name="sockets-in-our-folder",
        target="hivemind.p2p.p2p_daemon:P2P._UNIX_SOCKET_PREFIX",
        replacement=lambda _original: f"/unix{folder}/",
        why="sockets in the shared temporary folder stay behind when a process is killed, and name nobody",
        until="hivemind takes the folder of its sockets as a parameter",
    )


def blocks_are_counted(report: Callable[[int], None]) -> Patch:
    """`report(k)` is called after the server has loaded its k-th block."""

    def replacement(original: Any) -> Any:
        loaded = 0

        def load_pretrained_block(*args: Any, **kwargs: Any) -> Any:
            nonlocal loaded
            block = original(*args, **kwargs)
            loaded += 1
            report(loaded)
            return block

        return load_pretrained_block

    return Patch(
        name="blocks-are-counted",
        target="petals.server.server:load_pretrained_block",
        replacement=replacement,
        why="loading takes minutes for large models and petals tells nobody how far it is",
        until="petals reports its loading progress",
    )


def nothing_is_compiled() -> Patch:
    """`torch.compile` leaves functions as they are; bound while bitsandbytes is imported, where it is not used."""

    def compile_nothing(function: Any = None, **_settings: Any) -> Any:
        return function if function is not None else lambda later: later

    return Patch(
        name="nothing-is-compiled",
        target="torch:compile",
        replacement=lambda _original: compile_nothing,
        why="bitsandbytes prepares its CPU kernels on import, which loads torch's compiler: half of a server's start",
        until="bitsandbytes prepares its kernels when they are used first, or petals imports it only for quantisation",
    )


def sessions_are(session: type) -> Patch:
    """`model.inference_session()` of an unchanged program opens our session."""
    return Patch(
        name="sessions-recover",
        target="petals.client.remote_sequential:InferenceSession",
        replacement=lambda _original: session,
        why="petals' session cannot replace a server that died after the first step",
        until="petals' session recovers, or its class can be chosen",
        relies_on={"petals.client.remote_sequential:RemoteSequential.inference_session": ("e99d5bc7",)},
    )


def catalogue() -> tuple[Patch, ...]:
    """All patches, for listing and for checking the installed versions; the replacements in it are never bound."""
    return (
        daemon_dies_with_us(),
        sockets_in(Path("/nonexistent")),
        blocks_are_counted(lambda _count: None),
        nothing_is_compiled(),
        sessions_are(object),
    )
