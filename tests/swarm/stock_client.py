"""petals' own client, unchanged: `stock_client.py FILE PROMPT TOKENS [AT_TOKEN]`.

With AT_TOKEN, the server of the first span gets SIGKILL when so many tokens have come out and the next step's request
has just left for it. Prints `{"killed": NODE}` then, and `{"ids": […]}` at the end, or an error of petals'
to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Read by petals when it is imported; its default is to retry for ever.
os.environ["PETALS_MAX_RETRIES"] = "3"

from swarmctl import config
from swarmctl.client.connect import address_of
from swarmctl.operations.generate import connection_to
from swarmctl.operations.kill import kill
from swarmctl.operations.opening import open_site
from swarmctl.operations.status import read_snapshot
from swarmctl.upstream.model import open_model

# petals' default is three minutes; a step of this model takes a twentieth of a second.
REQUEST_TIMEOUT_S = 4.0


class Counter:
    """A streamer of transformers' that counts tokens."""

    def __init__(self) -> None:
        self.tokens = -1  # the first call carries the prompt

    def put(self, _value: Any) -> None:
        self.tokens += 1

    def end(self) -> None:
        """Nothing to do."""


def watch_requests(left: Callable[[Any], None]) -> None:
    """Call `left` with each inference request when it has been written, which petals has no hook for."""
    from hivemind.p2p import P2P
    from hivemind.proto import runtime_pb2

    original = P2P.send_protobuf

    async def send_protobuf(message: Any, writer: Any) -> None:
        await original(message, writer)
        if isinstance(message, runtime_pb2.ExpertRequest) and message.uid:
            left(message)

    P2P.send_protobuf = staticmethod(send_protobuf)


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(file: Path, prompt: str, tokens: int, at_token: int | None) -> None:
    site = open_site(
        config.load(file), Path(os.environ["SWARMCTL_STATE"]), Path(os.environ["SWARMCTL_RUN"]), python=sys.executable
    )
    connection = replace(connection_to(site, read_snapshot(site)), step_timeout_s=REQUEST_TIMEOUT_S)
    counter, killed = Counter(), []
    with open_model(address_of(connection), stock=True) as opened:
        import torch

        inputs = opened.tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode(), opened.model.inference_session(max_length=inputs.shape[1] + tokens) as session:

            def strike(message: Any) -> None:
                first = session._server_sessions[0].span
                if at_token is None or killed or counter.tokens < at_token or first.start > 0:
                    return
                if message.uid.split(" ")[0] == opened.router.block_uids[0]:
                    killed.append(connection.names[first.peer_id.to_base58()])
                    kill(site, killed[0], sink=lambda _event: None, wait=False)
                    say({"killed": killed[0]})

            watch_requests(strike)
            output = opened.model.generate(
                inputs, max_new_tokens=tokens, session=session, streamer=counter, do_sample=False, pad_token_id=0
            )
    ids = output[0, inputs.shape[1] :].tolist()
    say({"ids": ids})


if __name__ == "__main__":
    code = 0
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
    except Exception:  # noqa: BLE001 - whatever petals raises is what this program is run for
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    # petals closes its streams in a destructor, which at the interpreter's end now and then waits for ever.
    os._exit(code)
