"""Steps of one token at batch sizes 2, 10, 1 and 2 through a block on a CUDA device: petals as it is, and as we run it.

Both are compared with the same block without CUDA graphs: the largest difference of an output, and the time of a
step. Prints a line for each family, way and batch size, and at last `ratio R (patched over eager, a step of …)`.
Without a CUDA device it says so, and measures nothing.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from swarmctl.upstream.compat import import_petals

import_petals()

from swarmctl.upstream import graphs, patches  # noqa: E402
from swarmctl.upstream.patching import applied  # noqa: E402

BATCHES = (2, 10, 1, 2)
PROMPT, COMPARED, TIMED = 128, 8, 100

# `eager` is what `cuda_graphs: off` does, `patched` is what `on` does, and `stock` is petals alone.
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "eager": lambda: applied(*patches.graphs_fit_every_batch(graphs.eager)),
    "stock": nullcontext,
    "patched": lambda: applied(*patches.graphs_fit_every_batch(graphs.by_shape())),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A block that was never used; `kv_heads` entries of `head_size` values a token and row are its cache."""

    name: str
    block: Any
    hidden_size: int
    kv_heads: int
    head_size: int


def llama_block() -> Subject:
    """One of StableBeluga2's 80 blocks, with random weights."""
    from petals.models.llama.block import WrappedLlamaBlock
    from petals.models.llama.config import DistributedLlamaConfig

    config = DistributedLlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8
    )
    return Subject(name="llama", block=WrappedLlamaBlock(config), hidden_size=8192, kv_heads=8, head_size=128)


def falcon_block() -> Subject:
    """One of Falcon-40B's 60 blocks, with random weights."""
    from petals.models.falcon.block import WrappedFalconBlock
    from petals.models.falcon.config import DistributedFalconConfig

    config = DistributedFalconConfig(
        hidden_size=8192, num_attention_heads=128, num_kv_heads=8, new_decoder_architecture=True, alibi=False
    )
    return Subject(name="falcon", block=WrappedFalconBlock(config), hidden_size=8192, kv_heads=8, head_size=64)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outputs [batch, 1, hidden_size] of the first steps, and the median time of a step."""

    outputs: tuple[torch.Tensor, ...]
    step_ms: float


def session(subject: Subject, block: Any, batch: int) -> Measured:
    """A prompt, then steps of one token; what comes in depends on the batch size alone.

    Raises:
        RuntimeError: when the block cannot compute a batch of this size.
    """
    device, dtype = next((each.device, each.dtype) for each in block.parameters())
    noise = torch.Generator(device).manual_seed(batch)

    def tokens(count: int) -> torch.Tensor:
        return torch.randn(batch, count, subject.hidden_size, generator=noise, device=device, dtype=dtype)

    entries = batch * subject.kv_heads
    keys = torch.empty(entries, subject.head_size, 0, device=device, dtype=dtype)
    values = torch.empty(entries, 0, subject.head_size, device=device, dtype=dtype)
    _, cache = block(tokens(PROMPT), layer_past=(keys, values), use_cache=True)
    prompt_cache = tuple(each.clone() for each in cache)
    outputs = []
    for _ in range(COMPARED):
        output, cache = block(tokens(1), layer_past=cache, use_cache=True)
        outputs.append(output.clone())
    return Measured(outputs=tuple(outputs), step_ms=_step_ms(block, tokens(1), prompt_cache))


def _step_ms(block: Any, token: torch.Tensor, cache: tuple[torch.Tensor, ...]) -> float:
    """Median milliseconds of the same step, made again and again."""
    taken = []
    for _ in range(TIMED):
        _finish(token.device)
        begun = time.perf_counter()
        block(token, layer_past=cache, use_cache=True)
        _finish(token.device)
        taken.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def attempts(subject: Subject, way: str) -> list[Measured | str]:
    """All batch sizes through one block, in order; an error's text where there was one."""
    found: list[Measured | str] = []
    with WAYS[way]():
        block = copy.deepcopy(subject.block)
        for batch in BATCHES:
            try:
                found.append(session(subject, block, batch))
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
    return found


def compare(subject: Subject) -> float:
    """Print a line for each way and batch size; the ratio of the times at the last one, patched over eager."""
    plain = attempts(subject, "eager")
    ratio = float("nan")
    for way in ("stock", "patched"):
        for batch, found, eager in zip(BATCHES, attempts(subject, way), plain, strict=True):
            assert isinstance(eager, Measured), eager
            line = f"{subject.name:6} {way:7} batch {batch:2}"
            if isinstance(found, str):
                print(f"{line}  fails: {found}")
                continue
            ratio = found.step_ms / eager.step_ms
            off = max(float((a - b).abs().max()) for a, b in zip(found.outputs, eager.outputs, strict=True))
            print(f"{line}  off by {off:.1e}  step {found.step_ms:.3f} ms  eager {eager.step_ms:.3f} ms  x{ratio:.2f}")
    return ratio


def placed(make: Callable[[], Subject], device: str) -> Subject:
    """A block in float16 as petals' server loads one: what is no parameter, such as rotary tables, stays float32."""
    torch.manual_seed(0)
    with torch.device(device):
        subject = make()
    for parameter in subject.block.eval().parameters():
        parameter.data = parameter.data.to(torch.float16)
    return subject


def main(device: str = "cuda") -> None:
    """Entry point."""
    ratio = float("nan")
    for make in (falcon_block, llama_block):
        subject = placed(make, device)
        with torch.inference_mode():
            ratio = compare(subject)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"ratio {ratio:.2f} (patched over eager, a step of batch {BATCHES[-1]} through a Llama block, {name})")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("nothing measured: torch finds no CUDA device here, and petals uses graphs on CUDA only")
        sys.exit(0)
    main()
