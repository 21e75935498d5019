"""Adapters in the kernels' products, against numpy; and the sameness of each row's bits in any company.

Tolerances as of products without them; what is added is rounded once more in between, as activations are held.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends.matrices import ReorderedMatrix
from inflight.execution.backends.protocol import Delta, KVShape, LowRank
from inflight.execution.batch.pass_layout import AdaptedRows, PassInputs

from .material import OneByOne, act, held, metadata_of, normal, read

RANGES = ((0, 3, 0), (3, 9, 1), (14, 1, 0), (15, 20, 2))  # first row, rows, adapter


def a_pass(ops: Any, tokens: int, adapted: tuple[AdaptedRows, ...]) -> Any:
    blocks = -(-tokens // 16)
    cache = ops.kv_cache(KVShape.uniform(1, 16, 1, 32), blocks)
    metadata, none = metadata_of([(0, tokens, list(range(blocks)))]), np.zeros(0, np.int32)
    inputs = PassInputs(none, none, np.zeros(tokens, np.int32), metadata, adapted=adapted)
    return OneByOne(ops.backend, ops.backend.forward_pass(inputs, cache, ops._slots, ()))


def adapters(ops: Any, weight: Any, outputs: int, columns: int) -> list[Any]:
    """Make adapters of all outputs in three parts of rank 4; of some outputs, of rank 9; of all, of rank 40."""
    third = outputs // 3
    ends = (0, third, 2 * third, outputs)
    parts = [
        [(first, last - first, 4) for first, last in itertools.pairwise(ends)],
        [(third, third, 9)],
        [(0, outputs, 40)],
    ]
    return [ops.backend.pack_adapter([delta(weight, one, columns, seed)]) for seed, one in enumerate(parts)]


def delta(weight: Any, parts: list[tuple[int, int, int]], columns: int, seed: int) -> Delta:
    made = [
        LowRank(first, 0.2 * normal(seed + 10 * rank, rank, columns), normal(seed + first, rows, rank))
        for first, rows, rank in parts
    ]
    return Delta(weight, tuple(made))


def run(ops: Any, name: str, x: np.ndarray, weight: Any, out: np.ndarray, ranges: Any, found: list[Any]) -> np.ndarray:
    """One product of rows x, of which these have adapters."""
    adapted = tuple(AdaptedRows(slice(first, first + count), found[which]) for first, count, which in ranges)
    batch, on = a_pass(ops, len(x), adapted), ops.activation_of
    arguments = {"gate_up": ("silu",), "gate_up gelu": ("gelu",), "gate_up gelu_tanh": ("gelu_tanh",)}.get(name, ())
    if name.startswith("linear_act"):
        batch.linear_act(on(x), weight, name.split()[1], on(out))
    else:
        getattr(batch, name.split()[0])(on(x), weight, on(out), *arguments)
    return out


NAMES = (
    "linear",
    "linear_residual",
    "gate_up",
    "gate_up gelu",
    "gate_up gelu_tanh",
    "linear_act relu",
    "linear_act gelu",
)


def packed(ops: Any, name: str, rows: int, columns: int, hold: str) -> Any:
    if name.startswith("gate_up"):
        return ops.backend.pack_gate_up(normal(1, rows, columns), normal(2, rows, columns), hold)
    return ops.backend.pack_linear([normal(1, rows - 5, columns), normal(2, 5, columns)], normal(3, rows), hold)


def empty(ops: Any, name: str, tokens: int, rows: int) -> np.ndarray:
    if name == "linear_residual":
        return normal(8, tokens, rows)
    return np.full((tokens, rows), np.nan, np.float32) if name == "linear" else act(ops.dtype, tokens, rows)


@pytest.mark.parametrize("hold", ["act", "int8", "int4"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [48, 99])
def test_products_are_the_references(ops: Any, reference: Any, dtype: str, name: str, hold: str, rows: int) -> None:
    columns, tokens = 70, 40
    x = held(dtype, normal(5, tokens, columns))
    found = []
    for one in (ops, reference):
        weight = packed(one, name, rows, columns, hold)
        outputs = (2 if name.startswith("gate_up") else 1) * rows
        out = empty(one, name, tokens, rows)
        run(one, name, x, weight, out, RANGES, adapters(one, weight, outputs, columns))
        found.append(out if out.dtype == np.float32 else read(dtype, out))
    scale = np.abs(found[1]).max()
    np.testing.assert_allclose(found[0], found[1], atol=(3e-5 if dtype == "float32" else 2e-2) * scale)


@pytest.mark.parametrize("name", ["linear", "gate_up", "linear_act gelu"])
def test_a_row_has_its_own_bits(ops: Any, dtype: str, name: str) -> None:
    """Compare rows alone with their adapter and among others; and without one, as where no row has any."""
    columns, tokens, rows = 70, 40, 99
    x, weight = held(dtype, normal(5, tokens, columns)), packed(ops, name, rows, columns, "act")
    loaded = adapters(ops, weight, (2 if name == "gate_up" else 1) * rows, columns)
    together = run(ops, name, x, weight, empty(ops, name, tokens, rows), RANGES, loaded)
    of_row = {row: which for first, count, which in RANGES for row in range(first, first + count)}
    for row in range(tokens):
        mine = [(0, 1, of_row[row])] if row in of_row else []
        alone = run(ops, name, x[row : row + 1].copy(), weight, empty(ops, name, 1, rows), mine, loaded)
        np.testing.assert_array_equal(alone[0].view(np.uint8), together[row].view(np.uint8), err_msg=f"row {row}")


def test_many_rows_are_taken_in_blocks(ops: Any, reference: Any, dtype: str) -> None:
    """Take so many outputs that sums added to all rows at once would leave the caches."""
    columns, tokens, rows = 18, 150, 33_000
    x, found = held(dtype, normal(5, tokens, columns)), []
    ranges = ((5, 50, 0), (60, 85, 1))
    for one in (ops, reference):
        weight = one.backend.pack_linear([normal(1, rows, columns)])
        loaded = adapters(one, weight, rows, columns)
        found.append(run(one, "linear", x, weight, np.empty((tokens, rows), np.float32), ranges, loaded))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3 if dtype == "float32" else 0.1)


def test_inputs_that_a_checkpoint_orders_anew_reach_adapters_as_they_are(ops: Any, reference: Any, dtype: str) -> None:
    columns, tokens, rows = 64, 20, 48
    order = np.random.default_rng(3).permutation(columns)
    x, found = held(dtype, normal(5, tokens, columns)), []
    for one in (ops, reference):
        weight = one.backend.pack_linear([ReorderedMatrix(quantized(rows, columns), order)])
        out = np.empty((tokens, rows), np.float32)
        found.append(run(one, "linear", x, weight, out, RANGES[:3], adapters(one, weight, rows, columns)))
    np.testing.assert_allclose(found[0], found[1], atol=2e-2 * np.abs(found[1]).max())


def quantized(rows: int, columns: int) -> Any:
    from inflight.execution.backends.int4 import quantize

    return quantize(normal(1, rows, columns), 32)


def test_what_does_not_fit_is_refused(ops: Any) -> None:
    weight = ops.backend.pack_linear([normal(1, 48, 64)])
    for parts, sentence in [
        ([LowRank(40, normal(1, 4, 64), normal(2, 9, 4))], "are not among the matrix's 48"),
        ([LowRank(0, normal(1, 4, 60), normal(2, 9, 4))], "columns of the matrix"),
        ([LowRank(0, normal(1, 5, 64), normal(2, 9, 4))], "A must be"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            ops.backend.pack_adapter([Delta(weight, tuple(parts))])
    loaded = ops.backend.pack_adapter([delta(weight, [(0, 48, 4)], 64, 1)])
    assert loaded.nbytes > 0
    for first, count in ((0, 17), (-1, 2), (3, 0)):
        with pytest.raises(ValueError, match="must rise within the pass's 16 tokens"):
            a_pass(ops, 16, (AdaptedRows(slice(first, first + count), loaded),))
