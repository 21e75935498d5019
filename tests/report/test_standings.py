"""Standings: which contender is best, fairness, and how far two orders agree."""

from __future__ import annotations

import pytest

from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import summarize
from inflight.report.run import Report, Run, Setting
from inflight.report.standings import fairness, rank_correlation, standings


def observation(number: int, seconds: float, tenant: str = "", tokens: int = 10) -> Observation:
    start = float(number)
    return Observation(
        str(number),
        intended=start,
        ended=start + seconds,
        sent=start,
        first_token=start + seconds / 2,
        last_token=start + seconds,
        output_tokens=tokens,
        longest_output=tokens,
        tenant=tenant,
        targets=Targets(ttft=1.0),
    )


def run(load: str, *seconds: float) -> Run:
    observations = [observation(number, one) for number, one in enumerate(seconds)]
    return Run(observations, summarize(observations), load=load)


def test_the_better_mean_is_best_and_ratios_are_paired() -> None:
    fast = Setting("fast", [run("a", 1.0, 1.0), run("a", 1.0, 1.2), run("b", 8.0, 8.0)])
    slow = Setting("slow", [run("a", 2.0, 2.0), run("a", 2.0, 2.4), run("b", 4.0, 4.0)])
    found = {(one.load, one.contender): one for one in standings(Report("", [slow, fast]), "e2e_mean")}
    assert [key for key, one in found.items() if one.is_best] == [("a", "fast"), ("b", "slow")]
    ratio = found["a", "fast"].ratio
    assert ratio is not None and ratio.mean == pytest.approx(0.5) and found["a", "slow"].ratio is None
    assert found["a", "fast"].figures["e2e_mean"].repeats == 2
    same = Setting("same", [run("a", 1.0, 1.0), run("a", 1.0, 1.2)])
    by_attainment = [one.is_best for one in standings(Report("", [fast, same]), "attainment") if one.load == "a"]
    assert by_attainment == [True, True], "both met all targets"


def test_fairness_is_among_tenants_or_among_requests() -> None:
    equal = [observation(number, 1.0, tenant) for number, tenant in enumerate("ab")]
    assert fairness(equal) == pytest.approx(1.0)
    uneven = [observation(0, 1.0, "a"), observation(1, 3.0, "b"), observation(2, 3.0, "b")]
    assert fairness(uneven) == pytest.approx((1 + 3) ** 2 / (2 * (1 + 9)))
    alone = [observation(0, 1.0), observation(1, 3.0), observation(2, 3.0)]
    assert fairness(alone) == pytest.approx((1 + 3 + 3) ** 2 / (3 * (1 + 9 + 9)))
    assert fairness([]) is None


def test_orders_agree_by_rank() -> None:
    assert rank_correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2], [5, 5, 7]) == pytest.approx(1.0), "equal ones share their rank"
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
