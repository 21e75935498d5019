"""Blocks of every type that is read, against the format's own library, and as matrices."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from inflight.execution.backends.matrices import Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.blocks import dequantize, packed, readable
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
    """Take any bytes; where they make no number, it is NaN in both."""
    blocks = blocks_of(kind, 5000)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, Type[kind]).ravel()
    found = dequantize(kind, blocks, BLOCKS[kind][0])
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


@pytest.mark.parametrize("kind", BLOCKS)
def test_packing_keeps_every_number(kind: str) -> None:
    blocks = likely_blocks(kind, ROWS * COLUMNS // BLOCKS[kind][0])
    found = packed(kind, blocks, (ROWS, COLUMNS), BLOCKS[kind][0])
    assert isinstance(found, Int8Matrix if kind in ("Q8_0", "Q5_0", "Q5_1", "Q5_K", "Q6_K") else Int4Matrix)
    assert found.group == (16 if kind in ("Q2_K", "Q3_K", "Q6_K") else 32)
    expected = gguf.quants.dequantize(blocks, Type[kind]).reshape(ROWS, COLUMNS)
    assert np.array_equal(found.dequantized().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_weight_takes_is_known_before_it_is_packed(kind: str) -> None:
    found = packed(kind, likely_blocks(kind, COLUMNS // BLOCKS[kind][0]), (1, COLUMNS), BLOCKS[kind][0])
    numbers = 1 if found.offsets is None else 2
    known = tensor_type(int(Type[kind]))
    assert known is not None
    assert known.held_bytes == (0.5 if isinstance(found, Int4Matrix) else 1) + numbers * 2 / found.group
