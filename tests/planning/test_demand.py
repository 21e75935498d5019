"""Demands: workloads at any rate, from distributions and from traces."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from inflight.planning import analyze_traffic
from inflight.planning.demand import Demand, Traced, fitting, in_planned_lanes
from inflight.workload.workload import Entry, Workload, WorkloadError

from .builders import drawn, workload

ROWS = [(float(k) + (0.5 if k % 3 else 0.0), 10 + k, 5 + k % 7) for k in range(600)]
DEMANDS = [drawn(20.0), Traced(workload(*ROWS), 20.0)]


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize("rate", [0.5, 7.0])
def test_the_rate_is_what_was_asked(demand: Demand, rate: float) -> None:
    made = demand.workload(rate, 300, 1)
    assert analyze_traffic(made).rate == pytest.approx(rate)
    arrivals = [entry.arrival for entry in made.entries]
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("variation", [1.0, 4.0])
def test_another_rate_only_scales_the_gaps_of_the_same_requests(variation: float) -> None:
    slow, fast = (drawn(20.0, gap_variation=variation).workload(rate, 300, 1).entries for rate in (2.0, 6.0))
    assert [one.arrival for one in slow] == pytest.approx([3 * one.arrival for one in fast])
    assert [(one.prompt_tokens, one.output_tokens) for one in slow] == [
        (one.prompt_tokens, one.output_tokens) for one in fast
    ]


def test_a_few_hundred_requests_have_the_tail_of_their_lengths() -> None:
    """As 512 of each seed do in a run; of independent draws p99 would vary by a tenth."""
    longest = [sorted(one.prompt_tokens for one in drawn(20.0).workload(5.0, 512, seed).entries) for seed in range(6)]
    assert [one[506] for one in longest] == pytest.approx([400.0] * 6, rel=0.03)


@pytest.mark.parametrize("demand", DEMANDS)
def test_a_seed_makes_the_same_and_another_one_something_else(demand: Demand) -> None:
    assert demand.workload(3, 100, 1).entries == demand.workload(3, 100, 1).entries
    assert demand.workload(3, 100, 1).entries != demand.workload(3, 100, 2).entries


@pytest.mark.parametrize("demand", DEMANDS)
def test_changes_change_what_they_say(demand: Demand) -> None:
    plain, chatty = (one.workload(5, 200, 1).entries for one in (demand, replace(demand, stretch=2.0)))
    assert fmean(one.output_tokens for one in chatty) == pytest.approx(2 * fmean(one.output_tokens for one in plain))
    assert [one.prompt_tokens for one in chatty] == [one.prompt_tokens for one in plain]
    wordy = replace(demand, prompt_stretch=2.0).workload(5, 200, 1).entries
    assert fmean(one.prompt_tokens for one in wordy) == pytest.approx(2 * fmean(one.prompt_tokens for one in plain))
    assert [one.output_tokens for one in wordy] == [one.output_tokens for one in plain]
    calm, bursts = (analyze_traffic(one.workload(5, 400, 1)).gap_variation for one in (demand, demand.burstier(4.0)))
    assert bursts > 2 * calm


def test_requests_do_not_show_how_long_their_answers_will_be() -> None:
    entries = drawn().workload(5, 200, 1).entries
    assert {entry.max_tokens for entry in entries} == {max(entry.output_tokens for entry in entries)}


def test_what_is_drawn_longer_than_the_model_takes_is_cut_and_noted() -> None:
    made = drawn(prompt="lognormal:100:4000", longest=500).workload(5, 500, 1)
    assert max(entry.prompt_tokens + entry.output_tokens for entry in made.entries) <= 500
    assert "longer than 500 tokens" in made.notes[0]
    assert not drawn().workload(5, 100, 1).notes


def test_of_a_long_trace_every_kth_request_is_taken() -> None:
    made = Traced(workload(*ROWS), 20.0).workload(5.0, 60, 0)
    prompts = [entry.prompt_tokens for entry in made.entries]
    assert {later - earlier for earlier, later in pairwise(prompts)} == {4}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(WorkloadError, match="above 0"):
        Traced(workload(*ROWS), 20.0).workload(rate, 60, 0)


def test_the_requests_of_a_trace_are_bounded() -> None:
    assert Traced(workload(*ROWS[:50]), 20.0).max_requests == 50


def test_of_a_short_trace_all_are_taken() -> None:
    made = Traced(workload(*ROWS[:50]), 20.0).workload(1.0, 100, 0)
    assert len(made.entries) == 50


def test_the_first_seed_takes_the_busiest_part() -> None:
    calm = [(float(10 * k), 10, 5) for k in range(100)]
    busy = [(2000 + 0.1 * k, 99, 5) for k in range(50)]
    made = Traced(workload(*calm, *busy), 10.0).workload(10.0, 50, 0)
    assert all(entry.prompt_tokens == 99 for entry in made.entries)
    for seed, is_busiest in ((0, False), (7, True)):  # the first of a question that was asked with --seed 7
        made = Traced(workload(*calm, *busy), 10.0, busiest_seed=7).workload(10.0, 50, seed)
        assert all(entry.prompt_tokens == 99 for entry in made.entries) == is_busiest


def test_what_is_stretched_stays_within_the_model() -> None:
    traced = Traced(workload(*ROWS), 20.0, longest=620)
    for changed in (replace(traced, stretch=50.0), replace(traced, prompt_stretch=50.0)):
        entries = changed.workload(5, 200, 1).entries
        assert max(one.prompt_tokens + one.output_tokens for one in entries) <= 620
        assert min(one.output_tokens for one in entries) >= 1


def test_the_mean_rate_is_that_of_the_whole_trace() -> None:
    """100 of 200 requests in half an hour come within 100 seconds."""
    calm, busy = [(18.0 * k, 10, 5) for k in range(100)], [(1800.0 + k, 10, 5) for k in range(100)]
    traced = Traced(workload(*calm, *busy), 8.0)
    assert traced.mean_rate == pytest.approx(8.0 * (199 / 1899) / (111 / 300), rel=0.05)
    assert drawn(8.0).mean_rate == 8.0


def test_notes_of_a_trace_stay_with_it() -> None:
    assert Traced(workload(*ROWS, notes=("late",)), 5.0).workload(5.0, 100, 0).notes == ("late",)


def test_what_the_model_cannot_hold_is_left_out_and_noted() -> None:
    left = fitting(workload((0, 10, 10), (1, 100, 10), (2, 10, 10)), 50)
    assert len(left.entries) == 2 and left.notes[0].startswith("1 of 3 requests")
    with pytest.raises(WorkloadError, match="3 of 3"):
        fitting(workload(*[(0, 100, 10)] * 3), 50)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_that_mean_nothing_are_refused(rate: float) -> None:
    with pytest.raises(WorkloadError, match="--rate"):
        drawn(rate)
    with pytest.raises(WorkloadError, match="--rate"):
        Traced(workload(*ROWS), rate)


def test_gap_variation_and_traces_that_mean_nothing_are_refused() -> None:
    with pytest.raises(WorkloadError, match="gaps' variation is 0"):
        drawn(gap_variation=0.0)
    with pytest.raises(WorkloadError, match="different times"):
        Traced(workload((0, 1, 1), (0, 1, 1)), 1.0)


def test_requests_of_lanes_that_engines_lack_are_planned_for_in_the_default_one() -> None:
    entries = [Entry(float(k), 10, 5, lane=lane) for k, lane in enumerate(("", "batch", "rerank", "rerank"))]
    trace = in_planned_lanes(Workload(tuple(entries), "made"))
    assert [one.lane for one in trace.entries] == ["", "batch", "", ""]
    assert trace.notes == ("2 requests of the lanes rerank are planned for in the lane interactive.",)
    assert in_planned_lanes(trace) is trace
