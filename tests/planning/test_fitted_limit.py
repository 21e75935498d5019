"""The limit that several trials say together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.metrics.slo import Slo
from inflight.metrics.summary import Window, summarize
from inflight.planning.fitted_limit import fitted_limit
from inflight.planning.meter import Spent
from inflight.planning.simulation import Trial

TTFT, TPOT = Slo("ttft", 1.0), Slo("tpot", 0.05)
EMPTY = Trial(0.0, 1, summarize([], Window(0.0, 1.0)), {}, {"ttft": (0.2, 0.6, 0.9)}, Spent(0.0, 0.0, {}), 0, {})


def trial(rate: float, steepness: float = 1.4, noise: float = 1.0, tpot: float = 0.02, **more: object) -> Trial:
    """A trial of a queue whose TTFT is at its limit at 4 requests/s."""
    ttft = noise * (rate / 4.0) ** steepness
    percentiles = {"ttft": (0.2 * ttft, 0.6 * ttft, ttft), "e2e": (3.0, 9.0, 12.0)}
    return replace(EMPTY, rate=rate, values={TTFT: ttft, TPOT: tpot}, **{"percentiles": percentiles, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("steepness", [1.0, 1.4, 5.0])
def test_noise_of_single_trials_moves_the_limit_little(steepness: float) -> None:
    noises = (1.06, 0.94, 0.95, 1.05)
    found = fitted_limit([trial(rate, steepness, by) for rate, by in zip((3.8, 4.1, 3.9, 4.2), noises, strict=True)])
    assert found.limit == pytest.approx(4.0, rel=0.04)
    assert found.at(found.limit).met and not found.at(1.02 * found.limit).met


def test_a_line_is_as_steep_as_its_trials() -> None:
    found = fitted_limit([trial(rate, 4.0) for rate in (3.0, 3.5, 4.5)])
    assert found.limit == pytest.approx(4.0, rel=0.02)
    alone = fitted_limit([trial(3.8)])
    assert alone.limit == pytest.approx(4.0, rel=0.01)  # as steep as is expected


def test_the_slo_that_is_missed_first_is_the_limit() -> None:
    trials = [trial(rate, tpot=0.05 * (rate / 3.0) ** 2) for rate in (2.9, 3.1)]
    assert fitted_limit(trials).limit == pytest.approx(3.0, rel=0.01)


def test_the_limit_is_below_a_rate_at_which_the_queue_grows() -> None:
    trials = [trial(3.0), trial(3.2, queue_grows=True)]
    found = fitted_limit(trials)
    assert 3.0 < found.limit < 3.2 and not found.at(3.2).saturated
    assert fitted_limit([trial(3.2, queue_grows=True)]).limit < 3.2


def test_latencies_beside_those_of_an_slo_are_in_proportion() -> None:
    found = fitted_limit([trial(3.9, noise=1.1), trial(4.1, noise=0.9)]).at(4.0)
    ttft = found.percentiles["ttft"]
    assert ttft == pytest.approx((0.2 * found.values[TTFT], 0.6 * found.values[TTFT], found.values[TTFT]))
    assert found.percentiles["e2e"] == (3.0, 9.0, 12.0)


def test_a_percentile_below_the_slos_own_stays_below_it() -> None:
    """The line of a p95 may be above the p99 of the trial that is nearest."""
    p95 = Slo("ttft", 1.0, 0.95)
    trials = [
        replace(trial(rate), values={p95: value}, percentiles={"ttft": (0.1, value, 1.02 * value)})
        for rate, value in ((3.9, 0.7), (4.1, 1.3))
    ]
    found = fitted_limit(trials).at(3.95)
    assert found.values[p95] > trials[0].percentiles["ttft"][2]
    assert found.percentiles["ttft"][1] == pytest.approx(found.values[p95])
    assert found.percentiles["ttft"][1] < found.percentiles["ttft"][2]


def test_a_request_that_decodes_nothing_ends_with_its_first_token() -> None:
    trials = [
        replace(one, percentiles={**one.percentiles, "e2e": one.percentiles["ttft"]})
        for one in (trial(3.9), trial(4.1))
    ]
    found = fitted_limit(trials).at(4.0)
    assert found.percentiles["e2e"] == found.percentiles["ttft"] != trials[0].percentiles["ttft"]


def test_near_saturation_no_straight_line_hides_a_miss() -> None:
    """Latency rises from three quarters of its limit to the limit within 4 % of the rate, and by little beyond."""
    trials = [trial(rate, tpot=tpot) for rate, tpot in ((3.57, 0.038), (3.71, 0.0503), (3.82, 0.0533), (4.13, 0.058))]
    assert fitted_limit([replace(one, values={TPOT: one.values[TPOT]}) for one in trials]).limit < 3.79


def test_a_class_has_the_latencies_that_its_own_slo_is_said_to_have() -> None:
    """Each percentile follows the SLO that is nearest to it."""
    of_chat, median = Slo("ttft", 1.0, traffic="chat"), Slo("ttft", 0.4, 0.5)

    def classes(rate: float, noise: float) -> Trial:
        p99 = noise * (rate / 4.0) ** 1.4
        values = {of_chat: 1.2 * p99, median: 0.4 * p99 / noise}
        found = {"ttft": (0.4 * p99, 0.8 * p99, 1.2 * p99)}
        return replace(EMPTY, rate=rate, values=values, percentiles=found, by_class={"chat": found, "batch": found})

    found = fitted_limit([classes(3.9, 1.1), classes(4.1, 0.9)])
    one = found.at(4.0)
    assert one.by_class["chat"]["ttft"][2] == pytest.approx(one.values[of_chat])
    assert one.percentiles["ttft"][0] == pytest.approx(found.lines[median].at(4.0), rel=0.12)
