"""Shards of a model: what ranks hold together is the whole, once; and the sentences for what they cannot share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace as with_fields
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from inflight.execution.backends.matrices import (
    LINEAR_CODES,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    by_output,
    columns_of,
    dequantized,
    in_int8,
)
from inflight.execution.checkpoints.gguf.blocks import matrix_of
from inflight.execution.parallel.shards import Shard, ShardedTensors, cut_model, kept_whole
from inflight.models.errors import ModelError
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.dense import Dense
from inflight.models.registry import read_spec
from inflight.models.spec import ModelSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "max_position_embeddings": 64,
}


def llama(**settings: Any) -> ModelSpec:
    return read_spec({**LLAMA, **settings}, to_run=True)


class Whole:
    """Every tensor is the numbers from 0 on, in the shape that is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def __contains__(self, name: str) -> bool:
        return True

    def tensor(self, name: str, shape: Sequence[int]) -> np.ndarray:
        self.asked.append((name, tuple(shape)))
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> list[np.ndarray]:
        return [self.tensor(name, shape)]

    def release(self, name: str) -> None:
        """Keep nothing."""


def parts(name: str, shape: Sequence[int], ranks: int, model: ModelSpec | None = None) -> list[np.ndarray]:
    """Return each rank's part, asked for in its own shape."""
    sources = [ShardedTensors(Whole(), Shard(model or llama(), rank, ranks)) for rank in range(ranks)]
    if len(shape) == 1:
        return [source.tensor(name, shape) for source in sources]
    return [dequantized(source.matrix(name, (shape[0], shape[1]))) for source in sources]


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("self_attn.q_proj.weight", (16, 32), 0),
        ("self_attn.k_proj.weight", (8, 32), 0),
        ("self_attn.o_proj.weight", (32, 16), 1),
        ("mlp.gate_proj.weight", (48, 32), 0),
        ("mlp.up_proj.weight", (48, 32), 0),
        ("mlp.down_proj.weight", (32, 48), 1),
        ("mlp.experts.3.gate_proj.weight", (48, 32), 0),
        ("mlp.experts.3.up_proj.bias", (48,), 0),
        ("mlp.experts.3.down_proj.weight", (32, 48), 1),
        ("mlp.shared_experts.down_proj.weight", (32, 48), 1),
        ("self_attn.sinks", (4,), 0),
        ("self_attn.v_proj.bias", (8,), 0),
    ],
)
def test_parts_of_ranks_are_the_whole(name: str, shape: tuple[int, ...], axis: int) -> None:
    whole = list(shape)
    whole[axis] *= 2
    together = np.concatenate(parts(f"model.layers.1.{name}", shape, 2), axis)
    np.testing.assert_array_equal(together, Whole().tensor(name, whole))


@pytest.mark.parametrize(
    "name", ["mlp.gate.weight", "mlp.shared_expert_gate.weight", "input_layernorm.weight", "self_attn.q_norm.weight"]
)
def test_what_decides_is_whole(name: str) -> None:
    for part in parts(f"model.layers.0.{name}", (6,), 2):
        np.testing.assert_array_equal(part, np.arange(6))
    source = Whole()
    ShardedTensors(source, Shard(llama(), 1, 2)).pieces("model.embed_tokens.weight", (64, 32))
    assert source.asked == [("model.embed_tokens.weight", (64, 32))]


@pytest.mark.parametrize("name", ["self_attn.o_proj.bias", "mlp.down_proj.bias", "mlp.experts.1.down_proj.bias"])
def test_a_bias_counts_once_in_a_sum(name: str) -> None:
    np.testing.assert_array_equal(sum(parts(f"model.layers.0.{name}", (32,), 4)), np.arange(32))


