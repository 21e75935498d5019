"""The summary: what is counted where, over which denominator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.definitions import attainment, goodput, jain
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import Window, summarize


def seen(intended: float, times: list[float], **fields: Any) -> Observation:
    return Observation(
        request_id=f"{intended}",
        intended=intended,
        sent=intended,
        ended=times[-1] if times else intended,
        first_token=times[0] if times else None,
        last_token=times[-1] if times else None,
        token_times=times,
        prompt_tokens=10,
        output_tokens=len(times),
        longest_output=len(times),
        **fields,
    )


def test_latencies_count_from_the_intended_time() -> None:
    one = seen(1.0, [3.0, 4.0, 6.0])
    assert one.ttft == 2.0
    assert one.tpot == 1.5
    assert one.gaps == [1.0, 2.0]
    assert one.e2e == 5.0


def test_tokens_of_one_event_are_one_gap_and_several_tokens() -> None:
    one = seen(0.0, [1.0, 3.0, 3.0, 3.0, 4.0])
    assert one.gaps == [2.0, 1.0]
    assert one.tpot == 0.75
    assert not seen(0.0, [1.0, 3.0, 3.0, 3.0, 4.0], targets=Targets(itl_max=1.5)).attained


def test_tokens_that_come_with_the_first_take_no_time_behind_it() -> None:
    assert seen(0.0, [1.0, 1.0, 1.0, 2.0, 3.0]).tpot == 1.0
    assert seen(0.0, [1.0, 1.0, 1.0]).tpot is None
    assert seen(0.0, [1.0]).tpot is None


def test_a_target_bounds_every_gap_and_tpot_their_mean() -> None:
    times = [1.0, 1.1, 1.9]
    assert seen(0.0, times, targets=Targets(tpot=0.5)).attained
    assert not seen(0.0, times, targets=Targets(itl=0.5)).attained
    assert seen(0.0, times, targets=Targets(ttft=1.0, itl=0.9, e2e=1.9)).attained
    assert not seen(0.0, times, targets=Targets(ttft=0.9)).attained
    assert not seen(0.0, times, targets=Targets(e2e=1.5)).attained


def test_rejected_and_failed_requests_are_offered_and_missed() -> None:
    kept = [seen(float(n), [n + 0.5]) for n in range(3)]
    lost = [seen(3.0, [], outcome="rejected"), seen(3.5, [], outcome="failed"), seen(3.6, [], outcome="unfinished")]
    summary = summarize([*kept, *lost])
    assert (summary.requests, summary.rejected, summary.failed, summary.unfinished, summary.offered) == (3, 1, 1, 1, 6)
    assert summary.attainment == 0.5
    assert summary.goodput == pytest.approx(3 / summary.wall_seconds)
    assert summary.ttft.samples == 3


def test_warm_up_and_drain_are_outside_of_the_window() -> None:
    runs = [seen(float(n), [n + 1.0, n + 2.0, n + 3.0]) for n in range(20)]
    summary = summarize(runs, Window(5.0, 15.0))
    assert summary.offered == 11
    assert summary.ttft.samples == 11
    # Each second of the window three requests are answered a token each; both borders count.
    assert summary.output_tokens_per_s == pytest.approx(3 * 11 / 10)
    assert summary.concurrency == pytest.approx(3.0)
    assert summary.concurrency_by_little == pytest.approx(3.3)


def test_goodput_is_of_the_ends_that_throughput_counts() -> None:
    """Answers take longer and longer: fewer end in the window than are sent in it."""
    runs = [seen(float(n), [n + 1.0, 2.0 * n + 2.0]) for n in range(20)]
    summary = summarize(runs, Window(5.0, 15.0))
    assert summary.goodput == summary.requests_per_s == 5 / 10
    assert (summary.attainment, summary.attained_per_s) == (1.0, 11 / 10)
    strict = summarize([replace(one, targets=Targets(e2e=7.5)) for one in runs], Window(5.0, 15.0))
    assert (strict.goodput, strict.requests_per_s) == (4 / 10, 5 / 10)


def test_where_tokens_were_not_watched_they_count_at_their_end() -> None:
    one = Observation("0", intended=0.0, ended=4.0, first_token=1.0, last_token=4.0, output_tokens=7, longest_output=7)
    assert summarize([one]).output_tokens_per_s == 7 / 4
    assert summarize([one], Window(0.0, 2.0)).output_tokens_per_s == 0
    assert summarize([one]).itl.samples == 0


def test_an_empty_run_is_no_error() -> None:
    summary = summarize([])
    assert summary.offered == summary.requests == 0
    assert summary.ttft.p50 is None
    assert not summary.saturated


def test_a_run_that_only_got_slower_is_saturated() -> None:
    slower = [seen(float(n), [n + 0.1 + n * 0.5]) for n in range(100)]
    assert summarize(slower, Window(0.0, 100.0)).saturated
    steady = [seen(float(n), [n + 0.1 + (n % 7) * 0.01]) for n in range(100)]
    assert not summarize(steady, Window(0.0, 100.0)).saturated


def test_shares() -> None:
    assert attainment([]) == 1.0
    assert attainment([True, False]) == 0.5
    assert goodput([True, False, True], 4.0) == 0.5
    assert jain([1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0]) == 0.5
