"""The scheduler: validation, the ends, and what the six verbs promise."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Finish, FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Sampled, StepResult, WaitUntil

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, LaneSetup, Setup, outputs_alone

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=16, max_model_len=64)


def reasons(harness: Harness) -> list[list[str]]:
    return [[finish.reason for finish in client.ended.finishes] for client in harness.clients if client.ended]


def assert_as_alone(harness: Harness) -> None:
    for client in harness.clients:
        assert client.ended is not None
        assert (client.tokens, client.ended.finishes) == outputs_alone(client.request, harness.setup.max_model_len)


# -- validation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": []}, "The prompt has 0 tokens"),
        ({"prompt": [0] * 64}, "length is 64 tokens"),
        ({"prompt": [1, 8]}, "holds the token id 8, but the vocabulary has 8 tokens"),
        ({"prompt": [-1]}, "holds the token id -1"),
        ({"logit_bias": {1: 1, 8: 1}}, "logit_bias names the token id 8"),
        ({"stop_token_ids": [9]}, "stop_token_ids names the token id 9"),
        ({"bad_token_ids": ((1,), (2, 8))}, "bad_words are spelled with the token id 8"),
        ({"output": 0}, "output_tokens is 0"),
    ],
)
def test_refusals_name_the_number(fields: dict[str, Any], words: str) -> None:
    assert words in Harness(ROOMY).refuse(request("r", **fields))


def test_a_prompt_that_can_never_fit_is_refused_and_one_that_just_fits_is_not() -> None:
    harness = Harness(Setup(num_blocks=3, block_size=4, token_budget=16))
    assert "needs 4 KV blocks of 4 tokens, but there are 3" in harness.refuse(request("r", [0] * 13))
    harness.add(request("r", [0] * 12, output=5))
    harness.drain()


@pytest.mark.parametrize("token_id", [-1, 8])
def test_end_tokens_are_in_the_vocabulary(token_id: int) -> None:
    """Banning another would break every step with the request in it."""
    with pytest.raises(ValueError, match=rf"names \[{token_id}\], but the vocabulary has 8 tokens"):
        Scheduler(SchedulerConfig(Setup().capacity, Chunked(4), Fcfs(), end_token_ids=frozenset({7, token_id})))


def test_an_id_is_refused_while_it_is_alive_and_taken_again_afterwards() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", output=1))
    assert "'a' is running already" in harness.refuse(request("a"))
    harness.drain()
    harness.add(request("a"))
    harness.drain()


def test_the_models_length_ends_a_request_without_max_tokens() -> None:
    harness = Harness(Setup(num_blocks=40, max_model_len=9, token_budget=16))
    harness.add(request("a", [0] * 3, output=None), request("b", [0] * 8, output=None))
    harness.drain()
    assert [len(client.tokens[0]) for client in harness.clients] == [6, 1]
    assert reasons(harness) == [["length"], ["length"]]


# -- sharing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("caching", [True, False])
def test_prompts_around_a_blocks_length(tokens: int, caching: bool) -> None:
    setup = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=40, prefix_caching=caching)
    harness = Harness(setup)
    harness.add(request("a", [0] * tokens, output=6), request("b", [0] * tokens, output=6))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    shared = (tokens - 1) // 4 if caching else 0
    assert [chunk.start for chunk in plan.chunks] == [0, 4 * shared]  # in the very step that computes them
    assert plan.chunks[0].new_blocks[:shared] == plan.chunks[1].new_blocks[:shared]
    harness.drain()
    assert_as_alone(harness)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_compute_their_prompt_once(caching: bool, temperature: float) -> None:
    setup = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=6, prefix_caching=caching)
    harness = Harness(setup)
    harness.add(request("a", [0] * 9, output=5, n=3, temperature=temperature))
    harness.step()
    assert inside.held_back(harness.scheduler) == {1, 2}
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    assert [(chunk.sequence_id, chunk.start, chunk.length) for chunk in plan.chunks] == [
        (0, 6, 3),
        (1, 8, 1),
        (2, 8, 1),
    ]
    harness.drain()
    assert_as_alone(harness)
    assert (harness.clients[0].tokens[0] == harness.clients[0].tokens[1]) == (temperature == 0)


def test_salts_keep_tenants_apart() -> None:
    harness = Harness(ROOMY)
    harness.add(*(request(salt, [0] * 8, cache_salt=salt, output=1) for salt in ("a", "b")))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    assert [chunk.length for chunk in plan.chunks] == [8, 8]


# -- ends -------------------------------------------------------------------------------------------------------


def test_tokens_events_then_one_terminal_event() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", output=2))
    (first,) = harness.step()
    second, end = harness.step()
    assert isinstance(first, TokensEvent) and first.finish is None
    assert isinstance(second, TokensEvent) and second.finish == Finish("length")
    assert isinstance(end, FinishedEvent) and end.finishes == (Finish("length"),)


def test_log_probabilities_pass_through_and_are_cut_with_the_tokens() -> None:
    scheduler = ROOMY.scheduler()
    scheduler.add(request("a", output=1), 0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    logprobs = ("of 5", "of 6")
    result = StepResult(0, (Sampled(0, (5, 6), logprobs),), 0.0)  # type: ignore[arg-type]
    tokens, _ = scheduler.commit(plan, result, 0.0)
    assert isinstance(tokens, TokensEvent)
    assert (tokens.token_ids, tokens.logprobs) == ((5,), ("of 5",))


def test_a_request_ends_with_its_last_sample_and_is_timed_by_it() -> None:
    harness = Harness(Setup(num_blocks=40, max_rows=1, token_budget=16))
    harness.add(request("a", output=3, n=2))
    events = harness.drain()  # one row: sample 1 runs after sample 0
    (end,) = [event for event in events if isinstance(event, FinishedEvent)]
    assert [event.sample_index for event in events if isinstance(event, TokensEvent)] == [0, 0, 0, 1, 1, 1]
    assert end.timings.queue_ms > 0 and end.timings.queued_by["rows"] > 0


def test_a_sample_that_was_aborted_late_times_the_request() -> None:
    """The last to end counts, not the last that got a token."""
    harness = Harness(Setup(num_blocks=40, max_rows=1, token_budget=16))
    harness.add(request("a", output=3, n=2))
    for _ in range(3):
        harness.step()
    harness.now += 5
    (end,) = harness.abort("a")
    assert isinstance(end, FinishedEvent)
    assert [finish.reason for finish in end.finishes] == ["length", "abort"]
    assert end.timings.total_ms == pytest.approx(5750)
    assert end.timings.ttft_ms is None


def test_one_that_outgrows_memory_ends_alone() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, max_rows=2, token_budget=8, prefix_caching=False))
    harness.add(request("big", [0] * 5, output=None), request("small", [1], output=2))
    harness.drain()
    big, small = harness.clients
    (finish,) = big.ended.finishes
    assert finish.reason == "length"
    assert finish.detail is not None and "After 4 output tokens" in finish.detail and "5 KV blocks" in finish.detail
    assert big.tokens[0] == outputs_alone(big.request, 24)[0][0][:4]
    assert small.ended.finishes == (Finish("length"),)


def test_a_prompt_that_fills_all_memory_gets_one_token() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, token_budget=8))
    harness.add(request("a", [0] * 8, output=None), request("b", [0] * 8, output=1))
    harness.drain()
    assert [len(client.tokens[0]) for client in harness.clients] == [1, 1]
    details = [client.ended.finishes[0].detail for client in harness.clients]
    assert details[0] is not None and details[1] is None


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_sampled_ahead_of_a_stop_are_dropped(depth: int) -> None:
    setup = Setup(num_blocks=40, token_budget=16, depth=depth)
    alone = outputs_alone(request("a", [0, 1], output=6), 24)[0][0]
    harness = Harness(setup)
    harness.add(request("a", [0, 1], output=None, stop_token_ids=[alone[2]], max_tokens=9))
    harness.drain()
    assert harness.clients[0].tokens[0] == alone[: alone.index(alone[2]) + 1]


# -- aborts -----------------------------------------------------------------------------------------------------


class TestAbort:
    def test_nobody(self) -> None:
        harness = Harness(ROOMY)
        assert harness.abort("nobody") == []
        assert harness.scheduler.idle

    def test_while_waiting(self) -> None:
        harness = Harness(ROOMY)
        harness.add(request("a"))
        harness.abort("a")
        assert harness.scheduler.idle
        assert harness.plan() is None

    @pytest.mark.parametrize("steps", [0, 1, 2, 3])
    def test_samples_while_held_back_or_running(self, steps: int) -> None:
        harness = Harness(Setup(num_blocks=20, max_rows=2, token_budget=2))
        harness.add(request("a", [0] * 4, n=3))
        for _ in range(steps):
            harness.step()
        harness.abort("a")
        assert harness.scheduler.idle
        snapshot = harness.scheduler.stats()
        assert (snapshot.waiting, snapshot.running, snapshot.held_blocks) == (0, 0, 0)

    def test_while_in_flight_its_blocks_are_kept_until_the_step_is_done(self) -> None:
        harness = Harness(Setup(num_blocks=20, depth=2, token_budget=8))
        harness.add(request("a", [0] * 4, output=5))
        harness.plan()
        harness.plan()
        harness.abort("a")
        assert not harness.scheduler.idle
        assert harness.scheduler.stats().held_blocks == 3
        assert harness.commit() == []
        assert harness.scheduler.stats().held_blocks == 3
        assert harness.commit() == []
        assert harness.scheduler.idle
        assert harness.scheduler.stats().held_blocks == 0

    def test_while_preempted(self) -> None:
        harness = Harness(Setup(num_blocks=4, block_size=2, max_rows=3, token_budget=12, prefix_caching=False))
        harness.add(request("a", [0] * 3, output=5), request("b", [1] * 3, output=5))
        harness.until_preempted()
        (end,) = harness.abort("b")
        assert isinstance(end, FinishedEvent) and end.timings.preempted_ms > 0
        harness.drain()
        assert reasons(harness) == [["length"], ["abort"]]

    def test_its_finished_prefix_stays_findable(self) -> None:
        harness = Harness(ROOMY)
        harness.add(request("a", [0] * 9, output=5))
        harness.step()
        harness.abort("a")
        harness.add(request("b", [0] * 9, output=2))
        harness.drain()
        assert harness.clients[1].ended.timings.cached_tokens == 8


# -- broken steps -----------------------------------------------------------------------------------------------


class TestBrokenStep:
    def test_its_requests_end_and_others_go_on(self) -> None:
        harness = Harness(Setup(num_blocks=20, max_rows=1, token_budget=8))
        harness.add(request("a", output=5, n=2), request("b", output=2))
        harness.step()
        harness.step(fail=True)
        assert reasons(harness) == [["error", "error"]]
        assert harness.clients[0].ended.finishes[0].detail == "Step 1 broke."
        harness.drain()
        assert harness.clients[1].tokens == outputs_alone(harness.clients[1].request, 24)[0]

    def test_cached_content_is_not_trusted_any_more(self) -> None:
        harness = Harness(ROOMY)
        harness.add(request("a", [0] * 9, output=1))
        harness.drain()
        harness.add(request("b", [1] * 9))
        harness.step(fail=True)
        assert inside.cached_blocks(harness.scheduler) == 0
        harness.add(request("c", [0] * 9, output=3), request("d", [1] * 9, output=3))
        harness.drain()
        assert [client.ended.timings.cached_tokens for client in harness.clients[2:]] == [0, 0]

    def test_later_steps_that_build_on_it_end_with_it(self) -> None:
        """At depth 2 a newcomer may share blocks that the broken step should have written."""
        harness = Harness(Setup(num_blocks=20, max_rows=2, token_budget=4, depth=2))
        harness.add(request("a", [0] * 4, output=3), request("b", [0] * 5, output=3))
        harness.plan(fail=True)
        harness.plan()
        assert harness.plans[1].chunks[1].start == 4
        harness.commit()
        assert reasons(harness) == [["error"], ["error"]]
        harness.drain()

    def test_one_that_was_aborted_leaves_its_id_to_others(self) -> None:
        harness = Harness(Setup(num_blocks=20, depth=2, token_budget=8))
        harness.add(request("a", [0] * 3))
        harness.plan(fail=True)
        harness.abort("a")
        harness.add(request("a", [1] * 3, output=2))
        assert harness.commit() == []
        harness.drain()
        assert reasons(harness) == [["abort"], ["length"]]


class TestStepWithoutMemory:
    def test_those_that_it_was_the_first_of_end_and_the_others_say_what_they_would_have_said(self) -> None:
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=3, token_budget=16))
        harness.add(request("a", output=6), request("b", [3] * 7, output=6))
        harness.step()
        harness.add(request("new", [1] * 9, output=6))
        harness.step(fail="memory")
        assert reasons(harness) == [["error"]]
        assert harness.clients[2].ended.finishes[0].detail == "Step 1 broke."
        harness.drain()
        for client in harness.clients[:2]:
            assert client.tokens == outputs_alone(client.request, 60)[0]
            assert client.ended.finishes[0].reason == "length"

    def test_steps_in_flight_behind_it_count_for_nothing(self) -> None:
        """At depth 2 whoever decodes is in the next step, too, whose token is drawn from what was never computed."""
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=3, token_budget=16, depth=2))
        harness.add(request("a", output=8), request("b", [3] * 7, output=8))
        harness.step()
        harness.add(request("new", [1] * 5, output=6))
        harness.plan(fail="memory")
        harness.commit()
        behind = harness.plan()
        assert isinstance(behind, BatchPlan) and {chunk.sequence_id for chunk in behind.chunks} >= {0, 1}
        harness.commit()
        assert reasons(harness) == [["error"]] and len(inside.running(harness.scheduler)) >= 2, "they hold their rows"
        said = [list(client.tokens[0]) for client in harness.clients[:2]]
        harness.commit()
        assert [client.tokens[0] for client in harness.clients[:2]] == said
        assert not inside.running(harness.scheduler)
        harness.drain()
        assert reasons(harness) == [["length"], ["length"], ["error"]]
        for client in harness.clients[:2]:
            assert client.tokens == outputs_alone(client.request, 60)[0]

    @pytest.mark.parametrize("behind", ["memory", True])
    def test_a_step_behind_it_that_fails_too(self, behind: str | bool) -> None:
        """For lack of memory again: nothing of it counted, and nobody else ends. For another reason: all of it does."""
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=3, token_budget=16, depth=2))
        harness.add(request("a", output=8), request("b", [3] * 7, output=8))
        harness.step()
        harness.add(request("new", [1] * 5, output=6))
        harness.plan(fail="memory")
        harness.commit()
        harness.plan(fail=behind)
        harness.commit()
        assert reasons(harness) == [["error"]]
        harness.commit()
        harness.drain()
        assert reasons(harness) == ([["length"], ["length"], ["error"]] if behind == "memory" else [["error"]] * 3)
        if behind == "memory":
            assert [one.tokens for one in harness.clients[:2]] == [
                outputs_alone(one.request, 60)[0] for one in harness.clients[:2]
            ]

    def test_a_prompt_that_goes_on_is_the_cause_where_nobody_is_new(self) -> None:
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=2, token_budget=8))
        harness.add(request("a", output=6))
        harness.step()
        harness.add(request("long", [1] * 30, output=2))
        harness.step()
        harness.step(fail="memory")
        assert reasons(harness) == [["error"]]
        harness.drain()
        assert harness.clients[0].tokens == outputs_alone(harness.clients[0].request, 60)[0]

    def test_where_all_decode_all_end(self) -> None:
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=2, token_budget=8))
        harness.add(request("a", output=6), request("b", output=6))
        harness.step()
        harness.step(fail="memory")
        assert reasons(harness) == [["error"], ["error"]]
        harness.drain()

    def test_the_scores_of_a_prompt_are_planned_again(self) -> None:
        harness = Harness(Setup(num_blocks=40, max_model_len=60, max_rows=3, token_budget=16))
        harness.add(request("a", [2] * 20, output=2, prompt_logprobs=1))
        harness.step()
        harness.add(request("new", [1] * 4, output=2))
        harness.step(fail="memory")
        assert reasons(harness) == [["error"]]
        harness.drain()
        assert [one.token_id for one in harness.clients[0].scores] == [2] * 19

    def test_scores_that_several_steps_were_to_yield_are_planned_again(self) -> None:
        """At depth 2 the first step of the lost ones takes its scores back while the other is still in flight."""
        lanes = (LaneSetup(settings=(("chunk", 2),)),)
        harness = Harness(Setup(num_blocks=40, max_model_len=60, token_budget=8, depth=2, lanes=lanes))
        harness.add(request("a", [2] * 12, output=2, prompt_logprobs=1))
        harness.plan()
        harness.add(request("new", [1] * 9, output=2))
        harness.plan(fail="memory")
        harness.commit()
        harness.plan()
        assert [one.chunks[0].score for one in harness.plans] == [range(2), range(2, 4), range(4, 6)]
        harness.commit()
        assert reasons(harness) == [["error"]]
        assert inside.samples(harness.scheduler, "a")[0].scored == 2, "the last step is not in yet"
        harness.commit()
        again = harness.plan()
        assert isinstance(again, BatchPlan) and again.chunks[0].start == 0 and not again.chunks[0].score
        harness.drain()
        assert [one.token_id for one in harness.clients[0].scores] == [2] * 11
        assert harness.clients[0].tokens == outputs_alone(harness.clients[0].request, 60)[0]

    def test_cached_content_is_not_trusted_any_more(self) -> None:
        harness = Harness(ROOMY)
        harness.add(request("a", [0] * 9, output=1))
        harness.drain()
        harness.add(request("b", [1] * 9, output=3))
        harness.step(fail="memory")
        assert inside.cached_blocks(harness.scheduler) == 0


# -- plans ------------------------------------------------------------------------------------------------------


def test_a_strategy_may_wait() -> None:
    class Window(Fixed):
        name = "window"

        def shape(self, view: StepView) -> StepShape | WaitUntil:
            return StepShape(8, view.max_rows) if view.now >= 2 else WaitUntil(2.0)

    scheduler = Scheduler(SchedulerConfig(ROOMY.capacity, Window(), Fcfs()))
    scheduler.add(request("a"), 0.0)
    assert scheduler.plan(0.5) == WaitUntil(2.0)
    assert scheduler.stats().step == 0
    assert isinstance(scheduler.plan(2.0), BatchPlan)


def test_nothing_to_do_is_no_plan() -> None:
    harness = Harness(ROOMY)
    assert harness.scheduler.idle
    assert harness.plan() is None
    assert harness.scheduler.stats().step == 0


def test_a_result_belongs_to_its_step() -> None:
    scheduler = ROOMY.scheduler()
    scheduler.add(request("a"), 0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    with pytest.raises(RuntimeError, match="step 3 was committed for step 0"):
        scheduler.commit(plan, StepResult(3, (), 0.0), 0.0)


def test_the_queue_tells_what_it_stands_still_for() -> None:
    harness = Harness(Setup(num_blocks=8, block_size=2, max_rows=2, token_budget=4, prefix_caching=False))
    harness.add(request("a", [0] * 3, output=4), request("b", [1] * 6, output=1), request("c", [2] * 6, output=1))
    harness.drain()
    first, second, third = (client.ended.timings.queued_by for client in harness.clients)
    assert sum(first.values()) == sum(second.values()) == 0
    assert third["rows"] > 0 or third["blocks"] > 0
