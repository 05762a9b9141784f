"""Why a request to a server failed, in one place: the client's own mistake is raised, the rest gets a kind.

petals sends its errors as text, so the texts are matched here and nowhere else; each line names its source. What
matches nothing is BROKEN: another server is asked, and when all say so the recovery gives up at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass

from swarmctl.errors import RecoveryFailed, RequestInvalid
from swarmctl.recovery import FailureKind, GiveUp

# A healthy server ends a stream that was idle for its step_timeout, without a word, and a killed one ends it too. After
# a pause of so many seconds the server gets the benefit of the doubt: it is asked for a new stream, which one that is
# dead refuses within milliseconds, and one whose host is gone keeps waiting for the connect timeout at most. A
# step_timeout below this is not foreseen; petals' own default is 300 s, ours 3600 s.
IDLE_S = 3.0

_INVALID = (
    # handler.py, inference_max_length
    (r"Cannot allocate KV cache for", "the session is longer than the servers allow"),
    (r"Maximum length exceeded", "the session is longer than was asked for"),  # block_functions.py
    (r"adapter \S+ not found", "the servers do not have this adapter"),  # handler.py, _get_active_adapter
)
_KINDS = (
    ("Could not allocate", FailureKind.BUSY),  # memory_cache.py
    ("attention cache is full", FailureKind.BUSY),  # memory_cache.py
    ("CUDA out of memory", FailureKind.BUSY),  # torch: the cache's tensors are made when they are first used
    ("Remote peer does not serve", FailureKind.REFUSED),  # handler.py, _check_uids
    ("protocols not supported", FailureKind.REFUSED),  # libp2p: the handlers are not there, or not yet
    ("protocol not supported", FailureKind.REFUSED),
)

_DIAL_CAUSES = ("connection refused", "no route to host", "i/o timeout", "context deadline exceeded", "no addresses")
# go-libp2p, for 5 s after a dial that failed, then for 6, 9, 14, 21 s and so on up to five minutes; only a dial that
# succeeds ends it. It is kept for each address, so another address may have a cause of its own.
_BACK_OFF = "dial backoff"

# asyncio's and concurrent's are classes of their own before Python 3.11.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, futures.TimeoutError)


class ServerError(Exception):
    """A server answered a request with an error; the text is the server's."""


class TooManyTokens(ServerError):
    """The server takes fewer tokens in one request."""


class StreamSpent(Exception):
    """The stream ended for a reason that another stream to the same server will not meet."""


class Silent(Exception):
    """A server answered neither its request nor a ping."""


class RequestFailed(Exception):
    """A request was not answered as it should be; `error` is what the server, the network or libp2p made of it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def server_error(text: str) -> ServerError:
    """The error that a server's text stands for; TooManyTokens when it would take the request in smaller pieces."""
    # task_pool.py
    return TooManyTokens(text) if "Task size greater than max_batch_size" in text else ServerError(text)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong with one server. `reason` is for people."""

    kind: FailureKind
    reason: str


def classify(error: BaseException, *, idle_s: float = 0.0, within_s: float = 0.0) -> Failure:
    """The kind of a failed request. `within_s`: the limit, if timed out.

    `idle_s`: how long the stream had been unused when the request began; 0 for one that never answered before.

    Raises:
        RequestInvalid: when every server would say the same, because the request itself is wrong.
    """
    if isinstance(error, StreamSpent):
        return Failure(kind=FailureKind.EXPIRED, reason=str(error))
    if isinstance(error, Silent):
        return Failure(kind=FailureKind.SILENT, reason=str(error))
    if isinstance(error, ServerError):
        return _classify_answer(error, str(error), idle_s)
    if isinstance(error, _TIMEOUTS):
        return Failure(kind=FailureKind.SILENT, reason=f"no answer within {within_s:g} s")
    if isinstance(error, (EOFError, ConnectionError)):  # IncompleteReadError is an EOFError
        if idle_s >= IDLE_S:
            return Failure(kind=FailureKind.EXPIRED, reason=f"stream ended after {idle_s:.0f} s without a step")
        return Failure(kind=FailureKind.LOST, reason="connection closed")
    return _classify_other(error, str(error))


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


def _classify_answer(error: ServerError, text: str, idle_s: float) -> Failure:
    if not text and idle_s > 0:
        # handler.py: the session_timeout of a whole session ends it with a TimeoutError, which has no text.
        return Failure(kind=FailureKind.EXPIRED, reason="the server ended the session without a word")
    for pattern, message in _INVALID:
        if re.search(pattern, text):
            raise RequestInvalid(message, reasons=[f"a server says: {text}"]) from error
    reason = text or "the server answered with an error without a text"
    return Failure(kind=_kind_in(text) or FailureKind.BROKEN, reason=reason)


def _classify_other(error: BaseException, text: str) -> Failure:
    known = _kind_in(text)
    if known is not None:
        return Failure(kind=known, reason=" ".join(text.split()))
    if _BACK_OFF in text and _dial_cause(text) is None:
        return Failure(kind=FailureKind.UNDIALLED, reason="libp2p waits a while after a dial that failed")
    if type(error).__name__ in ("ControlFailure", "P2PDaemonError", "DispatchFailure"):  # hivemind.p2p
        return Failure(kind=FailureKind.LOST, reason=_dial_reason(text))
    return Failure(kind=FailureKind.BROKEN, reason=f"{type(error).__name__}: {text}")


def _kind_in(text: str) -> FailureKind | None:
    return next((kind for needle, kind in _KINDS if needle in text), None)


def _dial_cause(text: str) -> str | None:
    # libp2p lists every address that it tried, over many lines; the first cause is the one that helps.
    return next((cause for cause in _DIAL_CAUSES if cause in text), None)


def _dial_reason(text: str) -> str:
    return f"cannot be dialled: {_dial_cause(text) or ' '.join(text.split())[:120]}"
