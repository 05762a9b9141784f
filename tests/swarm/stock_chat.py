"""petals' own client, unchanged, in a chat: `stock_chat.py FILE PROMPT`, with a file whose servers end idle streams.

Prints one JSON object: what came of a call that failed and of the calls after it, and what came of a call after a
pause that was longer than the servers' `step_timeout`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

# Read by petals when it is imported; its default is to retry for ever.
os.environ["PETALS_MAX_RETRIES"] = "2"

from swarmctl import config
from swarmctl.client.connect import address_of
from swarmctl.operations.generate import connection_to
from swarmctl.operations.opening import open_site
from swarmctl.operations.status import read_snapshot
from swarmctl.upstream.model import ClientModel, open_model

REQUEST_TIMEOUT_S = 4.0
TOKENS = 4
GREEDY = {"do_sample": False, "pad_token_id": 0}


class Refusing:
    """A streamer of transformers' that takes so many tokens, and no more."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens + 1  # the first call carries the prompt

    def put(self, _value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise BrokenPipeError

    def end(self) -> None:
        """Nothing to do."""


def after_failures(opened: ClientModel, inputs: Any) -> dict[str, Any]:
    """Calls after one that failed in the middle, and after one that failed before its first step."""
    model, length = opened.model, inputs.shape[1]
    undisturbed = model.generate(inputs, max_new_tokens=12, **GREEDY)[0, length:].tolist()
    with model.inference_session(max_length=64) as session:
        model.generate(inputs, session=session, max_new_tokens=TOKENS, **GREEDY)
        failed = error_of(
            lambda: model.generate(None, session=session, max_new_tokens=8, streamer=Refusing(TOKENS), **GREEDY)
        )
        known, position = int(session.output_ids.shape[1]) - length, session.position - length
        next_ids = model.generate(None, session=session, max_new_tokens=TOKENS, **GREEDY)[0].tolist()
    with model.inference_session(max_length=64) as session:
        model.generate(inputs, session=session, max_new_tokens=TOKENS, **GREEDY)
        error_of(lambda: model.generate(None, session=session, max_new_tokens=8, temperature=-1.0, do_sample=True))
    new_session = error_of(lambda: model.generate(inputs, max_new_tokens=TOKENS, **GREEDY))
    return {
        "undisturbed": undisturbed,
        "failed": failed,
        "known": known,
        "position": position,
        "next": next_ids,
        "new_session": new_session,
    }


def after_a_pause(opened: ClientModel, inputs: Any, pause_s: float) -> str | None:
    """What a call raises when the healthy server has ended the idle stream."""
    with opened.model.inference_session(max_length=64) as session:
        opened.model.generate(inputs, session=session, max_new_tokens=TOKENS, **GREEDY)
        time.sleep(pause_s)
        return error_of(lambda: opened.model.generate(None, session=session, max_new_tokens=TOKENS, **GREEDY))


def error_of(call: Any) -> str | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever petals raises is what this program is run for
        return f"{type(error).__name__}: {error}"
    return None


def main(file: Path, prompt: str) -> None:
    site = open_site(
        config.load(file), Path(os.environ["SWARMCTL_STATE"]), Path(os.environ["SWARMCTL_RUN"]), python=sys.executable
    )
    connection = replace(connection_to(site, read_snapshot(site)), step_timeout_s=REQUEST_TIMEOUT_S)
    pause_s = 1.5 * min(node.settings.step_timeout_s for node in site.spec.nodes.values())
    with open_model(address_of(connection), stock=True) as opened:
        import torch

        inputs = opened.tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            said = after_failures(opened, inputs) | {"paused": after_a_pause(opened, inputs, pause_s)}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    # petals closes a lost stream in a destructor that waits for hivemind's event loop; a collection that happens to run
    # in that loop's own thread then hangs for ever. That is a defect of its own, and not what this program is for.
    gc.disable()
    main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    # petals closes its streams in a destructor, which at the interpreter's end now and then waits for ever.
    os._exit(0)
