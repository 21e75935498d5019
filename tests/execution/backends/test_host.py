"""Aligned arrays."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends import host


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 1024), (300, 4099)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_begins_on_a_cache_line(shape, dtype):
    made = host.empty(shape, dtype)
    assert made.ctypes.data % 64 == 0
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.flags.c_contiguous
    made[...] = 1  # all of it is its own
    assert made.sum() == made.size
