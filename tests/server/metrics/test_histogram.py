"""Histograms that are shown under several sets of buckets."""

from __future__ import annotations

import pytest

from inflight.server.metrics.histogram import Histogram


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1, 2), (1, 5))
    for value in (0.5, 1, 1.5, 2, 4, 5, 6):
        histogram.observe(value)
    assert histogram.buckets((1, 2)) == [("1.0", 2), ("2.0", 4), ("+Inf", 7)]
    assert histogram.buckets((1, 5)) == [("1.0", 2), ("5.0", 6), ("+Inf", 7)]
    assert Histogram.together([histogram, histogram]).buckets((1, 2))[-1] == ("+Inf", 14)
    assert Histogram.together([histogram, histogram]).sum() == 40
    with pytest.raises(ValueError, match=r"3\.0"):
        histogram.buckets((1, 3))
