"""Two matrices that a group of outputs holds side by side."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends import grouped
from inflight.execution.backends.matrices import Int8Matrix, alike, by_output


@pytest.mark.parametrize("columns", [40, 64, 96, 128, 896, 900])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_one_scale_for_each_output_beside_groups_with_offsets(columns: int, group: int) -> None:
    """Also where a row is shorter than a group, of which the offsets must not be lost."""
    rng = np.random.default_rng(columns + group)
    gate = by_output(rng.integers(-127, 128, (4, columns)).astype(np.int8), np.full(4, 0.5, np.float32))
    numbers = [rng.integers(1, 5, (4, -(-columns // group))).astype(np.float32) for _ in range(2)]
    up = Int8Matrix(rng.integers(-127, 128, (4, columns)).astype(np.int8), *numbers, group)
    for found, given in zip(alike(gate, up, "int8"), (gate, up), strict=True):
        assert isinstance(found, Int8Matrix)
        assert np.array_equal(found.dequantized(), given.dequantized())
        assert np.array_equal(grouped.hold(found).rows(np.arange(4)), given.dequantized())
