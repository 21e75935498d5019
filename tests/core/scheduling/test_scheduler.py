"""The scheduler: validation, sharing, ends, aborts and failed steps. `test_state_machine` has them in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Fixed, StepShape, StepView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Finish
from inflight.core.types.plan import BatchPlan, Sampled, StepResult, WaitUntil

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, LaneSetup, Setup
from ..tiers import RememberingTier, identity

ROOMY = Setup(num_blocks=40, block_size=4, max_rows=4, token_budget=16, max_model_len=64)


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
        ({"program": "p" * 513}, "program_id has 513 characters, more than 512"),
        ({"session": "a\x07b"}, "Character 2 of session_id is U+0007, which cannot be printed"),
    ],
)
def test_refusals_name_the_number(fields: dict[str, Any], words: str) -> None:
    assert words in Harness(ROOMY).refuse(request("r", **fields))


def test_a_prompt_that_can_never_fit_is_refused_and_one_that_just_fits_is_not() -> None:
    harness = Harness(Setup(num_blocks=3, block_size=4, token_budget=16))
    assert "needs 4 KV blocks of 4 tokens, but there are 3" in harness.refuse(request("r", [0] * 13))
    harness.add(request("r", [0] * 12, output=5))


@pytest.mark.parametrize("token_id", [-1, 8])
def test_end_tokens_are_in_the_vocabulary(token_id: int) -> None:
    """Banning another would break every step with the request in it."""
    with pytest.raises(ValueError, match=rf"names \[{token_id}\], but the vocabulary has 8 tokens"):
        Scheduler(SchedulerConfig(Setup().capacity, Chunked(4), Fcfs(), end_token_ids=frozenset({7, token_id})))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"session_eviction": True, "sink": RememberingTier(4)}, "sink, session_eviction"),
        ({"identity": identity, "sources": [RememberingTier(4)]}, "sources, identity"),
        ({"kv_event_queue": KVEventQueue()}, "kv_event_queue"),
        ({"host_is_tier": True, "capacity": Setup(host_blocks=2).capacity}, "capacity.host_blocks, host_is_tier"),
    ],
)
def test_distinct_prompts_leave_no_content_to_read(fields: dict[str, Any], names: str) -> None:
    rest = {"capacity": Setup().capacity, "strategy": Chunked(4), "lanes": Fcfs(), **fields}
    SchedulerConfig(**rest)
    with pytest.raises(ValueError, match=rf"is kept, but {names} would read it; set distinct_prompts to False"):
        SchedulerConfig(**rest, distinct_prompts=True)


def test_an_id_is_refused_while_it_is_alive_and_taken_again_afterwards() -> None:
    harness = Harness(ROOMY, request("a", output=1))
    assert "'a' is running already" in harness.refuse(request("a"))
    harness.drain()
    harness.add(request("a"))


# -- sharing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("caching", [True, False])
def test_prompts_share_the_whole_blocks_before_their_last_token(tokens: int, caching: bool) -> None:
    harness = Harness(replace(ROOMY, token_budget=40, prefix_caching=caching))
    harness.add(*(request(name, [0] * tokens, output=6) for name in "ab"))
    first, second = harness.plan().chunks
    shared = (tokens - 1) // 4 if caching else 0
    assert (first.start, second.start) == (0, 4 * shared), "in the very step that computes them"
    assert first.new_blocks[:shared] == second.new_blocks[:shared]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_compute_their_prompt_once(caching: bool, temperature: float) -> None:
    harness = Harness(replace(ROOMY, token_budget=6, prefix_caching=caching))
    harness.add(request("a", [0] * 9, output=5, n=3, temperature=temperature))
    harness.step()
    assert inside.held_back(harness.scheduler) == {1, 2}
    chunks = [(chunk.sequence_id, chunk.start, chunk.length) for chunk in harness.plan().chunks]
    assert chunks == [(0, 6, 3), (1, 8, 1), (2, 8, 1)]
    harness.drain()
    assert (harness.clients[0].tokens[0] == harness.clients[0].tokens[1]) == (temperature == 0)


def test_salts_share_nothing() -> None:
    harness = Harness(ROOMY, *(request(salt, [0] * 8, cache_salt=salt, output=1) for salt in ("a", "b")))
    assert [chunk.length for chunk in harness.plan().chunks] == [8, 8]


# -- ends -------------------------------------------------------------------------------------------------------


def test_log_probabilities_pass_through_and_are_cut_with_the_tokens() -> None:
    scheduler = ROOMY.scheduler()
    scheduler.add(request("a", output=1), 0.0)
    result = StepResult(0, (Sampled(0, (5, 6), ("of 5", "of 6")),), 0.0)
    tokens, _ = scheduler.commit(scheduler.plan(0.0), result, 0.0)
    assert (tokens.token_ids, tokens.logprobs) == ((5,), ("of 5",))


def test_a_sample_that_was_aborted_late_times_the_request() -> None:
    """The last to end counts, not the last that got a token."""
    harness = Harness(Setup(num_blocks=40, max_rows=1, token_budget=16), request("a", output=3, n=2))
    harness.steps(3)
    harness.now += 5
    (end,) = harness.abort("a")
    assert [finish.reason for finish in end.finishes] == ["length", "abort"]
    assert (end.timings.total_ms, end.timings.ttft_ms) == (pytest.approx(5750), None)


def test_the_models_length_ends_a_request_without_max_tokens() -> None:
    harness = Harness(Setup(num_blocks=40, max_model_len=9, token_budget=16))
    harness.serve(request("a", [0] * 3, output=None), request("b", [0] * 8, output=None))
    assert [len(client.tokens[0]) for client in harness.clients] == [6, 1] and harness.reasons == ["length"] * 2


def test_one_that_outgrows_memory_ends_alone() -> None:
    harness = Harness(Setup(num_blocks=4, block_size=2, max_rows=2, token_budget=8, prefix_caching=False))
    harness.serve(request("big", [0] * 5, output=None), request("full", [1] * 8, output=None), request("small", [2]))
    (big,), (full,), (small,) = (client.ended.finishes for client in harness.clients)
    assert big.reason == "length" and "After 4 output tokens" in big.detail and "5 KV blocks" in big.detail
    assert full.reason == "length" and "After 1 output token" in full.detail
    assert small == Finish("length")


# -- aborts and failed steps ------------------------------------------------------------------------------------


def test_the_prefix_of_an_aborted_request_stays_findable() -> None:
    harness = Harness(ROOMY, request("a", [0] * 9, output=5))
    harness.step()
    harness.abort("a")
    assert harness.serve(request("b", [0] * 9, output=2)) == [8]


def test_the_requests_of_a_failed_step_end_and_others_go_on() -> None:
    harness = Harness(Setup(num_blocks=20, max_rows=1, token_budget=8))
    harness.add(request("a", output=5, n=2), request("b", output=2))
    harness.step()
    harness.step(fail=True)
    assert harness.clients[0].ended.finishes == (Finish("error", detail="Step 1 broke."),) * 2
    harness.drain()
    assert harness.reasons == ["error", "length"]


@pytest.mark.parametrize("fail", [True, "memory"])
def test_content_that_was_cached_before_a_failed_step_is_not_trusted(fail: Any) -> None:
    harness = Harness(ROOMY)
    harness.serve(request("a", [0] * 9, output=1))
    harness.add(request("b", [1] * 9))
    harness.step(fail=fail)
    assert harness.serve(request("c", [0] * 9, output=3), request("d", [1] * 9, output=3)) == [0, 0]


def test_later_steps_that_build_on_a_failed_one_end_with_it() -> None:
    """At depth 2 a newcomer may share blocks that the failed step should have written."""
    harness = Harness(Setup(num_blocks=20, max_rows=2, token_budget=4, depth=2))
    harness.add(request("a", [0] * 4, output=3), request("b", [0] * 5, output=3))
    harness.plan(fail=True)
    assert harness.plan().chunks[1].start == 4
    harness.commit()
    assert harness.reasons == ["error", "error"]


LONG = Setup(num_blocks=40, max_model_len=60, max_rows=3, token_budget=16)


@pytest.mark.parametrize(
    ("running", "newcomer", "steps", "reasons"),
    [
        (2, [1] * 9, 0, ["length", "length", "error"]),  # the one that it was the first step of
        (1, [1] * 30, 1, ["length", "error"]),  # the one whose prompt goes on
        (2, None, 0, ["error", "error"]),  # all, where all decode
    ],
)
def test_a_step_without_memory_ends_what_needed_more(
    running: int, newcomer: list[int] | None, steps: int, reasons: list[str]
) -> None:
    harness = Harness(LONG, *(request(f"{n}", [3] * (3 + 4 * n), output=6) for n in range(running)))
    harness.step()
    harness.add(*([] if newcomer is None else [request("new", newcomer, output=6)]))
    harness.steps(steps)
    harness.step(fail="memory")
    ended = [client.ended for client in harness.clients if client.ended]
    assert {end.finishes[0].detail for end in ended} == {f"Step {1 + steps} broke."}
    harness.drain()
    assert harness.reasons == reasons


def test_steps_in_flight_behind_one_without_memory_count_for_nothing() -> None:
    """At depth 2 a decode is in the next step, too, whose token is drawn from what was never computed."""
    harness = Harness(replace(LONG, depth=2), request("a", output=8), request("b", [3] * 7, output=8))
    harness.step()
    harness.add(request("new", [1] * 5, output=6))
    harness.plan(fail="memory")
    harness.commit()
    assert {chunk.sequence_id for chunk in harness.plan().chunks} >= {0, 1}
    harness.commit()
    assert harness.reasons == ["error"] and len(inside.running(harness.scheduler)) >= 2, "they hold their rows"
    before = [list(client.tokens[0]) for client in harness.clients[:2]]
    harness.commit()
    assert [client.tokens[0] for client in harness.clients[:2]] == before
    assert not inside.running(harness.scheduler)


@pytest.mark.parametrize("behind", ["memory", True])
def test_a_step_behind_one_without_memory_that_fails_too(behind: str | bool) -> None:
    """For lack of memory again: nothing of it counted, and no other request ends. For another reason: all of it do."""
    harness = Harness(replace(LONG, depth=2), request("a", output=8), request("b", [3] * 7, output=8))
    harness.step()
    harness.add(request("new", [1] * 5, output=6))
    harness.plan(fail="memory")
    harness.commit()
    harness.plan(fail=behind)
    harness.commit()
    assert harness.reasons == ["error"]
    harness.drain()
    assert harness.reasons == (["length", "length", "error"] if behind == "memory" else ["error"] * 3)


def test_scores_that_several_lost_steps_were_to_yield_are_planned_again() -> None:
    """At depth 2 the first step of the lost ones takes its scores back while the other is still in flight."""
    harness = Harness(replace(LONG, token_budget=8, depth=2, lanes=(LaneSetup(settings=(("chunk", 2),)),)))
    harness.add(request("a", [2] * 12, output=2, prompt_logprobs=1))
    harness.plan()
    harness.add(request("new", [1] * 9, output=2))
    harness.plan(fail="memory")
    harness.commit()
    harness.plan()
    assert [one.chunks[0].score for one in harness.plans] == [range(2), range(2, 4), range(4, 6)]
    harness.commit()
    assert harness.reasons == ["error"]
    harness.commit()
    again = harness.plan().chunks[0]
    assert again.start == 0 and not again.score


# -- plans ------------------------------------------------------------------------------------------------------


def test_a_strategy_may_wait() -> None:
    class Window(Fixed):
        name = "window"

        def shape(self, view: StepView) -> StepShape | WaitUntil:
            return StepShape(8, view.max_rows) if view.now >= 2 else WaitUntil(2.0)

    scheduler = Scheduler(SchedulerConfig(ROOMY.capacity, Window(), Fcfs()))
    scheduler.add(request("a"), 0.0)
    assert scheduler.plan(0.5) == WaitUntil(2.0) and scheduler.stats().step == 0
    assert isinstance(scheduler.plan(2.0), BatchPlan)


def test_nothing_to_do_is_no_plan() -> None:
    assert Harness(ROOMY).plan() is None


def test_a_result_belongs_to_its_step() -> None:
    scheduler = ROOMY.scheduler()
    scheduler.add(request("a"), 0.0)
    with pytest.raises(RuntimeError, match="step 3 was committed for step 0"):
        scheduler.commit(scheduler.plan(0.0), StepResult(3, (), 0.0), 0.0)
