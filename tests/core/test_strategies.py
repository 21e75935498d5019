"""Strategies: the steps that each proposes, as plans on the null executor."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.plugin import guard_strategy
from inflight.core.strategies import StepShape, StepView
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, WaitUntil

from . import inspect_scheduler as inside
from .builders import request, view
from .harness import Harness, Setup


def harness_of(strategy: Any, **more: Any) -> Harness:
    roomy = {"num_blocks": 80, "block_size": 4, "max_rows": 4, "token_budget": 8, "max_model_len": 64}
    roomy["prefix_caching"] = False
    return Harness(Setup(strategy=strategy, **{**roomy, **more}))


def planned(harness: Harness) -> BatchPlan:
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    return plan


class TestStatic:
    def test_a_full_batch_starts_at_once_and_an_incomplete_one_when_its_oldest_has_waited(self) -> None:
        harness = harness_of("static", batch_size=2, patience=2.0)
        harness.add(request("a", arrival=-1.0))
        assert harness.plan() == WaitUntil(1.0)
        harness.add(request("b"), request("c"))
        assert len(planned(harness).chunks) == 2
        harness.commit()
        while inside.running(harness.scheduler):
            harness.step()
        assert harness.plan() == WaitUntil(2.0)
        harness.now = 2.0
        assert len(planned(harness).chunks) == 1
        harness.commit()
        harness.drain()

    def test_padding_to_the_longest_prompt_then_one_slot_for_each_that_has_ended(self) -> None:
        harness = harness_of("static", batch_size=3)
        lengths = (("a", 7, 1), ("b", 3, 4), ("c", 5, 2))
        harness.add(*(request(name, [ord(name) % 8] * prompt, output=output) for name, prompt, output in lengths))
        told = [[event.request_id for event in harness.step()] for _ in range(4)]
        assert [plan.padding for plan in harness.plans] == [(4, 2), (1,), (1, 1), (1, 1)]
        assert [plan.tokens for plan in harness.plans] == [21, 3, 3, 3]
        assert features(harness.plans[0]).tokens == 21 and features(harness.plans[2]).rows == 3
        assert told[:3] == [[], [], []] and {*told[3]} == {"a", "b", "c"}
        a, b, _ = (client.ended.timings for client in harness.clients)
        assert a.ttft_ms == a.total_ms == b.total_ms and a.other_ms > 0

    def test_memory_is_held_until_the_batch_ends_and_nobody_joins(self) -> None:
        harness = harness_of("static", batch_size=2)
        harness.add(request("a", [0] * 4, output=None, max_tokens=8), request("b", [1] * 4, output=1), request("c"))
        planned(harness)
        held = harness.scheduler.stats().held_blocks
        assert held == 3 + 16  # b may be as long as the model allows
        harness.commit()
        for _ in range(6):
            harness.step()
            assert harness.scheduler.stats().held_blocks == held
            assert inside.waiting(harness.scheduler) == {2}
        harness.drain()

    def test_a_batch_counts_samples_and_a_request_is_not_torn_apart_for_room(self) -> None:
        harness = harness_of("static", batch_size=4)
        for name, samples in (("a", 3), ("b", 2), ("c", 2)):
            harness.add(request(name, [ord(name) % 8] * 3, n=samples))
        assert [chunk.sequence_id for chunk in planned(harness).chunks] == [0, 1, 2]
        harness.commit()
        while len({event.request_id for event in harness.step()}) == 0:
            pass
        assert [chunk.sequence_id for chunk in planned(harness).chunks] == [3, 4, 5, 6]
        harness.commit()
        harness.drain()

    @pytest.mark.parametrize("strategy", ["static", "dynamic"])
    def test_more_samples_than_a_batch_holds_run_batch_by_batch(self, strategy: str) -> None:
        harness = harness_of(strategy, batch_size=2, patience=1.0)
        harness.add(request("many", n=3, output=2), request("next", output=2))
        assert [chunk.sequence_id for chunk in planned(harness).chunks] == [0, 1]
        harness.commit()
        harness.drain()
        assert all(client.ended for client in harness.clients)
        assert [len({chunk.sequence_id for chunk in plan.chunks}) for plan in harness.plans] == [2, 2, 2, 2]

    def test_an_id_is_taken_until_its_answer_is_delivered(self) -> None:
        harness = harness_of("static", batch_size=2)
        harness.add(request("a", output=1), request("b", output=3))
        harness.step()
        assert "'a' is running already" in harness.refuse(request("a"))
        harness.drain()

    def test_aborted_while_it_lingers_or_last_of_its_batch(self) -> None:
        harness = harness_of("static", batch_size=2)
        harness.add(request("a", output=1), request("b", output=9))
        harness.step()
        assert harness.abort("a") == []  # it has ended, and is told with the others
        assert {event.request_id for event in harness.abort("b")} == {"a", "b"}
        assert harness.scheduler.idle and harness.scheduler.stats().held_blocks == 0


def nobody() -> tuple[int, int]:
    return 0, 0


class TestDynamic:
    def shape(self, strategy: Dynamic, now: float, *waiting: Any) -> StepShape | WaitUntil:
        class Queue:
            def __len__(self) -> int:
                return len(waiting)

            def views(self) -> Any:
                return waiting

        return strategy.shape(StepView(now, Queue(), 0, nobody, 8))

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

    def test_borders_follow_the_lengths_that_were_seen(self) -> None:
        strategy = Dynamic(3, 5.0, 2)
        mixed = [view(number, prompt=[0] * (5 if number % 2 else 40)) for number in range(6)]
        assert self.shape(strategy, 0.0, *mixed).admit in ((0, 2, 4), (1, 3, 5))

    def test_lengths_apart_never_share_a_batch(self) -> None:
        harness = harness_of("dynamic", batch_size=2, patience=1.0, max_rows=2)
        for number in range(12):
            harness.add(request(str(number), [0] * (3 if number % 2 else 30), output=2))
        harness.drain()
        starts = [[chunk.length for chunk in plan.chunks] for plan in harness.plans if plan.new_requests]
        assert all(len(set(lengths)) == 1 for lengths in starts)


class TestContinuous:
    def test_prompts_are_whole_beside_decodes_and_a_long_one_goes_alone(self) -> None:
        harness = harness_of("continuous")
        harness.add(request("a", [0] * 3, output=9))
        harness.step()
        harness.add(request("b", [1] * 20), request("c", [2] * 4), request("d", [3] * 4))
        assert [chunk.length for chunk in planned(harness).chunks] == [1, 20]
        harness.commit()
        assert [chunk.length for chunk in planned(harness).chunks] == [1, 1, 4]  # d would be above the budget
        harness.commit()
        harness.drain()


LENGTHS = (("a", 3), ("b", 9), ("c", 5))


class TestChunked:
    """Of steps of eight tokens: where a prompt's end ends them."""

    def lengths(self, harness: Harness) -> list[dict[str, int]]:
        """Of the steps to come until all prompts are computed: their chunks by request."""
        steps: list[dict[str, int]] = []
        while harness.scheduler.stats().waiting or not steps or max(steps[-1].values()) > 1:
            steps.append({})
            for chunk in planned(harness).chunks:
                name = harness.owners[chunk.sequence_id][0].request.request_id
                steps[-1][name] = steps[-1].get(name, 0) + chunk.length
            harness.commit()
        harness.drain()
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
        harness = harness_of("chunked", early_end=early_end)
        harness.add(*(request(name, [n] * length, output=9) for n, (name, length) in enumerate(LENGTHS)))
        assert self.lengths(harness) == steps

    def test_what_does_not_fit_before_an_early_end_waits_for_budget(self) -> None:
        harness = harness_of("chunked", early_end=2)
        harness.add(request("a", [0] * 3, output=1), request("b", [1] * 3, output=1))
        harness.step()
        harness.drain()
        timings = next(one.ended.timings for one in harness.clients if one.request.request_id == "b" and one.ended)
        assert timings.queued_by["budget"] == timings.queue_ms == 250.0

    def test_samples_of_one_prompt_join_together(self) -> None:
        harness = harness_of("chunked", early_end=2, prefix_caching=True, max_rows=5)
        harness.add(request("a", [0] * 6, n=4, output=3), request("b", [1] * 3, output=3))
        assert self.lengths(harness)[:3] == [{"a": 6}, {"a": 7, "b": 1}, {"a": 4, "b": 2}]

    def test_a_prompt_without_a_token_to_come_ends_no_step(self) -> None:
        harness = harness_of("chunked", early_end=2)
        harness.add(request("a", [0] * 3, output=None, max_tokens=0), request("b", [1] * 3, output=2))
        assert [chunk.length for chunk in planned(harness).chunks] == [3, 3]
        harness.commit()
        harness.drain()