def test_few_kv_heads_are_held_several_times() -> None:
    spec = cut_model(llama(), 8)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, Attention) and (mixer.heads, mixer.kv_heads) == (1, 1)
    held = parts("model.layers.0.self_attn.k_proj.weight", (4, 32), 8)
    whole = Whole().tensor("", (16, 32)).reshape(4, 4, 32)
    for rank, one in enumerate(held):
        np.testing.assert_array_equal(one, whole[rank // 2])  # query head r reads KV head r // 2


def test_a_shard_has_its_share_of_widths_and_heads() -> None:
    spec = Shard(llama(), 1, 4).spec
    layer = spec.layers[0]
    assert isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Dense)
    assert (layer.mixer.heads, layer.mixer.kv_heads, layer.mlp.width) == (2, 1, 24)
    assert spec.layers[0] is spec.layers[1]
    assert spec.hidden_size == 32


@pytest.mark.parametrize(
    ("settings", "ranks", "sentence"),
    [
        ({}, 3, "the model has 8 query heads and 4 KV heads, which 3 devices cannot share.*it can be 2, 4 or 8"),
        ({"intermediate_size": 90}, 4, "an MLP of width 90, which 4 devices cannot share.*it can be 2"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, 2, "7 query heads.*it can be 7"),
        ({"intermediate_size": 97}, 2, "leave it out"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_numbers(settings: dict[str, Any], ranks: int, sentence: str) -> None:
    if settings.get("num_attention_heads") == 7:
        settings = {**settings, "intermediate_size": 98}
    with pytest.raises(ModelError, match=re.compile(sentence)):
        cut_model(llama(**settings), ranks)


def test_norms_over_all_heads_keep_attention_whole() -> None:
    model = llama()
    layers = tuple(replace(layer, mixer=replace(layer.mixer, qk_norm="all")) for layer in model.layers)
    model = replace(model, layers=layers)
    assert cut_model(model, 2).layers[0].mixer == model.layers[0].mixer
    assert kept_whole(model) == ("attention whose norms are over all heads, or that learns distances",)
    assert kept_whole(llama()) == ()
    (first, _) = parts("model.layers.0.self_attn.q_proj.weight", (32, 32), 2, model)
    np.testing.assert_array_equal(first, Whole().tensor("", (32, 32)))


# -- cuts along inputs -------------------------------------------------------------------------------------------------
RANDOM = np.random.default_rng(4)


def int4(columns: int, group: int, has_offsets: bool = True) -> Int4Matrix:
    groups = -(-columns // group)
    scales = RANDOM.uniform(0.5, 1.5, (6, groups)).astype(np.float32)
    offsets = RANDOM.standard_normal((6, groups)).astype(np.float32) if has_offsets else None
    return Int4Matrix(RANDOM.integers(0, 16, (6, columns), np.uint8), scales, offsets, group, LINEAR_CODES)


def q4_0(columns: int) -> Matrix:
    blocks = RANDOM.integers(0, 256, (6 * columns // 32, 18), np.uint8)
    blocks[:, :2] = np.array([0.5], np.float16).view(np.uint8)  # the scale
    return matrix_of("Q4_0", blocks, (6, columns), 32)


MATRICES: dict[str, Matrix] = {
    "plain": RANDOM.standard_normal((6, 320)).astype(np.float32),
    "int8": by_output(RANDOM.integers(-127, 128, (6, 320), np.int8), np.full(6, 0.1, np.float32)),
    "int8 in groups": in_int8(int4(320, 32)),
    "int8 within groups": in_int8(int4(160, 128, has_offsets=False)),
    "int4 at borders": int4(320, 32),
    "int4 within groups": int4(160, 128, has_offsets=False),
    "int4 with a short group": int4(320, 128),
    "blocks": q4_0(320),
    "within blocks": q4_0(160),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("ranks", [2, 5])
def test_columns_stand_for_what_they_did(matrix: Matrix, ranks: int) -> None:
    columns = matrix.shape[1]
    size = columns // ranks
    held = [columns_of(matrix, slice(at, at + size)) for at in range(0, columns, size)]
    assert [one.shape for one in held] == [(6, size)] * ranks
    assert not isinstance(held[0], np.ndarray) or isinstance(matrix, np.ndarray)
    np.testing.assert_array_equal(np.concatenate([dequantized(one) for one in held], 1), dequantized(matrix))


def test_inputs_out_of_order_are_held_in_int8() -> None:
    matrix = ReorderedMatrix(int4(96, 32), RANDOM.permutation(96).astype(np.int32))
    held = [columns_of(matrix, slice(at, at + 48)) for at in (0, 48)]
    assert all(isinstance(one, Int8Matrix) for one in held)
    found, meant = np.concatenate([dequantized(one) for one in held], 1), dequantized(matrix)
    assert np.abs(found - meant).max() <= np.abs(meant).max() / 127


def test_a_group_that_cannot_be_divided_is_refused() -> None:
    class Quantized(Whole):
        def matrix(self, name: str, shape: tuple[int, int]) -> Any:
            return with_fields(int4(shape[1], 32), codes=np.zeros(shape, np.uint8), scales=np.ones((shape[0], 3)))

    source = ShardedTensors(Quantized(), Shard(llama(intermediate_size=80), 1, 2))
    with pytest.raises(ModelError, match=r"down_proj.weight' cannot be shared by 2 devices: .*groups of 32.*input 40"):
        source.matrix("model.layers.0.mlp.down_proj.weight", (32, 40))
