"""Long trials near the limit give a plan its rate, and its ends. Trials are made up here: their latencies are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.metrics.slo import Slo
from inflight.metrics.summary import Window, summarize
from inflight.planning import long_trials
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.ends import rate_under
from inflight.planning.meter import Spent
from inflight.planning.planned_load import PlannedLoad
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.search import Capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner

from .builders import drawn, machine

TTFT = Slo("ttft", 5.0)
LIMIT = 2.0  # requests/s, at which a made-up trial just meets the SLO
EMPTY = Trial(0.0, 1, summarize([], Window(0.0, 1.0)), {}, {"ttft": (0.2, 0.6, 0.9)}, Spent(20.0, 0.1, {}), 0, {})


class MadeUp(TrialRunner):
    """Trials whose TTFT rises with the rate. asked: (rate, pooled, options) of each."""

    def __init__(self, question: Question, exhausted_at: float = float("inf"), limit: float = LIMIT):
        super().__init__(question, traffic_of(question.demand))
        self.exhausted_at, self.limit = exhausted_at, limit
        self.asked: list[tuple[float, int, dict[str, Any]]] = []
        self.slots = set[int]()

    def run(self, candidate: Candidate, rate: float, **more: Any) -> Trial:
        self.asked.append((rate, candidate.pooled, more))
        self.slots.add(candidate.config.max_num_seqs)
        slower = 1.0 if more.get("model") is None else 1.2
        ttft = TTFT.limit * (slower * rate / self.limit) ** 2
        return replace(
            EMPTY,
            rate=rate,
            values={TTFT: ttft},
            percentiles={"ttft": (0.2 * ttft, 0.6 * ttft, ttft)},
            queue_grows=slower * rate >= self.exhausted_at,
        )


def asked(rate: float, **more: Any) -> Question:
    return Question(machines=[machine(speed=4.0)], demand=drawn(rate), slos=(TTFT,), **more)


def chosen(runner: TrialRunner, rate: float, pooled: int = 3) -> Candidate:
    question = runner.question
    found = candidate_for(question, runner.traffic, question.machines[0], Overrides())
    return replace(found, rate=rate, pooled=pooled, capacity=Capacity(replace(EMPTY, rate=rate), None, 1))


def run_long_trials(runner: MadeUp, rate: float, replicas: int, pooled: int = 3) -> PlannedLoad:
    found = long_trials.by_long_trials(runner, chosen(runner, rate, pooled), replicas, 1)
    assert found is not None
    return found


def test_the_limit_of_the_trials_is_the_rate() -> None:
    found = run_long_trials(MadeUp(asked(40.0)), 1.9, 22)
    assert found.chosen.rate == pytest.approx(LIMIT, rel=0.01) and found.replicas in (20, 21)
    missed = found.chosen.capacity.missed
    assert missed is not None and not missed.met and missed.rate > found.chosen.rate


def test_a_queue_that_grew_above_the_limit_is_what_was_missed() -> None:
    found = run_long_trials(MadeUp(asked(40.0), exhausted_at=1.5), 1.5, 27)
    missed = found.chosen.capacity.missed
    assert missed is not None and missed.is_exhausted and 1.5 <= missed.rate < 1.7
    assert found.chosen.rate == pytest.approx(1.5, rel=0.03) and found.chosen.rate < missed.rate


def test_where_queues_grow_in_all_trials_lower_rates_follow() -> None:
    found = run_long_trials(MadeUp(asked(40.0), exhausted_at=1.5), 1.8, 23)
    assert 1.2 < found.chosen.rate < 1.5 and found.replicas >= 27


def test_a_plan_rests_on_no_more_replicas_than_it_has() -> None:
    runner = MadeUp(asked(3.9))
    found = run_long_trials(runner, 1.4, 3)
    assert found.replicas == found.chosen.pooled == 2
    assert {pooled for _, pooled, _ in runner.asked} == {3, 2} and runner.asked[-1][1] == 2


def test_so_many_gpus_get_the_rate_that_they_serve() -> None:
    found = run_long_trials(MadeUp(asked(1.0, gpus=4)), 1.9, 4)
    assert found.replicas == 4 and found.question.demand.rate == pytest.approx(4 * found.chosen.rate)


def test_a_light_load_runs_on_until_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "undecided", property(lambda self: [TTFT]))
    runner = MadeUp(asked(0.1))
    run_long_trials(runner, 1.9, 1, pooled=1)
    assert runner.asked[-1][2].get("decides") is True


@pytest.mark.parametrize("limit", [LIMIT, 0.5 * LIMIT, 3 * LIMIT])
def test_an_end_is_where_trials_with_its_steps_meet_the_slo(limit: float) -> None:
    runner = MadeUp(asked(40.0), limit=limit)
    one = chosen(runner, LIMIT)
    planned = runner.run(one, LIMIT)
    assert rate_under(runner, one, one.machine.cases[0], planned) == pytest.approx(limit / 1.2, rel=0.25)


def test_an_end_is_hardly_above_the_rate_from_which_the_queue_grows() -> None:
    runner = MadeUp(asked(40.0), exhausted_at=1.0)
    one = chosen(runner, LIMIT)
    assert 0 < rate_under(runner, one, one.machine.cases[0], runner.run(one, 0.9)) < 1.02 / 1.2


def test_request_slots_follow_from_the_long_trials() -> None:
    """Those of short trials at lower rates would let a burst wait at the planned rate."""
    runner = MadeUp(asked(40.0))
    one = chosen(runner, 1.9)
    few = replace(one, config=replace(one.config, max_num_seqs=8))
    found = long_trials.by_long_trials(runner, few, 22, 1)
    assert found is not None and one.proposal.config.max_num_seqs in runner.slots and 8 not in runner.slots
    assert 3 * 20 <= found.chosen.config.max_num_seqs <= 3 * 20 + 16
