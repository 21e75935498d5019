"""Rotations in PyTorch against the definition in numpy, and all that they leave in the KV cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from inflight.execution.backends.protocol import KVLayer, KVShape
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch import eager
from inflight.execution.ops.numpy_pass import CachedVectors

from ..material import OnArrays, act, normal, read
from .rotations import (
    BLOCK_SIZE,
    BLOCKS,
    EPS,
    ROTATIONS,
    Rotation,
    layer_on,
    metadata,
    on,
    pass_on,
    rope_on,
    rope_table,
)

CPU = torch.device("cpu")
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def close(dtype: str, got: Tensor, want: np.ndarray) -> None:
    rtol = 2**-7 if dtype == "bfloat16" else 3e-6
    np.testing.assert_allclose(got.float().numpy(), want, rtol=rtol, atol=1e-5)


def holds(dtype: str, got: Tensor, scales: Tensor | None, want: CachedVectors) -> None:
    """The same numbers in all blocks. A whole number may be another where sums end in other last bits."""
    if scales is None:
        close(dtype, got, want.act.load(want.numbers))
    else:
        close(dtype, scales, want.scales)
        np.testing.assert_allclose(got.numpy(), want.numbers, atol=1)


@pytest.mark.parametrize("held", ["act", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ROTATIONS, ids=str)
def test_rope_and_write_kv(dtype: str, case: Rotation, held: str) -> None:
    reference = OnArrays(ReferenceBackend(dtype))
    cache = reference.kv_cache(KVShape.uniform(1, BLOCK_SIZE, case.kv_heads, case.width, held == "int8"), BLOCKS)
    where = metadata()
    qkv, queries = case.qkv(len(where.positions)), case.heads * case.width
    want = act(dtype, len(qkv), queries)
    q_norm, k_norm, v_norm = case.norms
    reference.rope_and_write_kv(
        qkv, cache, 0, where, case.table, q_norm, k_norm, EPS, want, case.norms_last, v_norm
    )  # fmt: skip
    layer = layer_on(CPU, FORMATS[dtype], held, case.kv_heads, case.width, case.width)
    got = torch.full((len(qkv), queries), torch.nan, dtype=FORMATS[dtype])
    norms = [on(CPU, norm) for norm in case.norms]
    eager.rope_and_write_kv(
        on(CPU, qkv), layer, rope_on(CPU, case.table), *norms, EPS, case.norms_last, pass_on(CPU, where), got
    )
    close(dtype, got, read(dtype, want))
    holds(dtype, layer.keys, layer.key_scales, cache.layer(0).keys)
    holds(dtype, layer.values, layer.value_scales, cache.layer(0).values)
    assert layer.keys.any() == bool(case.written)


@pytest.mark.parametrize("held", ["act", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "nope", "rank", "rotated"), [(2, 8, 16, 4), (5, 7, 10, 6)])
def test_rope_and_write_latent(dtype: str, heads: int, nope: int, rank: int, rotated: int, held: str) -> None:
    reference, where = ReferenceBackend(dtype), metadata()
    shape = KVShape(BLOCK_SIZE, (KVLayer(0, 1, rank + rotated, 0),), held == "int8")
    cache, tokens = reference.kv_cache(shape, BLOCKS), len(where.positions)
    q, kv = 3 * normal(1, tokens, heads * (nope + rotated)), normal(2, tokens, rank + rotated)
    weight, table = normal(3, rank), rope_table(rotated)
    wanted = [act(dtype, tokens, heads * nope), act(dtype, tokens, heads * (rank + rotated))]
    on_arrays = OnArrays(reference)
    operands = [on_arrays.activation_of(each) for each in (q, kv)]
    on_arrays.over(where, cache).rope_and_write_latent(
        *operands, 0, table, weight, EPS, *(on_arrays.activation_of(each) for each in wanted)
    )
    layer = layer_on(CPU, FORMATS[dtype], held, 1, rank + rotated, 0)
    nope_out, q_out = (torch.full(each.shape, torch.nan, dtype=FORMATS[dtype]) for each in wanted)
    eager.rope_and_write_latent(
        on(CPU, q), on(CPU, kv), layer, rope_on(CPU, table), on(CPU, weight), EPS, pass_on(CPU, where), nope_out, q_out
    )
    for got, want in zip((nope_out, q_out), wanted, strict=True):
        close(dtype, got, read(dtype, want))
    holds(dtype, layer.keys, layer.key_scales, cache.layer(0).keys)


def test_fp8_keeps_the_largest_of_each_head_and_four_digits_of_the_others() -> None:
    case, where = ROTATIONS[0], metadata()
    qkv, plain = on(CPU, case.qkv(len(where.positions))), layer_on(CPU, torch.float32, "act", 2, 16, 16)
    layer, q_out = layer_on(CPU, torch.float32, "fp8", 2, 16, 16), torch.empty(len(where.positions), 64)
    for each in (plain, layer):
        eager.rope_and_write_kv(
            qkv, each, rope_on(CPU, case.table), None, None, None, EPS, False, pass_on(CPU, where), q_out
        )
    for got, scales, want in [
        (layer.keys, layer.key_scales, plain.keys),
        (layer.values, layer.value_scales, plain.values),
    ]:
        torch.testing.assert_close(scales, want.abs().amax(dim=3) / 448, rtol=1e-6, atol=0)
        torch.testing.assert_close(got.float() * scales[..., None], want, rtol=2**-4, atol=1e-2)


def test_begin() -> None:
    where = pass_on(CPU, metadata())
    tokens = torch.arange(8 * 70, dtype=torch.int32).view(8, 70)
    before = where.block_tables.clone()
    eager.begin(torch.tensor([[1, 3, 2, 77], [0, 7, 0, 5]], dtype=torch.int32), tokens, where)
    changed = (where.block_tables != before).nonzero().tolist()
    assert changed == [[0, 7, 0], [1, 3, 2]] and where.block_tables[1, 3, 2] == 77 and where.block_tables[0, 7, 0] == 5
    assert where.token_ids.tolist() == [70 + p for p in range(14, 17)] + [3 * 70, 5 * 70 + 47]
    eager.begin(torch.empty(0, 4, dtype=torch.int32), tokens + 1, where)
    assert where.token_ids.tolist() == [71 + p for p in range(14, 17)] + [3 * 70 + 1, 5 * 70 + 48]
