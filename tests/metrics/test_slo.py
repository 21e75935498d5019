"""SLOs on percentiles: how they are written and when they are met."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

import pytest

from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import Slo, SloError, parse_slos, percentile, stated_share, targets
from inflight.metrics.summary import summarize


def seen(ttft: float, *gaps: float, outcome: str = "completed") -> Observation:
    times = tuple(accumulate((ttft, *gaps)))
    return Observation(
        "x", intended=0.0, ended=times[-1], outcome=outcome, first_token=times[0],  # type: ignore[arg-type]
        last_token=times[-1], token_times=times, longest_output=len(times),
    )  # fmt: skip


def is_met(slo: Slo, observations: list[Observation]) -> bool:
    value = slo.value(observations)
    return math.isnan(value) or value <= slo.limit


def test_every_form_is_read() -> None:
    assert parse_slos(["ttft=1000(p99)", "itl=100(p95), e2e=20000"]) == (
        Slo("ttft", 1.0, 0.99),
        Slo("itl", 0.1, 0.95),
        Slo("e2e", 20.0, 0.99),
    )
    assert parse_slos(["TPOT = 50 ms (p99.9)"]) == (Slo("tpot", 0.05, 0.999),)
    shown = [str(slo) for slo in parse_slos(["ttft=1000(p99),itl=45(p95),itl_max=200,tpot=50"])]
    assert shown == ["TTFT p99 ≤ 1,000 ms", "own ITL p95 ≤ 45 ms", "longest ITL p99 ≤ 200 ms", "TPOT p99 ≤ 50 ms"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ttft", "give ttft, tpot, itl or e2e"),
        ("ttft=fast", "give ttft, tpot, itl or e2e"),
        ("speed=10(p99)", "'speed' is no latency"),
        ("ttft=1.2.3", "'1.2.3' is no number"),
        ("ttft=0(p99)", "limits are above 0"),
        ("ttft=10(p100)", "limits are above 0"),
        ("ttft=10(p0)", "limits are above 0"),
    ],
)
def test_what_cannot_be_read_shows_how_to_write_it(text: str, part: str) -> None:
    with pytest.raises(SloError) as caught:
        parse_slos([text])
    assert part in str(caught.value) and "ttft=1000(p99)" in str(caught.value)


def test_one_percentile_for_all_limits() -> None:
    with pytest.raises(SloError, match="two limits for ttft at p99"):
        parse_slos(["ttft=1000", "ttft=500(p99)"])
    assert stated_share(["ttft=500", "itl=50,e2e=9000"]) is None
    assert stated_share(["ttft=500(p95)", "itl=50"]) == stated_share(["ttft=500(p95),itl=50(p90)"]) == 0.95
    with pytest.raises(SloError, match="p90 and p95"):
        stated_share(["ttft=500(p95),e2e=50(p90)"])


def test_values_are_those_of_the_definitions() -> None:
    runs = [seen(0.1 * number, 0.02, 0.04) for number in range(1, 101)]
    assert percentile(runs, "ttft", 0.5) == pytest.approx(5.0) == Slo("ttft", 1.0, 0.5).value(runs)
    assert percentile(runs, "tpot", 0.5) == pytest.approx(0.03)
    assert percentile(runs, "itl", 0.9) == pytest.approx(0.04)
    assert percentile(runs, "e2e", 0.5) == pytest.approx(5.06) == Slo("e2e", 1.0, 0.5).value(runs)


@pytest.mark.parametrize("short", [0, 60])
@pytest.mark.parametrize("text", ["itl=45(p95)", "itl_max=45", "tpot=45", "ttft=120(p95)", "e2e=2000(p90)"])
def test_an_slo_means_the_same_for_a_run_and_for_goodput(text: str, short: int) -> None:
    """One in twenty gaps of every request is long; a few requests have more of them, and waited longer. Some answers
    have one token, and no gap."""
    normal, stalled = [0.03] * 38 + [0.09] * 2, [0.03] * 30 + [0.09] * 10
    for slow in range(8):
        runs = [seen(0.1, *normal)] * (100 - slow) + [seen(0.3, *stalled)] * slow + [seen(0.1)] * short
        (slo,) = parse_slos([text])
        targeted = [replace(one, targets=targets([slo])) for one in runs]
        assert is_met(slo, runs) == (summarize(targeted).attainment >= slo.of_requests), slow


def test_gaps_are_a_requests_own() -> None:
    """Nearly all gaps of all requests are short, but one in ten of this request."""
    even, stalled = seen(0.1, *[0.02] * 200), seen(0.1, *[0.02] * 18, 0.3, 0.3)
    runs = [even] * 9 + [stalled]
    assert percentile(runs, "itl", 0.95) == pytest.approx(0.02)
    assert Slo("itl", 0.1, 0.95).value(runs) == pytest.approx(0.3) and not is_met(Slo("itl", 0.1, 0.95), runs)
    assert is_met(Slo("itl", 0.1, 0.85), runs) and not is_met(Slo("itl_max", 0.1), runs)
    assert is_met(Slo("itl_max", 0.1, 0.9), runs), "nine of ten have no long gap"


def test_two_percentiles_of_ones_own_gaps_are_no_single_target() -> None:
    with pytest.raises(SloError, match="p50 and p95 of a request's own gaps"):
        targets(parse_slos(["itl=20(p50),itl=45(p95)"]))
    assert targets(parse_slos(["itl=20(p95),itl_max=100"])) == Targets(itl=0.02, itl_share=0.95, itl_max=0.1)
    assert Targets(itl=0.02, itl_max=0.1, tpot=0.01).gap == 0.02


def test_a_refused_request_has_infinite_latency_and_an_slo_on_nothing_measurable_is_met() -> None:
    runs = [seen(0.1)] * 98 + [seen(0.1, outcome="rejected")] * 2
    assert math.isinf(Slo("ttft", 1.0, 0.99).value(runs))
    assert is_met(Slo("ttft", 1.0, 0.95), runs) and not is_met(Slo("ttft", 1.0, 0.99), runs)
    assert math.isnan(Slo("itl", 0.1).value([seen(0.1)])) and is_met(Slo("itl", 0.1), [seen(0.1)])


def test_targets_are_the_tightest_limits() -> None:
    assert targets(parse_slos(["ttft=1000(p99),ttft=300(p50),itl=50"])) == Targets(ttft=0.3, itl=0.05)