class TestAdaptive:
    def test_it_ends_a_step_with_a_complete_prompt_too(self) -> None:
        harness = harness_of("adaptive", early_end=2)
        harness.add(request("a", [0] * 3, output=2), request("b", [1] * 3, output=2))
        assert [chunk.length for chunk in planned(harness).chunks] == [3]
        harness.commit()
        harness.drain()

    def learnt(self) -> LatencyModel:
        """A token takes a hundredth of a second, a step a tenth more."""
        latency = LatencyModel()
        for step in range(200):
            tokens, samples = 1 + step * 7 % 50, step % 5
            latency.observe(Features(tokens, 1, samples, 0, 0.0), 0.1 + tokens / 100)
        return latency

    def view(self, decoding: int = 4) -> StepView:
        return StepView(0.0, (), decoding, lambda: (decoding, 0), 32)  # type: ignore[arg-type]

    def test_it_starts_with_little_and_never_proposes_more_than_it_may(self) -> None:
        shape = Adaptive(200, 0.5, LatencyModel()).shape(self.view())
        assert 4 < shape.token_budget < 100 and shape.row_limit == 32
        assert Adaptive(6, 0.5, LatencyModel()).shape(self.view()).token_budget == 6
        assert Adaptive(6, 9.0, self.learnt()).shape(self.view()).token_budget == 6

    def test_the_budget_follows_the_target(self) -> None:
        latency = self.learnt()
        budgets = [Adaptive(200, target, latency).shape(self.view()).token_budget for target in (0.1, 0.5, 1.0, 1.5, 9)]
        assert budgets == sorted(budgets) and budgets[-1] == 200
        assert budgets[2] == pytest.approx(0.9 * 100 - 10, abs=8)

    def test_the_row_limit_holds_the_target_but_counts_nobody_out(self) -> None:
        latency = self.learnt()
        assert Adaptive(200, 0.25, latency).shape(self.view(2)).row_limit < 32
        assert Adaptive(200, 0.01, latency).shape(self.view(9)).row_limit == 9

    def test_steps_that_miss_the_target_make_the_next_ones_smaller(self) -> None:
        strategy = Adaptive(200, 1.0, self.learnt())
        before = strategy.shape(self.view()).token_budget
        strategy.observe(Features(1, 1, 1, 0, 0.0), 1.5)
        missed = strategy.shape(self.view()).token_budget
        for _ in range(20):
            strategy.observe(Features(1, 1, 1, 0, 0.0), 0.5)
        assert missed < before == strategy.shape(self.view()).token_budget


