"""Packed weights and settings of draws on a device, as the definitions read them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from inflight.execution import ops
from inflight.execution.backends import fp8, int8
from inflight.execution.backends.torch.definitions import Definitions, widened
from inflight.execution.backends.torch.quantizing import quantize_fp8, quantize_int8
from inflight.execution.backends.torch.weights import PackedMatrix
from inflight.execution.batch.token_bias import bits
from inflight.execution.ops import sampling as reference

from ..material import normal, sampling
from ..test_int4 import MXFP4, matrix, out_of_order
from .draw_tensors import bad_words, compared, draws_of, penalties
from .launched import Given, define
from .matrices import eight_bits, in_fp8, in_groups, in_int4, in_int8, linear

ROWS, COLUMNS = 24, 80
CPU = torch.device("cpu")
both = partial(compared, Definitions().sample, CPU)


def product(x: np.ndarray, held: PackedMatrix) -> np.ndarray:
    out = torch.full((len(x), ROWS), torch.nan)
    define(ops.linear, Given(), torch.from_numpy(x), linear([held], x.shape[1]), out)
    return out.numpy()


@pytest.mark.parametrize("scale", [1.0, 1e-31, 1e30])
def test_int8_is_the_rule_to_the_last_bit(scale: float) -> None:
    x, values = normal(1, 6, COLUMNS) * np.float32(scale), normal(2, ROWS, COLUMNS)
    x[1] = 0
    x[2, 3], x[3, 4] = np.inf, np.nan
    want, x_scales = int8.quantize(x)
    for found, one in zip(quantize_int8(torch.from_numpy(x)), (want, x_scales), strict=True):
        np.testing.assert_array_equal(found.numpy(), one)
    codes, scales = int8.quantize(values)
    sums = (want.astype(np.float64) @ codes.astype(np.float64).T).astype(np.float32)
    np.testing.assert_array_equal(product(x, in_int8(values)), sums * x_scales[:, None] * scales)


def test_fp8_is_the_rule_and_errs_as_little_as_three_bits_of_mantissa_allow() -> None:
    x, values = normal(1, 6, COLUMNS), normal(2, ROWS, COLUMNS)
    x[1], x[2, 3], x[3, :4] = 0, np.nan, [1e-4, -1e-6, 3e-5, -0.0]
    (codes, scales), (found, found_scales) = fp8.quantize(x), quantize_fp8(torch.from_numpy(x))
    np.testing.assert_array_equal(codes, found.view(torch.uint8).numpy())
    np.testing.assert_array_equal(scales, found_scales.numpy())
    sound = [0, 1, 3, 4, 5]
    numbers = (fp8.E4M3[codes] * scales[:, None])[sound]
    smallest = np.abs(x[sound]).max(axis=1, keepdims=True) * 2**-15  # half a step between subnormals, of 448
    assert np.all(np.abs(numbers - x[sound]) <= np.maximum(np.abs(x[sound]) * 2**-4, smallest))
    assert np.isnan(scales[2]) and np.abs(fp8.E4M3[codes[4]]).max() == 448
    x[3] = normal(1, 6, COLUMNS)[3]
    assert np.abs(product(x, in_fp8(values))[sound] - x[sound] @ values.T).max() < 0.08 * COLUMNS**0.5


def test_every_number_of_fp8_has_its_own_code() -> None:
    codes = np.array([one for one in range(256) if one & 127 != 127], np.uint8)
    np.testing.assert_array_equal(fp8.encoded(fp8.E4M3[codes]), codes)


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", ["symmetric", "offsets", "mxfp4", "out of order", "8 bits", "8 bits, offsets"])
def test_codes_of_groups_are_widened(group: int, kind: str) -> None:
    """Take columns that fill their last group by half."""
    columns, x = 2 * group + group // 2, normal(4, 3, 2 * group + group // 2)
    if kind.startswith("8"):
        source = eight_bits(ROWS, columns, group, "offsets" in kind)
        held = in_groups(source)
    else:
        four = matrix(ROWS, columns, group, kind == "offsets", MXFP4 if kind == "mxfp4" else np.arange(-8, 8))
        source = out_of_order(four) if kind == "out of order" else four
        held = in_int4(source)
    want = source.dequantized()
    np.testing.assert_allclose(widened(held, columns), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(product(x, held), x @ want.T, atol=1e-2)


def test_settings_of_draws_are_read() -> None:
    """Filters, penalties, biases, and log-probabilities; rows are not draws."""
    filters: list[dict[str, Any]] = [{}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.1}]
    for temperature, of in [(0.0, {}), *((0.8, one) for one in filters)]:
        both(2 * normal(4, 9, 400), temperature=temperature, **penalties(9), **of)


@pytest.mark.parametrize("vocabulary", [1, 33, 1000])
def test_only_what_is_allowed_is_drawn(vocabulary: int) -> None:
    rows, rng = 10, np.random.default_rng(6)
    allowed = [set(rng.integers(0, vocabulary, 1 + row // 2).tolist()) for row in range(rows)]
    got, _ = both(
        3 * normal(8, rows, vocabulary),
        temperature=[0.0, 0.9] * 5,
        seed=np.arange(rows),
        allowed=[bits(one, vocabulary) if row != 4 else None for row, one in enumerate(allowed)],
    )
    drawn = got.token_ids.tolist()
    assert all(token in one for row, (token, one) in enumerate(zip(drawn, allowed, strict=True)) if row != 4)


def test_where_all_is_banned_the_draw_says_so() -> None:
    logits = normal(9, 4, 70)
    logits[3] = np.nan
    nothing = np.zeros(3, np.uint32)
    got, _ = both(logits, allowed=[nothing, None, nothing, None], temperature=[1.0, 0.0, 0.0, 1.0])
    assert got.was_banned.tolist() == [True, False, True, False]
    assert got.is_sound.tolist() == [False, True, False, False]
    every = {"bias_offsets": np.array([0, 70, 70], np.int32), "bias_ids": np.arange(70, dtype=np.int32)}
    got, _ = both(logits[:2], bias_values=np.full(70, -np.inf, np.float32), temperature=0.5, **every)
    assert got.was_banned.tolist() == [True, False]


def test_bad_sequences_are_found_at_the_outputs_end() -> None:
    logits, batch, bad, banned = bad_words()
    assert sum(map(len, banned)) > 10
    got = Definitions().sample(torch.from_numpy(logits.copy()), draws_of(batch, CPU, bad))
    for row, ids in enumerate(banned):
        logits[row, ids] = -np.inf
    assert got.token_ids.tolist() == logits.argmax(1).tolist()


def test_scores_are_the_definitions() -> None:
    logits, token_ids = 4 * normal(6, 20, 100), np.random.default_rng(1).integers(0, 100, 20).astype(np.int32)
    got = Definitions().score(torch.from_numpy(logits), torch.from_numpy(token_ids), 5)
    for found, want in zip(got, reference.score(logits, token_ids, np.full(20, 5, np.int32)), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)


def test_a_batch_without_any_draw_is_empty() -> None:
    got = Definitions().sample(torch.empty(0, 9), draws_of(sampling(0), CPU))
    assert not len(got.token_ids)
