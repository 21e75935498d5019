"""Blocks of every type that is read, against the format's own library; and what packing them costs."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from inflight.execution.backends.int8 import quantize
from inflight.execution.backends.matrices import Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.dequantize import dequantize, readable
from inflight.execution.checkpoints.gguf.packing import EXACT, GROUP, MERGED, fitted, packed
from inflight.models.gguf.tensor_types import tensor_type

BLOCKS = {kind: gguf.GGML_QUANT_SIZES[Type[kind]] for kind in readable() if gguf.GGML_QUANT_SIZES[Type[kind]][0] > 1}
ROWS, COLUMNS = 8, 1024


def blocks_of(kind: str, count: int) -> np.ndarray:
    """Any bytes."""
    return np.random.default_rng(3).integers(0, 256, (count, BLOCKS[kind][1]), np.uint8)


HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}  # where blocks have half precision numbers
HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))


def likely_blocks(kind: str, count: int) -> np.ndarray:
    """As `blocks_of`, with scales as models have them: from 2⁻¹⁰ to 2⁻⁹."""
    found = blocks_of(kind, count)
    for at in HALVES.get(kind, (0,)):
        found[:, at + 1] = 0x14 | (found[:, at + 1] & 0x03)
    if kind == "MXFP4":
        found[:, 0] = 117
    return found


@pytest.mark.parametrize("kind", BLOCKS)
def test_values_are_the_librarys_bit_for_bit(kind: str) -> None:
    """Of any bytes; where they make no number, it is none in both."""
    blocks = blocks_of(kind, 5000)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, Type[kind]).ravel()
    found = dequantize(kind, blocks, BLOCKS[kind][0])
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


@pytest.mark.parametrize("kind", EXACT)
def test_four_bits_in_groups_of_32_lose_nothing(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    assert isinstance(found, Int4Matrix) and found.group == GROUP
    assert found.codes.max() < 16 and found.meanings.dtype == np.int8
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    assert np.array_equal(found.dequantized().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", MERGED)
def test_two_groups_of_16_become_one(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    codes, scales, offsets = fitted(expected.reshape(-1, GROUP))
    assert isinstance(found, Int4Matrix) and found.offsets is not None and found.group == GROUP
    assert np.array_equal(found.codes, codes.reshape(ROWS, COLUMNS))
    assert np.array_equal(found.scales.ravel(), scales) and np.array_equal(found.offsets.ravel(), offsets)
    error = np.sqrt(((found.dequantized() - expected) ** 2).mean() / (expected**2).mean())
    assert error < 0.1  # random scales differ more within a group than those of models


def test_scale_and_offset_are_near_the_least_squares() -> None:
    """Against a solver, group by group: other scales and offsets would leave hardly less (codes are rounded once more
    after the last fit), and the range leaves more."""
    values = np.random.default_rng(1).standard_normal((50, GROUP)).astype(np.float32)
    values[0] = 3.5  # all alike
    codes, scales, offsets = fitted(values)
    for one, code, scale, offset in zip(values, codes, scales, offsets, strict=True):
        left = ((code * scale + offset - one) ** 2).sum()
        by_range = (one.max() - one.min()) / 15
        plain = np.rint((one - one.min()) / max(by_range, 1e-9)) * by_range + one.min()
        (best, low), *_ = np.linalg.lstsq(np.stack([code, np.ones(GROUP)], axis=1), one, rcond=None)
        assert left <= ((plain - one) ** 2).sum() + 1e-9
        assert left <= 1.25 * ((code * best + low - one) ** 2).sum() + 1e-9
    for broken in (np.inf, np.nan):
        assert np.isnan(fitted(np.full((1, GROUP), broken, np.float32))[1][0])


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - {*EXACT, *MERGED}))
def test_eight_bits_are_rounded_once_by_output(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    values, scales = quantize(expected)
    assert isinstance(found, Int8Matrix)
    assert np.array_equal(found.values, values) and np.array_equal(found.scales, scales)


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_weight_takes_is_known_before_it_is_packed(kind: str) -> None:
    found = packed(kind, likely_blocks(kind, COLUMNS // BLOCKS[kind][0]), (1, COLUMNS), BLOCKS[kind][0])
    four = isinstance(found, Int4Matrix) and 0.5 + 2 / GROUP * (1 if found.offsets is None else 2)
    known = tensor_type(int(Type[kind]))
    assert known is not None and known.held_bytes == (four or 1)