def test_the_latency_model_recovers_what_steps_take() -> None:
    latency = LatencyModel()
    state = 1

    def draw(most: int) -> int:
        nonlocal state
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        return state >> 8 % 24 and (state >> 8) % most

    def took(held: Features) -> float:
        return (
            0.02 + 3e-4 * held.tokens + 1e-3 * held.samples + 2e-7 * held.decode_context + 1e-7 * held.prefill_context
        )

    seen = [Features(1 + draw(200), 1, draw(32), draw(40_000), float(draw(20_000))) for _ in range(400)]
    for held in seen:
        latency.observe(held, took(held))
    assert latency.ready
    for held in (Features(1, 1, 1, 100, 0.0), Features(150, 3, 8, 20_000, 9000.0), Features(32, 32, 32, 30_000, 0.0)):
        assert latency.seconds(held) == pytest.approx(took(held), rel=0.02)


class _Stumbling:
    name = "stumbling"

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers

    def shape(self, view: StepView) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def observe(self, features: Features, seconds: float) -> None:
        raise OSError("no place to write to")


@pytest.mark.parametrize(
    "answer",
    [ValueError("no idea"), "chunked", StepShape(0, 4), StepShape(8, 0), WaitUntil(1.0), None],
)
def test_a_plugins_strategy_that_fails_is_replaced_by_chunked(answer: object) -> None:
    told: list[str] = []
    good = StepShape(token_budget=5, row_limit=2)
    strategy = guard_strategy(_Stumbling([good, answer, good]), Chunked(64), told.append)  # type: ignore[arg-type]
    queue: Any = ()
    now = StepView(now=2.0, waiting=queue, running=0, decodes=nobody, max_rows=4)
    assert strategy.shape(now) is good
    assert strategy.shape(now) == StepShape(token_budget=64, row_limit=4)
    assert strategy.shape(now) == StepShape(token_budget=64, row_limit=4)
    strategy.observe(Features(1, 1, 1, 1, 0.0), 0.1)
    assert len(told) == 1 and "'stumbling' failed in shape" in told[0]


def test_a_plugins_strategy_may_fail_while_it_learns() -> None:
    told: list[str] = []
    strategy = guard_strategy(_Stumbling([]), Chunked(64), told.append)  # type: ignore[arg-type]
    strategy.observe(Features(1, 1, 1, 1, 0.0), 0.1)
    assert "failed in observe (OSError: no place to write to)" in told[0]
