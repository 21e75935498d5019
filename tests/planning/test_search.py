"""The search for the highest rate: it ends where the SLOs break, in few trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.slo import Slo
from inflight.metrics.summary import Window, summarize
from inflight.planning.meter import Spent
from inflight.planning.search import badness, find_capacity
from inflight.planning.simulation import Trial

TTFT = Slo("ttft", 1.0)
EMPTY = Trial(0.0, 1, summarize([], Window(0.0, 1.0)), {}, {}, Spent(0.0, 0.0, {}), 0, {})


class Queue:
    """Latency of a queue that takes `service` seconds and no more than `most` requests per second."""

    def __init__(self, most: float, service: float = 0.1) -> None:
        self.most, self.service = most, service
        self.rates: list[float] = []

    def __call__(self, rate: float) -> Trial:
        self.rates.append(rate)
        value = self.service / (1 - rate / self.most) if rate < self.most else float("inf")
        return replace(EMPTY, rate=rate, values={TTFT: value})


@pytest.mark.parametrize("guess", [0.3, 3.0, 8.0, 30.0, 100.0])
def test_the_two_sides_come_together(guess: float) -> None:
    queue = Queue(10.0)
    found = find_capacity(queue, guess, tolerance=0.1, max_trials=14)
    assert found.met is not None and found.missed is not None
    assert found.met.rate <= 9.0 <= found.missed.rate <= 1.1 * found.met.rate * 1.001
    assert found.trials == len(queue.rates)


def test_a_good_guess_takes_few_trials() -> None:
    queue = Queue(10.0)
    find_capacity(queue, 8.0)
    assert len(queue.rates) <= 5


def test_no_rate_below_a_known_one_is_tried() -> None:
    """On a steep curve the first step up misses: the next lies between the two."""
    queue = Queue(10.0)
    found = find_capacity(queue, 9.6, tolerance=0.05, trickle=False, known=queue(8.0))
    assert found.met is not None and 8.0 < found.met.rate <= 9.0 and min(queue.rates) == 8.0
    kept = find_capacity(queue, 9.6, max_trials=1, trickle=False, known=queue(8.0))
    assert kept.met is not None and kept.met.rate == 8.0


@pytest.mark.parametrize("missed", [9.3, 9.9, 40.0])
def test_from_a_known_miss_the_search_goes_as_far_down_as_it_missed(missed: float) -> None:
    queue = Queue(10.0)
    known = queue(missed)
    found = find_capacity(queue, 20.0, tolerance=0.25, max_trials=4, trickle=False, known=known)
    assert max(queue.rates[1:]) < missed and queue.rates[1] == pytest.approx(
        missed / (1.25 if missed == 9.3 else 2.0), 0.4
    )
    assert found.met is not None and 0.75 * 9.0 <= found.met.rate <= 9.0 and found.missed is not None
    unmet = find_capacity(Queue(10.0, service=2.0), 9.0, max_trials=2, trickle=False, known=known)
    assert unmet.met is None and unmet.missed is not None


def test_what_even_a_trickle_breaks_is_kept_at_no_rate() -> None:
    found = find_capacity(Queue(10.0, service=2.0), 8.0)
    assert found.met is None and found.missed is not None and found.missed.rate < 0.3


def test_where_nothing_is_expected_to_meet_a_trickle_goes_first() -> None:
    queue = Queue(10.0, service=2.0)
    found = find_capacity(queue, 8.0, trickle_first=True)
    assert found.met is None and len(queue.rates) == 1
    good = find_capacity(Queue(10.0), 8.0, tolerance=0.1, max_trials=14, trickle_first=True)  # expected in vain
    assert good.met is not None and good.met.rate > 4.0


@pytest.mark.parametrize("idle", [0.7, 0.8, 0.9])
@pytest.mark.parametrize("guess", [0.05, 0.5, 3.0, 8.0])
@pytest.mark.parametrize("trickle_first", [True, False])
def test_the_limit_is_found_where_an_idle_engine_is_near_it(idle: float, guess: float, trickle_first: bool) -> None:
    """Every rate below looks as bad, so that latency alone would lead to a tenth more from trial to trial."""
    queue, limit = Queue(10.0, service=idle), 10.0 * (1 - idle)
    found = find_capacity(queue, guess, tolerance=0.25, max_trials=5, ceiling=10.0, trickle_first=trickle_first)
    assert found.met is not None and limit / 1.6 < found.met.rate <= 1.001 * limit
    assert len(queue.rates) <= 9


@pytest.mark.parametrize(("most", "edge"), [(5, 0.8), (7, 0.4)])
def test_where_only_a_trickle_holds_the_rate_above_it_is_looked_for(most: int, edge: float) -> None:
    """Not the trickle itself: what is planned by it would be many times as much as it takes."""

    def trial(rate: float) -> Trial:  # hardly broken at once and for long, so that no trial says how far down to go
        return replace(EMPTY, rate=rate, values={TTFT: 0.2 if rate < edge else 1.4})

    found = find_capacity(trial, 5.0, tolerance=0.25, max_trials=most)
    assert found.met is not None and found.missed is not None
    assert found.met.rate > 0.75 * edge and found.missed.rate / found.met.rate <= 1.3


def test_answers_that_come_whole_have_gaps_of_no_time() -> None:
    """Every rate keeps an SLO on them, up to saturation; its badness must not be nothing."""
    tpot = Slo("tpot", 0.1)

    def trial(rate: float) -> Trial:
        return replace(EMPTY, rate=rate, values={tpot: 0.0 if rate < 20 else 0.3})

    assert 0 < badness(trial(1.0)) < 1
    found = find_capacity(trial, 5.0, max_trials=20)
    assert found.met is not None and found.met.rate < 20 <= found.missed.rate  # type: ignore[union-attr]


def test_what_misses_the_slos_asks_for_as_much_more_as_what_meets_them_sends() -> None:
    """Open conversations send more than they were drawn for, but not where their answers are late."""
    queue = Queue(10.0)

    def sends_more(rate: float) -> Trial:
        found = queue(rate)
        return replace(found, rate=1.2 * rate) if found.met else found

    found = find_capacity(sends_more, 8.0)
    assert found.met is not None and found.missed is not None
    assert found.met.rate == pytest.approx(1.2 * 9.0, rel=0.1)
    assert found.met.rate < found.missed.rate <= 1.1 * found.met.rate * 1.001


def test_a_candidate_that_is_not_worth_it_is_given_up_at_once() -> None:
    queue = Queue(10.0)
    found = find_capacity(queue, 9.5, worth=9.5)
    assert found.met is None and queue.rates == [9.5] and found.stopped
    nowhere = find_capacity(Queue(1e-9), 9.5)
    assert nowhere.met is None and not nowhere.stopped, "even a trickle misses the SLOs"


def test_trials_are_bounded() -> None:
    queue = Queue(1e9)
    found = find_capacity(queue, 1.0, max_trials=4)
    assert found.trials == 4 and found.met is not None and found.missed is None


def test_badness_is_how_far_an_slo_is() -> None:
    assert badness(replace(EMPTY, values={TTFT: 0.5})) == 0.5
    assert badness(replace(EMPTY, values={TTFT: 1.5})) == 1.5
    assert badness(replace(EMPTY, values={TTFT: float("inf")})) > 1
    refused: Any = replace(EMPTY.summary, offered=3)
    assert badness(replace(EMPTY, summary=refused, values={TTFT: 0.1})) > 1
