"""A value that holds until it changes: read at a time, and by columns that keep all of it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.report.steps.series import StepFunction

CHANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 3)), max_size=20)


def test_it_holds_until_it_changes() -> None:
    function = StepFunction.of_changes([(1.0, 2), (3.0, -1), (3.0, 4)])
    assert [function.at(time) for time in (0.5, 1.0, 2.9, 3.0, 9.0)] == [0, 2, 2, 5, 5]
    assert function.greatest == 5
    assert function.mean(0.0, 4.0) == pytest.approx((0 + 2 + 2 + 5) / 4)


def test_a_column_has_all_its_values() -> None:
    function = StepFunction.of_changes([(0.0, 1), (1.5, 9), (1.6, -9)])
    first, second = function.columns(0.0, 2.0, 2)
    assert (first.low, first.mean, first.high) == (1, 1, 1)
    assert (second.low, second.high) == (1, 10) and second.mean == pytest.approx(1.9)


@given(changes=CHANGES, number=st.integers(1, 9))
def test_columns_keep_the_integral(changes: list[tuple[int, int]], number: int) -> None:
    function = StepFunction.of_changes(changes)
    columns = function.columns(0.0, 41.0, number)
    exact = sum(value * max(0, 41 - time) for time, value in changes)
    assert sum(column.mean for column in columns) * 41.0 / number == pytest.approx(exact, abs=1e-6)
    assert all(column.low - 1e-9 <= column.mean <= column.high + 1e-9 for column in columns)
