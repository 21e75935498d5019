"""The mixing of channels before keys are quantized: what it leaves as it is, and what it spreads."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends import int8
from inflight.execution.backends.channel_mixing import mixed_channels, run_length

from .material import normal

WIDTHS = (2, 10, 72, 128, 256)


@pytest.mark.parametrize("width", WIDTHS)
def test_products_of_queries_and_keys_stay(width: int) -> None:
    queries, keys = normal(1, 5, 3, width), normal(2, 5, 3, width)
    mixed = mixed_channels(queries, is_query=True) * mixed_channels(keys, is_query=False)
    np.testing.assert_allclose(mixed.sum(axis=2), (queries * keys).sum(axis=2), atol=1e-4)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_a_matrix_of_signs_in_runs(width: int) -> None:
    """By bits: the sign of number i in sum j is that of how many bits both have in common (Sylvester's order)."""
    run = run_length(width)
    found = mixed_channels(np.eye(width, dtype=np.float32), is_query=False)
    factor = np.abs(found).max()
    assert factor in (run**-0.5, (run / 2) ** -0.5)
    for i, row in enumerate(found):
        first = i // run * run
        signs = [(-1) ** ((i - first) & j).bit_count() for j in range(run)]
        np.testing.assert_array_equal(row[first : first + run], factor * np.array(signs))
        assert np.count_nonzero(row) == run


def test_a_large_channel_leaves_the_others_their_digits() -> None:
    keys = normal(3, 200, 1, 128)
    keys[:, :, 17] *= 60

    def error(rows: np.ndarray) -> float:
        whole, scales = int8.quantize(rows[:, 0])
        return float(np.linalg.norm(whole * scales[:, None] - rows[:, 0]) / np.linalg.norm(rows))

    assert error(mixed_channels(keys, is_query=False)) < 0.5 * error(keys)
