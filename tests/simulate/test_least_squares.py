"""Non-negative least squares: what it finds is the best there is, by the conditions of optimality."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from inflight.simulate.fitted import nnls


def test_it_finds_what_made_the_target() -> None:
    matrix = np.array([[1.0, 1], [1, 2], [1, 3], [1, 5]])
    assert nnls(matrix, matrix @ [2.0, 0.5]) == pytest.approx([2.0, 0.5])


def test_what_would_be_negative_is_zero() -> None:
    matrix = np.array([[1.0, 1], [1, 2], [1, 3]])
    found = nnls(matrix, np.array([3.0, 2.0, 1.0]))
    assert found == pytest.approx([2.0, 0.0])


def test_a_column_of_zeros_gets_nothing() -> None:
    assert nnls(np.array([[1.0, 0], [2, 0]]), np.array([1.0, 2.0])) == pytest.approx([1.0, 0.0])


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_no_step_from_it_is_better(seed: int, columns: int, doubled: int) -> None:
    """Karush, Kuhn and Tucker: the gradient is 0 where x > 0, and nowhere would more help. Columns may be equal."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(columns + 8, columns)) * 10.0 ** rng.integers(-4, 5, size=columns)
    matrix = np.hstack([matrix, matrix[:, :doubled]])
    target = rng.normal(size=len(matrix))
    found = nnls(matrix, target)
    scale = np.sqrt((matrix**2).sum(axis=0))
    descent = matrix.T @ (target - matrix @ found) / scale
    assert (found >= 0).all()
    assert (descent <= 1e-7).all()
    assert (np.abs(descent[found * scale > 1e-9]) <= 1e-7).all()
