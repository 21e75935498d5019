"""The offered workload follows the options, and a sweep's or a search's load."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.bench.client_types import BenchError
from inflight.bench.offering import Load, Offer, Part, at_rate
from inflight.metrics.observation import Targets
from inflight.workload.arrivals import AtOnce, Constant, Gamma, Poisson, Ramp
from inflight.workload.classes import Sessions, TrafficClass
from inflight.workload.lengths import Fixed, Uniform
from inflight.workload.traces import load
from inflight.workload.workload import Pacer

ONE = TrafficClass(name="", share=1.0, input=Fixed(100), output=Fixed(20))


def test_nothing_said_is_a_short_closed_loop():
    workload = Offer([ONE]).workload()
    assert (len(workload.entries), workload.concurrency, workload.closed) == (64, 8, True)


def test_a_rate_is_an_open_loop_of_half_a_minute():
    workload = Offer([ONE], arrivals=Poisson(10.0)).workload()
    assert not workload.closed and workload.concurrency is None
    assert 200 < len(workload.entries) < 400
    assert max(entry.arrival for entry in workload.entries) <= 30.0


def test_a_rate_with_a_concurrency_is_an_open_loop_that_is_bounded():
    workload = Offer([ONE], arrivals=Poisson(10.0), concurrency=4, requests=20).workload()
    assert (workload.closed, workload.concurrency, len(workload.entries)) == (False, 4, 20)


def test_a_closed_loop_of_a_given_time_sends_nothing_after_it():
    workload = Offer([ONE], concurrency=2, duration_s=3.0).workload()
    assert workload.until == 3.0
    pacer = Pacer(workload)
    now, begun = 0.0, 0
    in_flight: list[int] = []
    while not pacer.done:
        in_flight += [index for index, _ in pacer.take_due(now)]
        begun = max(begun, len(in_flight))
        if in_flight:
            now += 0.25
            pacer.ended(in_flight.pop(0), now)
    assert now == pytest.approx(3.25)  # requests in flight at 3 s end


def test_all_at_once():
    workload = Offer([ONE], arrivals=AtOnce(), requests=5).workload()
    assert [entry.arrival for entry in workload.entries] == [0.0] * 5
    assert not workload.closed


@pytest.mark.parametrize("rate", [2.0, 50.0])
def test_a_load_sets_the_rate_and_enough_requests(rate):
    workload = Offer([ONE], arrivals=Gamma(1.0, 0.5)).workload(Load("rate", rate))
    assert len(workload.entries) >= max(100, rate * 30)
    span = workload.entries[-1].arrival
    assert len(workload.entries) / span == pytest.approx(rate, rel=0.3)


def test_a_load_sets_the_concurrency():
    workload = Offer([ONE], concurrency=4).workload(Load("concurrency", 16))
    assert (workload.concurrency, workload.closed, len(workload.entries)) == (16, True, 128)


def test_only_processes_of_one_rate_can_be_varied():
    assert at_rate(Constant(1.0), 5.0) == Constant(5.0)
    assert at_rate(None, 5.0) == Poisson(5.0)
    with pytest.raises(BenchError, match="no single rate"):
        at_rate(Ramp(1.0, 2.0, 10.0), 5.0)


def test_targets_are_those_of_the_entries_that_state_none():
    own = TrafficClass(name="own", share=1.0, input=Fixed(10), output=Fixed(2), targets=Targets(ttft=9.0))
    other = TrafficClass(name="other", share=1.0, input=Fixed(10), output=Fixed(2))
    workload = Offer([own, other], requests=40, targets=Targets(ttft=1.0)).workload()
    assert {entry.traffic: entry.targets.ttft for entry in workload.entries} == {"own": 9.0, "other": 1.0}


def test_what_the_model_cannot_take_is_left_out_and_reported():
    one = TrafficClass(name="", share=1.0, input=Uniform(10, 200), output=Fixed(10))
    workload = Offer([one], requests=100, max_model_len=110).workload()
    assert 0 < len(workload.entries) < 100
    assert all(entry.prompt_tokens + entry.output_tokens <= 110 for entry in workload.entries)
    assert workload.notes[-1].endswith("requests left out: longer than the model's 110 tokens.")


def test_turns_behind_one_that_is_left_out_are_left_out_too():
    one = TrafficClass(
        name="", share=1.0, input=Fixed(50), output=Fixed(10), sessions=Sessions(turns=Fixed(4), added=Uniform(1, 60))
    )
    workload = Offer([one], requests=80, max_model_len=150).workload()
    assert len(workload.entries) < 80
    for entry in workload.entries:
        if entry.after is not None:
            before = workload.entries[entry.after]
            assert before.session == entry.session
            assert entry.prompt_tokens > before.prompt_tokens


def test_a_model_that_can_take_no_request_is_refused():
    with pytest.raises(BenchError, match=r"All 5 requests are longer than the model's 64 tokens .the shortest has 120"):
        Offer([ONE], requests=5, max_model_len=64).workload()


@pytest.fixture
def azure(tmp_path) -> Path:
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:00:{second:02d}.5000000,{100 + second},5" for second in range(60)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_a_trace_keeps_its_times(azure):
    workload = Offer(trace=load(azure), trace_name=azure.name).workload()
    assert [entry.arrival for entry in workload.entries[:3]] == pytest.approx([0.0, 1.0, 2.0])
    assert "azure.csv" in workload.name


def test_a_part_of_a_trace_at_another_speed(azure):
    part = Part(start_s=10.0, seconds=20.0, requests=15, speed=4.0)
    entries = Offer(trace=load(azure), part=part).workload().entries
    assert len(entries) == 15
    assert entries[0].prompt_tokens == 110
    assert entries[1].arrival - entries[0].arrival == pytest.approx(0.25)


def test_a_trace_at_a_rate_is_the_trace_at_another_speed(azure):
    entries = Offer(trace=load(azure)).workload(Load("rate", 10.0)).entries
    assert len(entries) == 60
    assert 60 / entries[-1].arrival == pytest.approx(10.0, rel=0.05)


def test_a_trace_in_a_closed_loop(azure):
    workload = Offer(trace=load(azure)).workload(Load("concurrency", 3))
    assert (workload.closed, workload.concurrency) == (True, 3)
    assert {entry.arrival for entry in workload.entries} == {0.0}


def test_a_trace_without_times_is_a_closed_loop(tmp_path):
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "one two", "output_tokens": 3}\n' * 20)
    workload = Offer(trace=load(path), requests=12).workload()
    assert (workload.closed, workload.concurrency, len(workload.entries)) == (True, 8, 12)
    assert not Offer(trace=load(path), arrivals=Poisson(5.0)).workload().closed
