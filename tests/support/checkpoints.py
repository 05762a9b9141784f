"""Checkpoints for tests: a Llama model in a GGUF file, and how a checkpoint is loaded and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from swarmctl.models import cache

TEXTS = ("The swarm keeps its blocks.", "naïve 漢字 🙂, it 's ok . \n\t 1234  x", " <|im_end| >\r\n")

BEGIN, END, SPARE, WORD = "<|im_start|>", "<|im_end|>", "<spare>", "<keep this>"
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def load(folder: Path) -> Any:
    """The checkpoint as transformers' model; fails on a key that is missing, unexpected or of another shape."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert {kind: keys for kind, keys in report.items() if keys} == {}
    return model.eval()


def files_of(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name != cache.MANIFEST}


def in_llama_cpp_order(weights: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head interleaved: first half, second half → pairs."""
    rows = [
        head[number // 2 + (number % 2) * (len(head) // 2)]
        for head in np.split(weights, heads)
        for number in range(len(head))
    ]
    stacked: np.ndarray[Any, Any] = np.stack(rows)
    return stacked


class Reference:
    """A random Llama model whose matrices are what Q8_0 makes of them, and the GGUF file that holds it."""

    def __init__(self, path: Path, *, tied: bool) -> None:
        torch.manual_seed(0)
        letters = sorted(gguf_alphabet())
        self.tokens = [BEGIN, END, SPARE, WORD, *letters, "ab"]
        config = LlamaConfig(
            vocab_size=len(self.tokens),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=128,
            rms_norm_eps=1e-6,
            rope_theta=50000.0,
            initializer_range=0.3,
            tie_word_embeddings=tied,
        )
        self.path = path
        self.model: Any = LlamaForCausalLM(config).eval()
        self._write()

    def _write(self) -> None:
        writer = gguf.GGUFWriter(self.path, "llama")
        writer.add_block_count(2)
        writer.add_context_length(128)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(96)
        writer.add_head_count(8)
        writer.add_head_count_kv(2)
        writer.add_rope_freq_base(50000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(self.tokens)
        writer.add_token_types([3, 3, 3, 4, *([1] * (len(self.tokens) - 4))])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_pad_token_id(1)
        writer.add_add_bos_token(True)
        writer.add_chat_template(CHAT)
        for name, parameter in self.model.named_parameters():
            self._add(writer, name, parameter)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _add(self, writer: Any, name: str, parameter: torch.Tensor) -> None:
        weights = parameter.detach().numpy()
        kind = F32 if weights.ndim == 1 else Q8_0
        raw = gguf.quants.quantize(weights, kind)
        parameter.data = torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind)))
        if name.endswith("q_proj.weight"):
            raw = in_llama_cpp_order(raw, 8)
        if name.endswith("k_proj.weight"):
            raw = in_llama_cpp_order(raw, 2)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)


def gguf_alphabet() -> set[str]:
    """The characters that stand for bytes, derived as the format's users do: printable ones for themselves."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return {chr(code) for code in itself} | {chr(256 + number) for number in range(256 - len(itself))}


def gguf_name(name: str) -> str:
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    found = known.get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return str(found)
