"""Why a request to a server failed, in one place: the client's own mistake is raised, the rest gets a kind.

petals sends its errors as text, so the texts are matched here and nowhere else; each line names its source. What
matches nothing is BROKEN: another server is asked, and when all say so the recovery gives up at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from swarmctl.errors import RecoveryFailed, RequestInvalid
from swarmctl.recovery import FailureKind, GiveUp

# A healthy server ends a stream that was idle for its step_timeout, without a word. A stream that ends within this
# many seconds of its last answer is not such a case; petals' own default is 300 s, ours 3600 s.
IDLE_S = 30.0

_INVALID = (
    (
        "Cannot allocate KV cache for",
        "the session is longer than the servers allow",
    ),  # handler.py, inference_max_length
    ("Maximum length exceeded", "the session is longer than was asked for"),  # block_functions.py
    ("adapter", "the servers do not have this adapter"),  # handler.py, _get_active_adapter
)
_KINDS = (
    ("Could not allocate", FailureKind.BUSY),  # memory_cache.py
    ("attention cache is full", FailureKind.BUSY),  # memory_cache.py
    ("Remote peer does not serve", FailureKind.REFUSED),  # handler.py, _check_uids
    ("protocols not supported", FailureKind.REFUSED),  # libp2p: the handlers are not there, or not yet
    ("protocol not supported", FailureKind.REFUSED),
)


class TooManyTokens(Exception):
    """The server takes fewer tokens in one request."""


class StreamSpent(Exception):
    """The stream ended for a reason that another stream to the same server will not meet."""


class ServerError(Exception):
    """A server answered a request with an error; the text is the server's."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong with one server. `reason` is for people."""

    kind: FailureKind
    reason: str


def classify(error: BaseException, *, idle_s: float = 0.0, within_s: float = 0.0) -> Failure:
    """The kind of a failed request. `idle_s`: how long the stream had been unused; `within_s`: the limit, if timed out.

    Raises:
        RequestInvalid: when every server would say the same, because the request itself is wrong.
        TooManyTokens: when the same server would take the request in smaller pieces.
    """
    if isinstance(error, StreamSpent):
        return Failure(kind=FailureKind.EXPIRED, reason=str(error))
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return Failure(kind=FailureKind.SILENT, reason=f"no answer within {within_s:g} s")
    if isinstance(error, (EOFError, ConnectionError)):  # IncompleteReadError is an EOFError
        if idle_s >= IDLE_S:
            return Failure(kind=FailureKind.EXPIRED, reason=f"stream ended after {idle_s:.0f} s without a step")
        return Failure(kind=FailureKind.LOST, reason="connection closed")
    return _classify_text(error, str(error))


def gave_up(verdict: GiveUp, *, position: int, waited_s: float, limit_s: float, tried: Sequence[str]) -> RecoveryFailed:
    """The error of a session that found nobody; `tried` holds one line a server that was asked."""
    if verdict.hopeless:
        why = "every server of these blocks answered with an error"
    else:
        why = f"waited {waited_s:.1f} s for a server (recover_timeout {limit_s:g} s)"
    return RecoveryFailed(
        f"no server for blocks {verdict.need} at position {position}",
        reasons=[why, *tried],
        hints=["swarmctl status", "swarmctl up"],
        context={
            "blocks": str(verdict.need),
            "position": position,
            "tried": list(verdict.tried),
            "waited_s": round(waited_s, 3),
        },
    )


def _classify_text(error: BaseException, text: str) -> Failure:
    if "Task size greater than max_batch_size" in text:  # task_pool.py
        raise TooManyTokens(text) from error
    for needle, kind in _KINDS:
        if needle in text:
            return Failure(kind=kind, reason=text)
    if isinstance(error, ServerError):
        for needle, message in _INVALID:
            if needle in text:
                raise RequestInvalid(message, reasons=[f"a server says: {text}"]) from error
        return Failure(kind=FailureKind.BROKEN, reason=text or "the server answered with an error without a text")
    if type(error).__name__ in ("ControlFailure", "P2PDaemonError", "DispatchFailure"):  # hivemind.p2p
        return Failure(kind=FailureKind.LOST, reason=_dial_reason(text))
    return Failure(kind=FailureKind.BROKEN, reason=f"{type(error).__name__}: {text}")


def _dial_reason(text: str) -> str:
    # libp2p lists every address that it tried, over many lines; the first cause is the one that helps.
    for needle in (
        "connection refused",
        "no route to host",
        "i/o timeout",
        "context deadline exceeded",
        "no addresses",
    ):
        if needle in text:
            return f"cannot be dialled: {needle}"
    return "cannot be dialled: " + " ".join(text.split())[:120]
