"""Workloads driven on an engine: requests of entries, observations, stops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from core.builders import request
from core.harness import VOCABULARY, FaultyExecutor, Setup

from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.request import SLO, Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation, Targets
from inflight.testing.null import NullExecutor
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver, EngineFault, core_request
from inflight.workload.lengths import Fixed
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, Pacer, Workload


def test_an_entry_says_everything_that_a_request_can_hold() -> None:
    entry = Entry(
        2.5, 3, 40, max_tokens=64, lane="batch", tenant="acme", priority=-2, cache_salt="pepper",
        targets=Targets(ttft=0.5, tpot=9.0, itl=0.1, e2e=9.0),
    )  # fmt: skip
    request = core_request(entry, "r7", (5, 6, 7))
    assert request.request_id == "r7" and request.prompt_token_ids == (5, 6, 7)
    assert (request.arrival, request.lane, request.tenant, request.priority) == (2.5, "batch", "acme", -2)
    assert request.slo == SLO(ttft=0.5, itl=0.1, tpot=9.0) and request.cache_salt == "pepper"
    assert (request.params.max_tokens, request.forced_output_tokens) == (64, 40)
    assert request.params.temperature == 0 and request.params.ignore_eos


def test_what_an_entry_leaves_open_is_as_usual_and_no_answer_is_longer_than_its_limit() -> None:
    request = core_request(Entry(0.0, 1, 12), "0", (5,), arrival=8.0)
    assert (request.lane, request.tenant, request.priority, request.slo) == ("interactive", "", 0, SLO())
    assert (request.params.max_tokens, request.forced_output_tokens, request.arrival) == (12, 12, 8.0)
    assert core_request(Entry(0.0, 1, 12, max_tokens=5), "0", (5,)).forced_output_tokens == 5


def test_an_engine_finds_shared_prefixes_and_gives_answers_of_the_length() -> None:
    """One conversation after the other in a closed loop: what is cached is what the workload says is shared."""
    sessions, prefix = Sessions(turns=Fixed(3), added=Fixed(10)), SharedPrefixes(system_tokens=32)
    chat = TrafficClass(name="chat", share=1, input=Fixed(20), output=Fixed(6), prefix=prefix, sessions=sessions)
    workload = synthesize([chat], requests=6, concurrency=1)
    loop = Setup(num_blocks=64, block_size=16, max_rows=2, token_budget=64, max_model_len=200).loop()
    pacer, contents, now, cached = Pacer(workload), Contents(workload.entries, VOCABULARY - 1), 0.0, {}
    while not pacer.done:
        for index, intended in pacer.take_due(now):
            loop.add(core_request(workload.entries[index], str(index), contents.prompt(index), intended))
            events = loop.run()
            (end,) = (event for event in events if isinstance(event, FinishedEvent))
            assert sum(len(event.token_ids) for event in events if isinstance(event, TokensEvent)) == 6
            now = intended + end.timings.total_ms / 1000
            cached[index] = end.timings.cached_tokens
            pacer.ended(index, now)
    # The first prompt has 52 tokens, later ones 68 and 84; whole blocks of 16 are found, up to the answer before.
    assert cached == {0: 0, 1: 48, 2: 64, 3: 32, 4: 48, 5: 64}


ROOMY = Setup(num_blocks=60, max_rows=4, token_budget=8)


def driver(*entries: Entry, executor: NullExecutor | None = None, n: int = 1, **settings: Any) -> Driver:
    """Steps take a second."""
    executor = executor or NullExecutor(ROOMY.capacity, lambda plan: 1.0)

    def of(index: int, arrival: float) -> Request:
        entry = entries[index]
        return request(str(index), [index] * entry.prompt_tokens, entry.output_tokens, arrival=arrival, n=n)

    loop = EngineLoop(ROOMY.scheduler(), executor, VirtualClock(5.0))
    return Driver(loop, Workload(entries, "test", **settings), of)


def run(*entries: Entry, **settings: Any) -> list[Observation]:
    return driver(*entries, **settings).run()


def test_an_open_loop_sends_at_its_times() -> None:
    first, second = run(Entry(0.5, 2, 3), Entry(10.0, 2, 1, traffic="late", tenant="t"))
    assert first.sent == first.intended == 5.5
    assert list(first.token_times) == [6.5, 7.5, 8.5], "on the engine's clock, which began before the run"
    assert (first.ttft, first.tpot, first.e2e) == (1.0, 1.0, 3.0)
    assert (second.intended, second.ended, second.traffic, second.tenant) == (15.0, 16.0, "late", "t")


def test_gaps_of_several_samples_are_each_samples_own() -> None:
    """Both draw a token in each step: between the tokens of one lies a step, between those of both nothing."""
    (one,) = run(Entry(0.0, 2, 4), n=2)
    assert (one.output_tokens, one.longest_output, len(one.token_times)) == (8, 4, 8)
    assert list(one.token_times) == sorted(one.token_times)
    assert one.gaps == [1.0] * 6


def test_a_request_that_comes_within_a_step_waits_for_it() -> None:
    _, second = run(Entry(0.0, 2, 3), Entry(0.5, 2, 1))
    assert (second.intended, second.sent, second.ttft) == (5.5, 6.0, 1.5)


def test_a_closed_loop_counts_from_when_a_place_was_free() -> None:
    seen = run(*[Entry(0.0, 2, 2) for _ in range(4)], concurrency=1, closed=True)
    assert [one.intended for one in seen] == [5.0, 7.0, 9.0, 11.0]
    assert [one.ttft for one in seen] == [1.0] * 4


def test_refused_requests_are_seen_and_give_their_place_back() -> None:
    too_long = Entry(0.0, ROOMY.capacity.max_model_len + 1, 1)
    refused, served = run(too_long, Entry(0.0, 2, 1), concurrency=1, closed=True)
    assert refused.outcome == "failed" and refused.error
    assert served.outcome == "completed"


def test_a_stopped_run_returns_what_it_has() -> None:
    entries = (Entry(0.0, 2, 1), Entry(0.0, 2, 50), Entry(100.0, 2, 1))
    looks = itertools.count()
    done, cut, never = driver(*entries).run(lambda: next(looks) >= 4)
    assert [one.outcome for one in (done, cut, never)] == ["completed", "unfinished", "unfinished"]
    assert 0 < cut.output_tokens < 50
    assert cut.sent is not None and never.sent is None


def test_a_step_that_fails_ends_the_run() -> None:
    executor = FaultyExecutor(ROOMY.capacity, lambda plan: 1.0)
    executor.fail_next = True
    with pytest.raises(EngineFault):
        run(Entry(0.0, 2, 5), executor=executor)
