"""Figures of workloads: rates, bursts, lengths, shared prefixes."""

from __future__ import annotations

import pytest

from inflight.planning import analyze_traffic
from inflight.planning.demand import traffic_of
from inflight.workload.workload import Entry, Workload

from .builders import drawn, workload


def test_rates_and_lengths() -> None:
    found = analyze_traffic(workload((0, 100, 10), (1, 200, 20), (2, 300, 30)))
    assert (found.requests, found.span_s, found.rate) == (3, 2, 1)
    assert (found.input.p50, found.output.mean, found.longest) == (200, 20, 330)
    assert found.gap_variation == 0


def test_the_context_of_a_running_sequence_weighs_long_answers_more() -> None:
    found = analyze_traffic(workload((0, 100, 10), (1, 100, 90)))
    assert found.mean_context == pytest.approx((10 * 105 + 90 * 145) / 100)


@pytest.mark.wide
@pytest.mark.parametrize(("given", "least", "most"), [(1.0, 0.8, 1.2), (4.0, 3.0, 5.0), (0.25, 0.2, 0.3)])
def test_gap_variation_is_found_again(given: float, least: float, most: float) -> None:
    assert least < traffic_of(drawn(gap_variation=given)).gap_variation < most


def test_the_peak_is_that_of_the_busiest_five_minutes() -> None:
    quiet = [(float(time), 10, 10) for time in range(0, 3600, 10)]
    busy = [(1000 + 0.5 * number, 10, 10) for number in range(600)]
    found = analyze_traffic(workload(*sorted(quiet + busy)))
    assert found.peak_rate == pytest.approx(2.1, rel=0.02)
    assert found.rate < 0.3


def test_a_short_workload_has_no_other_peak() -> None:
    found = analyze_traffic(workload(*((float(time), 10, 10) for time in range(100))))
    assert found.peak_rate == found.rate


def test_shared_prefixes_count_from_the_second_on() -> None:
    entries = [Entry(float(k), 64, 10, prefix=(1, 2, 3 + k), block_size=16) for k in range(4)]
    found = analyze_traffic(Workload(tuple(entries), "made"))
    assert found.shared == pytest.approx(3 * 32 / (4 * 64))


def test_the_same_block_after_another_beginning_is_not_shared() -> None:
    entries = [Entry(0.0, 32, 1, prefix=(1, 2), block_size=16), Entry(1.0, 32, 1, prefix=(5, 2), block_size=16)]
    assert analyze_traffic(Workload(tuple(entries), "made")).shared == 0


def test_notes_stay_and_no_requests_are_refused() -> None:
    assert analyze_traffic(workload((0, 1, 1), (1, 1, 1), notes=("3 rows dropped.",))).notes == ("3 rows dropped.",)
    with pytest.raises(ValueError, match="0 requests"):
        analyze_traffic(workload())
