"""Summaries, series and trends of runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.definitions import attainment, deviation, goodput, jain
from inflight.metrics.latencies import latencies
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import METRICS, percentiles
from inflight.metrics.summary import Window, series, summarize, trend


def one(intended: float, ended: float, times: Any = (), tokens: int = 0, outcome: Any = "completed") -> Observation:
    return Observation("r", intended, ended, outcome, token_times=times, output_tokens=tokens or len(times))


def test_each_thing_counts_in_its_own_second() -> None:
    found = series([one(0.2, 2.5, (0.9, 1.1, 2.5)), one(1.5, 1.9, (1.8,))])
    assert (found.step, found.offered, found.completed) == (1, (1, 1, 0), (0, 1, 1))
    assert found.output_tokens == (1, 2, 1)
    assert found.running == pytest.approx((0.8, 1.4, 0.5))
    assert series([one(0.0, 0.5, outcome="failed")]).completed == (0,)
    assert series([one(0.0, 1.5, tokens=7)]).output_tokens == (0, 7), "they were not watched"
    assert series([]).offered == (0,)


def test_a_long_run_has_larger_pieces() -> None:
    found = series([one(0.0, 10_000.0)])
    assert (found.step, len(found.offered)) == (5, 2001)
    assert found.running[1000] == pytest.approx(1.0)


def waits(load: float, seed: int, seconds: float = 300.0) -> list[tuple[float, float]]:
    """Time in system of a queue with one server, Poisson arrivals at 10 a second and exponential service."""
    rng = random.Random(seed)
    now = free = 0.0
    points = []
    while True:
        now += rng.expovariate(10.0)
        if now > seconds:
            return points
        free = max(now, free) + rng.expovariate(10.0 / load)
        points.append((now, free - now))


def growing(load: float) -> int:
    found = [trend(waits(load, seed), 0.0, 300.0) for seed in range(20)]
    return sum(one is not None and one.growing for one in found)


@pytest.mark.parametrize(("load", "least", "most"), [(0.5, 0, 0), (0.8, 0, 2), (1.3, 20, 20), (2.0, 20, 20)])
def test_overload_is_seen_and_ordinary_load_is_not(load: float, least: int, most: int) -> None:
    assert least <= growing(load) <= most


def test_few_requests_have_no_trend_and_latency_that_falls_is_not_growing() -> None:
    assert trend([(float(n), 1.0) for n in range(20)], 0.0, 20.0) is None
    assert trend([], 0.0, 0.0) is None
    falling = trend([(n / 10, 10.0 - n / 100) for n in range(1000)], 0.0, 100.0)
    assert falling is not None and not falling.growing and falling.rise < 0


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
    assert (one.ttft, one.tpot, one.gaps, one.e2e) == (2.0, 1.5, [1.0, 2.0], 5.0)


@pytest.mark.parametrize(
    ("times", "gaps", "tpot"),
    [
        ([1.0, 3.0, 3.0, 3.0, 4.0], [2.0, 1.0], 0.75),
        ([1.0, 1.0, 1.0, 2.0, 3.0], [1.0, 1.0], 1.0),  # those that come with the first take no time behind it
        ([1.0, 1.0, 1.0], [], None),
        ([1.0], [], None),
    ],
)
def test_tokens_of_one_event_are_one_gap_and_several_tokens(
    times: list[float], gaps: list[float], tpot: float | None
) -> None:
    assert (seen(0.0, times).gaps, seen(0.0, times).tpot) == (gaps, tpot)
    assert seen(0.0, times, targets=Targets(itl_max=1.5)).attained == (max(gaps, default=0.0) <= 1.5)


@pytest.mark.parametrize(
    ("attained", "targets"),
    [
        (True, Targets(tpot=0.5)),
        (False, Targets(itl=0.5)),
        (True, Targets(ttft=1.0, itl=0.9, e2e=1.9)),
        (False, Targets(ttft=0.9)),
        (False, Targets(e2e=1.5)),
    ],
)
def test_a_target_bounds_every_gap_and_tpot_their_mean(attained: bool, targets: Targets) -> None:
    assert seen(0.0, [1.0, 1.1, 1.9], targets=targets).attained == attained


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
    assert (summary.offered, summary.requests, summary.ttft.p50, summary.saturated) == (0, 0, None, False)


def test_a_run_that_only_got_slower_is_saturated() -> None:
    for delay, saturated in (lambda n: n * 0.5, True), (lambda n: (n % 7) * 0.01, False):
        runs = [seen(float(n), [n + 0.1 + delay(n)]) for n in range(100)]
        assert summarize(runs, Window(0.0, 100.0)).saturated == saturated


def test_shares_and_deviation() -> None:
    assert (attainment([]), attainment([True, False])) == (1.0, 0.5)
    assert goodput([True, False, True], 4.0) == 0.5
    assert (jain([1.0, 1.0]), jain([1.0, 0.0])) == (1.0, 0.5)
    assert (deviation([1.0, 3.0]), deviation([])) == (1.0, None), "it divides by n"


def test_sorted_latencies_have_the_percentiles_of_all_offered_requests() -> None:
    done = [seen(0.1 * n, [0.2 * n + 0.7, *(0.2 * n + 0.9 for _ in range(n % 3)), 0.3 * n + 1.0]) for n in range(40)]
    lost = [seen(3.0, [], outcome="rejected"), seen(3.5, [1.0, 2.0], outcome="unfinished")]
    shares = (0.5, 0.95, 0.99)
    found = latencies(done).percentiles(shares, len(lost))
    assert found == {metric: percentiles([*lost, *done], metric, shares) for metric in METRICS}
