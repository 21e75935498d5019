"""Promises on percentiles: how they are written and when they are kept."""

from __future__ import annotations

import math

import pytest

from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import Slo, SloError, parse_slos, percentile, stated_share, targets


def seen(ttft: float, *gaps: float, outcome: str = "completed") -> Observation:
    times = [ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return Observation(
        "x",
        intended=0.0,
        ended=times[-1],
        outcome=outcome,  # type: ignore[arg-type]
        first_token=times[0],
        last_token=times[-1],
        token_times=tuple(times),
        longest_output=len(times),
    )


def test_every_form_is_read() -> None:
    assert parse_slos(["ttft=1000(p99)", "itl=100(p95), e2e=20000"]) == (
        Slo("ttft", 1.0, 0.99),
        Slo("itl", 0.1, 0.95),
        Slo("e2e", 20.0, 0.99),
    )
    assert parse_slos(["TPOT = 50 ms (p99.9)"]) == (Slo("tpot", 0.05, 0.999),)
    assert str(parse_slos(["ttft=1000(p99)"])[0]) == "TTFT p99 ≤ 1,000 ms"


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


def test_two_limits_for_one_percentile_are_refused() -> None:
    with pytest.raises(SloError, match="two limits for ttft at p99"):
        parse_slos(["ttft=1000", "ttft=500(p99)"])


def test_one_percentile_for_all_limits() -> None:
    assert stated_share(["ttft=500", "itl=50,e2e=9000"]) is None
    assert stated_share(["ttft=500(p95)", "itl=50"]) == 0.95
    with pytest.raises(SloError, match="p90 and p95"):
        stated_share(["ttft=500(p95),itl=50(p90)"])


def test_values_are_those_of_the_definitions() -> None:
    runs = [seen(0.1 * number, 0.02, 0.04) for number in range(1, 101)]
    assert percentile(runs, "ttft", 0.5) == pytest.approx(5.05)
    assert percentile(runs, "tpot", 0.5) == pytest.approx(0.03)
    assert percentile(runs, "itl", 0.9) == pytest.approx(0.04)
    assert percentile(runs, "e2e", 0.5) == pytest.approx(5.11)


def test_who_was_refused_waits_for_ever() -> None:
    runs = [seen(0.1)] * 98 + [seen(0.1, outcome="rejected")] * 2
    assert math.isinf(Slo("ttft", 1.0, 0.99).value(runs))
    assert Slo("ttft", 1.0, 0.95).kept(runs) and not Slo("ttft", 1.0, 0.99).kept(runs)


def test_what_cannot_be_measured_breaks_nothing() -> None:
    assert math.isnan(Slo("itl", 0.1).value([seen(0.1)]))
    assert Slo("itl", 0.1).kept([seen(0.1)])


def test_single_requests_are_promised_the_tightest() -> None:
    assert targets(parse_slos(["ttft=1000(p99),ttft=300(p50),itl=50"])) == Targets(ttft=0.3, itl=0.05)
