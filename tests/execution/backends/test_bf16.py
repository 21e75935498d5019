"""bf16 for numpy against torch's own conversion."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends.bf16 import from_bf16, to_bf16


def test_every_bf16_value_survives():
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    values = from_bf16(halves)
    same = to_bf16(values) == halves
    assert same[~np.isnan(values)].all()
    assert np.isnan(from_bf16(to_bf16(values[np.isnan(values)]))).all()


def test_rounding_is_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 3.4e38, np.inf], np.float32)
    want = np.array([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -1.0, np.inf, np.inf], np.float32)
    np.testing.assert_array_equal(from_bf16(to_bf16(values)), want)


def test_as_torch_does_it():
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    want = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bf16(values), want)
