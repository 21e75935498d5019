"""Strategies: the steps that each proposes, as plans on the null executor."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.strategies import StepShape, StepView
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.types.features import Features, features
from inflight.core.types.plan import WaitUntil

from . import inspect_scheduler as inside
from .builders import request, view
from .harness import Harness, Setup


def harness_of(strategy: Any, *requests: Any, **more: Any) -> Harness:
    roomy = {"num_blocks": 80, "block_size": 4, "max_rows": 4, "token_budget": 8, "max_model_len": 64}
    return Harness(Setup(strategy=strategy, **{**roomy, "prefix_caching": False, **more}), *requests)


def prompts(*lengths: int, output: int = 4) -> list[Any]:
    """Requests a, b, … with prompts of these lengths."""
    return [request("abc"[n], [n] * length, output=output) for n, length in enumerate(lengths)]


def next_chunks(harness: Harness) -> list[tuple[int, int]]:
    """Run the next step; return the sequence and the length of each chunk."""
    chunks = [(chunk.sequence_id, chunk.length) for chunk in harness.plan().chunks]
    harness.commit()
    return chunks


class TestStatic:
    def test_a_full_batch_starts_at_once_and_an_incomplete_one_when_its_oldest_has_waited(self) -> None:
        harness = harness_of("static", request("a", arrival=-1.0), batch_size=2, patience=2.0)
        assert harness.plan() == WaitUntil(1.0)
        harness.add(request("b"), request("c"))
        assert len(next_chunks(harness)) == 2
        while inside.running(harness.scheduler):
            harness.step()
        assert harness.plan() == WaitUntil(2.0)
        harness.now = 2.0
        assert len(next_chunks(harness)) == 1

    def test_padding_to_the_longest_prompt_then_one_slot_for_each_that_has_ended(self) -> None:
        harness = harness_of("static", batch_size=3)
        lengths = (("a", 7, 1), ("b", 3, 4), ("c", 5, 2))
        harness.add(*(request(name, [ord(name) % 8] * prompt, output=output) for name, prompt, output in lengths))
        events = [[event.request_id for event in harness.step()] for _ in range(4)]
        assert [plan.padding for plan in harness.plans] == [(4, 2), (1,), (1, 1), (1, 1)]
        assert [plan.tokens for plan in harness.plans] == [21, 3, 3, 3]
        assert features(harness.plans[0]).tokens == 21 and features(harness.plans[2]).rows == 3
        assert events[:3] == [[], [], []] and {*events[3]} == {"a", "b", "c"}
        a, b = harness.timings(0), harness.timings(1)
        assert a.ttft_ms == a.total_ms == b.total_ms and a.other_ms > 0

    def test_memory_is_held_until_the_batch_ends_and_no_request_joins(self) -> None:
        harness = harness_of("static", batch_size=2)
        harness.add(request("a", [0] * 4, output=None, max_tokens=8), request("b", [1] * 4, output=1), request("c"))
        for _ in range(7):
            harness.step()
            assert harness.scheduler.stats().kv.held_blocks == 3 + 16, "b may be as long as the model allows"
            assert inside.waiting(harness.scheduler) == {2}

    def test_a_batch_counts_samples_and_the_samples_of_a_request_begin_together(self) -> None:
        harness = harness_of("static", batch_size=4)
        for name, samples in (("a", 3), ("b", 2), ("c", 2)):
            harness.add(request(name, [ord(name) % 8] * 3, n=samples))
        assert [number for number, _ in next_chunks(harness)] == [0, 1, 2]
        while not harness.step():
            pass
        assert [number for number, _ in next_chunks(harness)] == [3, 4, 5, 6]

    @pytest.mark.parametrize("strategy", ["static", "dynamic"])
    def test_more_samples_than_a_batch_holds_run_batch_by_batch(self, strategy: str) -> None:
        harness = harness_of(strategy, batch_size=2, patience=1.0)
        harness.serve(request("many", n=3, output=2), request("next", output=2))
        assert [len({chunk.sequence_id for chunk in plan.chunks}) for plan in harness.plans] == [2, 2, 2, 2]

    def test_one_that_has_ended_counts_and_may_be_aborted_until_its_answer_is_delivered(self) -> None:
        harness = harness_of("static", request("a", output=1), request("b", output=9), batch_size=2)
        harness.step()
        assert "'a' is running already" in harness.refuse(request("a"))
        assert harness.abort("a") == []  # it has ended, and its events come with the others'
        assert {event.request_id for event in harness.abort("b")} == {"a", "b"}
        assert harness.scheduler.idle and harness.scheduler.stats().kv.held_blocks == 0


class TestDynamic:
    def shape(self, strategy: Dynamic, now: float, *waiting: Any) -> StepShape | WaitUntil:
        class Queue(tuple):
            def views(self) -> Any:
                return self

        return strategy.shape(StepView(now, Queue(waiting), 0, lambda: (0, 0), 8))

    def test_a_full_bucket_starts_the_longest_waiting_first_when_several_are_full(self) -> None:
        strategy = Dynamic(2, 5.0, (10, 20))
        short = [view(number, prompt=[0] * 10, arrival=number) for number in (2, 3, 4)]
        long = [view(number, prompt=[0] * 11, arrival=number) for number in (0, 1)]
        assert self.shape(strategy, 0.0, *short, *long).admit == (0, 1)
        assert self.shape(strategy, 0.0, *short, long[0]).admit == (2, 3)
        twice = [view(number, prompt=[0] * 10, arrival=number, n=2) for number in (5, 6)]
        assert self.shape(strategy, 0.0, *twice).admit == (5,), "two samples fill a batch of two"

    def test_a_window_bounds_how_long_a_rare_length_waits(self) -> None:
        strategy = Dynamic(2, 5.0, (10, 20))
        rare = view(0, prompt=[0] * 50, arrival=1.0)
        assert self.shape(strategy, 2.0, rare, view(1, arrival=2.0)) == WaitUntil(6.0)
        assert self.shape(strategy, 6.0, rare, view(1, arrival=2.0)).admit == (0,)
        assert self.shape(strategy, 0.0).admit == ()

    def test_borders_follow_the_lengths_that_were_seen_and_distant_lengths_share_no_batch(self) -> None:
        mixed = [view(number, prompt=[0] * (5 if number % 2 else 40)) for number in range(6)]
        assert self.shape(Dynamic(3, 5.0, 2), 0.0, *mixed).admit in ((0, 2, 4), (1, 3, 5))
        harness = harness_of("dynamic", batch_size=2, max_rows=2)
        harness.serve(*(request(str(number), [0] * (3 if number % 2 else 30), output=2) for number in range(12)))
        starts = [{chunk.length for chunk in plan.chunks} for plan in harness.plans if plan.new_requests]
        assert all(len(lengths) == 1 for lengths in starts)


def test_continuous_prompts_are_whole_beside_decodes_and_a_long_one_goes_alone() -> None:
    harness = harness_of("continuous", request("a", [0] * 3, output=9))
    harness.step()
    harness.add(request("b", [1] * 20), request("c", [2] * 4), request("d", [3] * 4))
    assert next_chunks(harness) == [(0, 1), (1, 20)]
    assert next_chunks(harness) == [(0, 1), (1, 1), (2, 4)], "d would be above the budget"


class TestChunked:
    """A prompt's end ends a step of eight tokens early."""

    def lengths(self, harness: Harness) -> list[dict[str, int]]:
        """Run steps until all prompts are computed; return the tokens of each by request."""
        steps: list[dict[str, int]] = []
        while harness.scheduler.stats().waiting or not steps or max(steps[-1].values()) > 1:
            steps.append({})
            for number, length in next_chunks(harness):
                name = harness.owners[number][0].request.request_id
                steps[-1][name] = steps[-1].get(name, 0) + length
        return steps[:-1]

    @pytest.mark.parametrize(
        ("early_end", "steps"),
        [
            (0, [{"a": 3, "b": 5}, {"a": 1, "b": 4, "c": 3}, {"a": 1, "b": 1, "c": 2}]),
            (2, [{"a": 3}, {"a": 1, "b": 7}, {"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 5}]),
            (6, [{"a": 3, "b": 3}, {"a": 1, "b": 6}, {"a": 1, "b": 1, "c": 5}]),
        ],
    )
    def test_a_step_ends_with_a_complete_prompt_once_it_holds_enough(
        self, early_end: int, steps: list[dict[str, int]]
    ) -> None:
        assert self.lengths(harness_of("chunked", *prompts(3, 9, 5, output=9), early_end=early_end)) == steps

    def test_what_does_not_fit_before_an_early_end_waits_for_budget(self) -> None:
        harness = harness_of("chunked", *prompts(3, 3, output=1), early_end=2)
        harness.drain()
        assert harness.timings(1).queued_by["budget"] == harness.timings(1).queue_ms == 250.0

    def test_samples_of_one_prompt_join_together(self) -> None:
        harness = harness_of("chunked", early_end=2, prefix_caching=True, max_rows=5)
        harness.add(request("a", [0] * 6, n=4, output=3), request("b", [1] * 3, output=3))
        assert self.lengths(harness)[:3] == [{"a": 6}, {"a": 7, "b": 1}, {"a": 4, "b": 2}]

    def test_a_prompt_without_a_token_to_come_ends_no_step(self) -> None:
        harness = harness_of("chunked", request("a", [0] * 3, output=None, max_tokens=0), early_end=2)
        harness.add(request("b", [1] * 3, output=2))
        assert next_chunks(harness) == [(0, 3), (1, 3)]


class TestAdaptive:
    @pytest.fixture
    def learnt(self) -> LatencyModel:
        """A token takes a hundredth of a second, a step a tenth more."""
        latency = LatencyModel()
        for step in range(200):
            tokens, samples = 1 + step * 7 % 50, step % 5
            latency.observe(Features(tokens, 1, samples, 0, 0.0), 0.1 + tokens / 100)
        return latency

    def shape(self, strategy: Adaptive, decoding: int = 4) -> StepShape:
        return strategy.shape(StepView(0.0, (), decoding, lambda: (decoding, 0), 32))

    def test_it_ends_a_step_with_a_complete_prompt_too(self) -> None:
        assert next_chunks(harness_of("adaptive", *prompts(3, 3), early_end=2)) == [(0, 3)]

    def test_it_starts_with_little_and_never_proposes_more_than_it_may(self, learnt: LatencyModel) -> None:
        shape = self.shape(Adaptive(200, 0.5, LatencyModel()))
        assert 4 < shape.token_budget < 100 and shape.row_limit == 32
        assert self.shape(Adaptive(6, 0.5, LatencyModel())).token_budget == 6
        assert self.shape(Adaptive(6, 9.0, learnt)).token_budget == 6

    def test_the_budget_follows_the_target(self, learnt: LatencyModel) -> None:
        budgets = [self.shape(Adaptive(200, target, learnt)).token_budget for target in (0.1, 0.5, 1.0, 1.5, 9)]
        assert budgets == sorted(budgets) and budgets[-1] == 200
        assert budgets[2] == pytest.approx(0.9 * 100 - 10, abs=8)

    def test_the_row_limit_holds_the_target_but_counts_none_out(self, learnt: LatencyModel) -> None:
        assert self.shape(Adaptive(200, 0.25, learnt), 2).row_limit < 32
        assert self.shape(Adaptive(200, 0.01, learnt), 9).row_limit == 9

    def test_steps_that_miss_the_target_make_the_next_ones_smaller(self, learnt: LatencyModel) -> None:
        strategy = Adaptive(200, 1.0, learnt)
        before = self.shape(strategy).token_budget
        strategy.observe(Features(1, 1, 1, 0, 0.0), 1.5)
        missed = self.shape(strategy).token_budget
        for _ in range(20):
            strategy.observe(Features(1, 1, 1, 0, 0.0), 0.5)
        assert missed < before == self.shape(strategy).token_budget
