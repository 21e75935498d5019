"""GGUF files with random weights of models whose prompts are not all in one KV cache: recurrent layers, windows.

Shapes are those of published models, LFM2-350M, Qwen3.5-0.8B and Gemma 3 270M, with fewer words and of Qwen3.5 half of
the layers, so that a conversation takes minutes. Each word of the vocabulary is a token with the space before it, and
only words are ever drawn: what a model says comes back as the same tokens in the next turn, as from a trained model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

WORDS = 12_000
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxz", "aeiouy"
_LAYERS = Type.Q8_0


class HybridFile:
    """A file under construction: random matrices of real shapes."""

    def __init__(self, path: Path, architecture: str, layers: int, hidden: int, wide: int, heads: int, head: int):
        self.path, self.hidden, self.wide, self.head = path, hidden, wide, head
        self.writer = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(0)
        for add, value in (
            (self.writer.add_context_length, 32_768),
            (self.writer.add_embedding_length, hidden),
            (self.writer.add_block_count, layers),
            (self.writer.add_feed_forward_length, wide),
            (self.writer.add_head_count, heads),
            (self.writer.add_key_length, head),
            (self.writer.add_value_length, head),
        ):
            add(value)
        self.writer.add_layer_norm_rms_eps(1e-6)
        self.writer.add_rope_freq_base(1e6)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        """Draw it so that its outputs are as large as its inputs."""
        values, nbytes = gguf.GGML_QUANT_SIZES[_LAYERS]
        blocks = self._random.integers(0, 256, (rows, columns // values, nbytes), np.uint8)
        scale = np.full((*blocks.shape[:2], 1), 1 / (74 * columns**0.5), np.float16)
        blocks[:, :, :2] = scale.view(np.uint8)
        self.writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=_LAYERS)

    def vector(self, name: str, values: np.ndarray | int) -> None:
        """Add numbers as they are; a count: so many ones, as of norms."""
        whole = np.ones(values) if isinstance(values, int) else values
        self.writer.add_tensor(name, whole.astype(np.float32))

    def tables(self, norm: str) -> None:
        """Add the vocabulary with its embeddings, which are the output projection too. Tokens that are no words have
        nothing there, and so are never the likeliest."""
        tokens = vocabulary(self.writer)
        table = self._random.standard_normal((tokens, self.hidden)).astype(np.float32)
        table[: tokens - WORDS - len(_SPECIAL)] = 0
        table[tokens - len(_SPECIAL) :] = 0
        self.writer.add_tensor("token_embd.weight", gguf.quants.quantize(table, _LAYERS), raw_dtype=_LAYERS)
        self.vector(norm, self.hidden)

    def attention(self, layer: str, queries: int, keys: int, output: int) -> None:
        """Rows of the projections, in outputs; output: inputs of the one behind."""
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            self.matrix(f"{layer}attn_{part}.weight", rows, self.hidden)
        self.matrix(f"{layer}attn_output.weight", self.hidden, output)
        for part in ("q", "k"):
            self.vector(f"{layer}attn_{part}_norm.weight", self.head)

    def mlp(self, layer: str) -> None:
        for part in ("gate", "up"):
            self.matrix(f"{layer}ffn_{part}.weight", self.wide, self.hidden)
        self.matrix(f"{layer}ffn_down.weight", self.hidden, self.wide)

    def done(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


def lfm2(path: Path) -> Path:
    """Gated short convolutions, and six layers of attention of sixteen."""
    full = (2, 5, 8, 10, 12, 14)
    file = HybridFile(path, "lfm2", 16, 1024, 4608, 16, 64)
    file.writer.add_head_count_kv([8 if layer in full else 0 for layer in range(16)])
    file.writer.add_uint32("lfm2.shortconv.l_cache", 3)
    file.tables("token_embd_norm.weight")
    for number in range(16):
        layer = f"blk.{number}."
        for norm in ("attn_norm", "ffn_norm"):
            file.vector(f"{layer}{norm}.weight", 1024)
        if number in full:
            file.attention(layer, 1024, 512, 1024)
        else:
            file.vector(f"{layer}shortconv.conv.weight", np.random.default_rng(number).uniform(-1, 1, (1024, 3)))
            file.matrix(f"{layer}shortconv.in_proj.weight", 3072, 1024)
            file.matrix(f"{layer}shortconv.out_proj.weight", 1024, 1024)
        file.mlp(layer)
    return file.done()


def qwen35(path: Path) -> Path:
    """Gated DeltaNet in three layers of four."""
    layers, heads, state = 12, 16, 128
    inner = heads * state
    file = HybridFile(path, "qwen35", layers, 1024, 3584, 8, 256)
    file.writer.add_head_count_kv(2)
    file.writer.add_rope_dimension_count(64)
    file.writer.add_rope_dimension_sections([11, 11, 10, 0])
    for key, value in (
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", state),
        ("ssm.group_count", heads),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", inner),
        ("full_attention_interval", 4),
    ):
        file.writer.add_uint32(f"qwen35.{key}", value)
    file.tables("output_norm.weight")
    for number in range(layers):
        layer = f"blk.{number}."
        for norm in ("attn_norm", "post_attention_norm"):
            file.vector(f"{layer}{norm}.weight", 1024)
        if (number + 1) % 4 == 0:
            file.attention(layer, 2 * 8 * 256, 512, 2048)  # half of the first is the gate
        else:
            chance = np.random.default_rng(number)
            file.matrix(f"{layer}attn_qkv.weight", 3 * inner, 1024)
            file.matrix(f"{layer}attn_gate.weight", inner, 1024)
            file.vector(f"{layer}ssm_conv1d.weight", chance.uniform(-0.5, 0.5, (3 * inner, 4)))
            file.vector(f"{layer}ssm_dt.bias", chance.uniform(-4, -1, heads))
            file.vector(f"{layer}ssm_a", -chance.uniform(0.1, 4, heads))
            for part in ("alpha", "beta"):
                file.matrix(f"{layer}ssm_{part}.weight", heads, 1024)
            file.vector(f"{layer}ssm_norm.weight", state)
            file.matrix(f"{layer}ssm_out.weight", 1024, inner)
        file.mlp(layer)
    return file.done()


def gemma3(path: Path) -> Path:
    """Five layers with a window of 512 tokens to one without."""
    file = HybridFile(path, "gemma3", 18, 640, 2048, 4, 256)
    file.writer.add_head_count_kv(1)
    file.writer.add_sliding_window(512)
    file.tables("output_norm.weight")
    for number in range(18):
        layer = f"blk.{number}."
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            file.vector(f"{layer}{norm}.weight", 640)
        file.attention(layer, 1024, 256, 1024)
        file.mlp(layer)
    return file.done()


SHAPES: dict[str, Callable[[Path], Path]] = {"lfm2": lfm2, "qwen3.5": qwen35, "gemma3": gemma3}


def words() -> list[str]:
    """Words of two syllables, so that merges of syllables cannot get into each other's way."""
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    pairs = [one + other for one in syllables for other in syllables]
    return random.Random(0).sample(pairs, WORDS)


def vocabulary(writer: gguf.GGUFWriter) -> int:
    """Byte-level BPE, split as GPT-2 does. Returns how many tokens there are."""
    alphabet = [*map(chr, range(0x21, 0x7F)), *map(chr, range(0xA1, 0xAD)), *map(chr, range(0xAE, 0x100))]
    tokens = [*alphabet, *map(chr, range(0x100, 0x144))]
    merges = list[str]()
    whole = ["Ġ" + word for word in words()]
    for syllable in sorted({word[at : at + 2] for word in whole for at in (1, 3)}):
        tokens.append(syllable)
        merges.append(f"{syllable[0]} {syllable[1]}")
    for start in sorted({word[:3] for word in whole}):
        tokens.append(start)
        merges.append(f"Ġ {start[1:]}")
    for word in whole:
        tokens.append(word)
        merges.append(f"{word[:3]} {word[3:]}")
    ends = len(tokens)
    tokens += _SPECIAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * ends + [3] * len(_SPECIAL))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ends + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)
