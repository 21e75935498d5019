"""Blocks of every type that is read, against the format's own library; and what packing them costs."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from inflight.execution.backends.int8 import quantize
from inflight.execution.backends.matrices import Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.dequantize import dequantize, readable
from inflight.execution.checkpoints.gguf.packing import EXACT, packed

BLOCKS = {kind: gguf.GGML_QUANT_SIZES[Type[kind]] for kind in readable() if gguf.GGML_QUANT_SIZES[Type[kind]][0] > 1}
ROWS, COLUMNS = 8, 1024


def blocks_of(kind: str, count: int) -> np.ndarray:
    """Any bytes; a block is 1/16 of all (values, bytes) wide."""
    return np.random.default_rng(3).integers(0, 256, (count, BLOCKS[kind][1]), np.uint8)


def likely_blocks(kind: str, count: int) -> np.ndarray:
    """As `blocks_of`, with scales as models have them: half precision numbers from 2⁻¹⁰ to 2⁻⁹."""
    found = blocks_of(kind, count)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(
        kind, (0, 2) if kind in ("Q4_K", "Q5_K") else (0,)
    ):
        if kind == "MXFP4":
            found[:, 0] = 117
        else:
            found[:, at + 1] = 0x14 | (found[:, at + 1] & 0x03)
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
def test_four_bits_lose_nothing(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    assert isinstance(found, Int4Matrix) and found.group == (16 if kind in ("Q2_K", "Q3_K") else 32)
    assert found.codes.max() < 16 and found.meanings.dtype == np.int8
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    assert np.array_equal(found.dequantized().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - set(EXACT)))
def test_eight_bits_are_rounded_once_by_output(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    values, scales = quantize(expected)
    assert isinstance(found, Int8Matrix)
    assert np.array_equal(found.values, values) and np.array_equal(found.scales, scales)
