"""One CUDA graph for each batch size: petals' own blocks and petals' own way of recording, with CUDA pretended."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import petals.models.falcon.block as falcon
import petals.models.llama.block as llama
import pytest
import torch
from petals.models.bloom.block import WrappedBloomBlock
from petals.models.bloom.config import DistributedBloomConfig
from petals.models.falcon.config import DistributedFalconConfig
from petals.models.llama.config import DistributedLlamaConfig
from petals.utils.cuda_graphs import make_inference_graphed_callable
from support import pretend_cuda
from support.pretend_cuda import PretendCuda

from swarmctl.upstream import graphs, patches
from swarmctl.upstream.graphs import CudaRecorder, Graphed
from swarmctl.upstream.patching import applied, resolve

WIDTH = 32
ASKED = (2, 10, 1, 2, 3)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As a server computes; and one thread is enough for these sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> PretendCuda:
    return pretend_cuda.install(monkeypatch)


def double_and_sum(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return hidden * 2, hidden.sum(dim=-1)


def rows(batch: int, seed: int = 0) -> torch.Tensor:
    """[batch, 1, WIDTH], float32."""
    return torch.randn(batch, 1, WIDTH, generator=torch.Generator().manual_seed(seed))


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- what petals does: the negative control ---------------------------------------------------------------------


def test_petals_graph_takes_only_the_batch_size_it_was_recorded_with(cuda: PretendCuda) -> None:
    stock = make_inference_graphed_callable(double_and_sum, sample_args=(rows(2),))

    assert same(stock(rows(2, seed=1)), double_and_sum(rows(2, seed=1)))
    with pytest.raises(RuntimeError, match=r"must match the size of tensor b \(10\)"):
        stock(rows(10))


def test_petals_graph_makes_two_rows_of_one_without_a_word(cuda: PretendCuda) -> None:
    stock = make_inference_graphed_callable(double_and_sum, sample_args=(rows(2),))

    doubled, _ = stock(rows(1))

    assert doubled.shape == (2, 1, WIDTH)
    assert torch.equal(doubled, (rows(1) * 2).expand(2, 1, WIDTH))


def test_petals_graph_overwrites_the_tensor_it_was_recorded_with(cuda: PretendCuda) -> None:
    first = rows(2)
    stock = make_inference_graphed_callable(double_and_sum, sample_args=(first,))
    stock(rows(2, seed=1))

    assert torch.equal(first, rows(2, seed=1))


# --- what is called instead -------------------------------------------------------------------------------------


def test_every_batch_size_gives_what_the_function_gives(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())

    for seed, batch in enumerate(ASKED * 2):
        assert same(graphed(rows(batch, seed)), double_and_sum(rows(batch, seed)))
    assert len(graphed) == len(set(ASKED))
    assert len(cuda.graphs) == 1 + len(set(ASKED)), "the anchor, and one for each size"


def test_a_function_of_one_tensor_returns_one_tensor(cuda: PretendCuda) -> None:
    graphed = Graphed(torch.neg, CudaRecorder())

    assert torch.equal(graphed(rows(2)), -rows(2))


def test_another_type_is_another_graph_and_keeps_its_precision(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())
    graphed(rows(2))

    assert same(graphed(rows(2).double() / 3), double_and_sum(rows(2).double() / 3))
    assert len(graphed) == 2


def test_the_tensors_of_the_caller_are_never_written_to(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())
    first = rows(2)
    for seed in range(3):
        graphed(first if seed == 0 else rows(2, seed))

    assert torch.equal(first, rows(2))


def test_an_output_lasts_until_the_next_call_with_the_same_shapes(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())
    doubled, _ = graphed(rows(2))
    graphed(rows(10))
    assert torch.equal(doubled, rows(2) * 2)

    graphed(rows(2, seed=1))
    assert torch.equal(doubled, rows(2, seed=1) * 2), "as with petals: the memory is the graph's"


def test_blocks_that_share_a_recorder_share_no_outputs(cuda: PretendCuda) -> None:
    make = graphs.by_shape()
    one, other = make(double_and_sum), make(double_and_sum)
    kept = one(rows(2))
    other(rows(2, seed=1))

    assert same(kept, double_and_sum(rows(2)))


def test_no_more_graphs_are_kept_than_allowed_and_the_least_recently_used_goes(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder(), limit=2, patience=1)

    def recorded_for(batch: int) -> bool:
        before = len(cuda.graphs)
        assert same(graphed(rows(batch)), double_and_sum(rows(batch)))
        assert len(graphed) <= 2
        return len(cuda.graphs) > before

    assert [recorded_for(batch) for batch in (1, 2, 1, 3)] == [True, True, False, True]
    assert not recorded_for(1), "used after 2, so 2 had to go"
    assert recorded_for(2)


def test_more_sizes_than_graphs_are_computed_without_recording_at_every_step(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder(), limit=3, patience=10)

    for round_ in range(20):
        for batch in (1, 2, 3, 4):
            assert same(graphed(rows(batch, round_)), double_and_sum(rows(batch, round_)))

    # The anchor, three, and at most one for every ten calls that found no room.
    assert len(cuda.graphs) <= 1 + 3 + 80 // 10


def test_a_large_batch_is_computed_without_a_graph(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder(), max_bytes=4 * WIDTH * 4)

    assert same(graphed(rows(5)), double_and_sum(rows(5)))
    assert len(graphed) == 0
    graphed(rows(4))
    assert len(graphed) == 1


def test_with_gradients_nothing_is_recorded(cuda: PretendCuda) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())

    with torch.inference_mode(False):
        hidden = torch.ones(2, 1, WIDTH, requires_grad=True)
        doubled, _ = graphed(hidden)
        doubled.sum().backward()
        assert hidden.grad is not None
    assert len(graphed) == 0


def test_a_recording_that_fails_leaves_the_function_itself_and_says_so_once(
    cuda: PretendCuda, caplog: pytest.LogCaptureFixture
) -> None:
    graphed = Graphed(double_and_sum, CudaRecorder())
    cuda.broken = True
    for seed in range(3):
        assert same(graphed(rows(2, seed)), double_and_sum(rows(2, seed)))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "[2, 1, 32]" in caplog.text
    assert cuda.current is cuda.default, "the next step must not run on the stream of the recording"

    cuda.broken = False
    assert same(graphed(rows(10)), double_and_sum(rows(10)))
    assert len(cuda.graphs) == 2, "the anchor and the graph of 10 rows"


def test_an_error_of_the_function_is_the_functions_own(cuda: PretendCuda) -> None:
    graphed = Graphed(lambda hidden: hidden @ torch.ones(WIDTH + 1, 1), CudaRecorder())

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        graphed(rows(2))


def test_all_graphs_of_a_recorder_are_in_one_pool(cuda: PretendCuda) -> None:
    make = graphs.by_shape()
    for function in (make(double_and_sum), make(torch.neg)):
        for batch in (1, 2):
            function(rows(batch))

    assert len(cuda.pools) == 5
    assert len(set(cuda.pools)) == 1
    assert None not in cuda.pools


# --- petals' blocks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Family:
    """A block that was never used, and how many of its functions have graphs."""

    block: Any
    kv_heads: int
    functions: int

    def fresh(self) -> Any:
        return copy.deepcopy(self.block)


class Session:
    """One client's session at one block: inputs that only the seed decides, and the cache that grows with them."""

    def __init__(self, family: Family, batch: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.batch = batch
        entries, width = batch * family.kv_heads, WIDTH // 4
        self.cache = (torch.zeros(entries, width, 0), torch.zeros(entries, 0, width))

    def step(self, block: Any, tokens: int = 1) -> torch.Tensor:
        hidden = torch.randn(self.batch, tokens, WIDTH, generator=self.generator)
        output, cache = block(hidden, layer_past=self.cache, use_cache=True)
        self.cache = tuple(each.clone() for each in cache)
        return output.clone()


def outputs_of(family: Family, block: Any, batches: tuple[int, ...]) -> list[torch.Tensor]:
    """A prompt of three tokens each, then four rounds in which every session makes a step."""
    sessions = [Session(family, batch, seed) for seed, batch in enumerate(batches)]
    prompts = [session.step(block, tokens=3) for session in sessions]
    return prompts + [session.step(block) for _ in range(4) for session in sessions]


def eager_outputs(family: Family, batches: tuple[int, ...]) -> list[torch.Tensor]:
    with applied(*patches.graphs_fit_every_batch(graphs.eager)):
        return outputs_of(family, family.fresh(), batches)


FAMILIES: dict[str, Callable[[], Family]] = {
    "llama": lambda: Family(
        block=llama.WrappedLlamaBlock(
            DistributedLlamaConfig(
                hidden_size=WIDTH,
                intermediate_size=48,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
            )
        ).eval(),
        kv_heads=2,
        functions=3,
    ),
    "falcon": lambda: Family(
        block=falcon.WrappedFalconBlock(
            DistributedFalconConfig(
                hidden_size=WIDTH, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True, alibi=False
            )
        ).eval(),
        kv_heads=2,
        functions=3,
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> Family:
    """petals' code, which uses graphs for one token on `cuda`, uses them on the CPU."""
    pretend_cuda.take_cpu_for_cuda(
        monkeypatch,
        llama.OptimizedLlamaAttention.forward,
        llama.OptimizedLlamaDecoderLayer.forward,
        falcon.OptimizedFalconRotaryEmbedding.forward,
        falcon.OptimizedFalconAttention.forward,
        falcon.OptimizedFalconDecoderLayer.forward,
    )
    torch.manual_seed(0)
    return FAMILIES[request.param]()


@pytest.mark.parametrize("later", [10, 1])
def test_a_stock_block_serves_only_the_batch_size_that_it_saw_first(family: Family, later: int) -> None:
    block = family.fresh()
    assert len(outputs_of(family, block, (2,))) == 5

    with pytest.raises(RuntimeError, match=r"size of tensor|Sizes of tensors"):
        outputs_of(family, block, (later,))


def test_a_stock_block_answers_a_second_client_of_the_same_size_wrongly(family: Family) -> None:
    block, expected = family.fresh(), eager_outputs(family, (2,))
    assert same(outputs_of(family, block, (2,)), expected)

    again = outputs_of(family, block, (2,))

    # The first step of one token recorded its row of the rotary table, and the later ones wrote theirs into it.
    assert not torch.allclose(again[1], expected[1], atol=1e-3)


def test_a_block_serves_all_batch_sizes_at_once_as_without_graphs(family: Family, cuda: PretendCuda) -> None:
    expected = eager_outputs(family, ASKED)
    assert cuda.graphs == []

    with applied(*patches.graphs_fit_every_batch(graphs.by_shape())):
        block = family.fresh()
        for _client in range(2):
            assert same(outputs_of(family, block, ASKED), expected)

    assert len(cuda.graphs) == 1 + family.functions * len(set(ASKED))


def test_two_blocks_in_turns_do_not_disturb_each_other(family: Family) -> None:
    with torch.inference_mode(False):
        other = Family(block=family.fresh(), kv_heads=family.kv_heads, functions=family.functions)
        for parameter in other.block.parameters():
            parameter.data.mul_(1.5)

    with applied(*patches.graphs_fit_every_batch(graphs.by_shape())):
        one, two = family.fresh(), other.fresh()
        at_one, at_two = Session(family, 2, seed=0), Session(family, 2, seed=0)
        found = [(at_one.step(one, 3), at_two.step(two, 3))]
        found += [(at_one.step(one), at_two.step(two)) for _ in range(4)]

    assert same([each for each, _ in found], eager_outputs(family, (2,)))
    assert same([each for _, each in found], eager_outputs(other, (2,)))


def test_a_block_that_was_used_with_the_patches_is_as_stock_after_them(family: Family) -> None:
    holders = [resolve(patch.target)[:2] for patch in patches.graphs_fit_every_batch(graphs.eager)]
    before = [vars(holder)[name] for holder, name in holders]
    with applied(*patches.graphs_fit_every_batch(graphs.by_shape())):
        block = family.fresh()
        outputs_of(family, block, (2, 10))
    assert [vars(holder)[name] for holder, name in holders] == before

    assert len(outputs_of(family, block, (2,))) == 5
    stock = family.fresh()
    outputs_of(family, stock, (2,))
    with pytest.raises(RuntimeError):
        outputs_of(family, stock, (10,))


def test_a_bloom_block_has_no_graphs_with_the_patches_or_without(cuda: PretendCuda) -> None:
    torch.manual_seed(0)
    block = WrappedBloomBlock(DistributedBloomConfig(hidden_size=WIDTH, n_head=4, n_layer=1, vocab_size=9)).eval()
    bloom = Family(block=block, kv_heads=4, functions=0)
    expected = outputs_of(bloom, bloom.fresh(), ASKED)

    with applied(*patches.graphs_fit_every_batch(graphs.by_shape())):
        assert same(outputs_of(bloom, bloom.fresh(), ASKED), expected)

    assert cuda.graphs == []
    assert not [p for p in patches.graphs_fit_every_batch(graphs.eager) if "bloom" in p.target]
