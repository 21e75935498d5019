"""The timings: every second of a sequence is in one account, and the accounts sum to the whole."""

from __future__ import annotations

import pytest

from inflight.core.request_timings import OTHER, QueueWaitMeter, RequestTimings
from inflight.core.types.timings import QUEUE_REASONS, Timings


def ended(timings: RequestTimings, arrival: float = 0.0, prompt: int = 10, output: int = 3) -> Timings:
    return timings.summary(arrival, prompt, output, "interactive")


def test_a_life_without_trouble() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 1.0, clock)  # the engine took it up after a second
    clock.charge(2.0, "rows", "batch")
    clock.charge(5.0, "budget", "interactive")
    timings.start(6.0, clock)
    timings.token(8.0)
    timings.token(9.0)
    timings.token(12.0)
    timings.end(12.0, clock)
    summary = ended(timings)
    assert summary.queued_by == {
        "rows": 3000,
        "blocks": 0,
        "budget": 1000,
        "share": 0,
        "window": 0,
        "grammar": 0,
        "adapter": 0,
        "kv": 0,
    }
    assert summary.queued_behind == {"batch": 3000, "interactive": 1000}
    assert (summary.queue_ms, summary.prefill_ms, summary.decode_ms) == (4000, 2000, 4000)
    assert (summary.preempted_ms, summary.other_ms, summary.total_ms) == (0, 2000, 12_000)
    assert summary.ttft_ms == 8000
    assert summary.prompt_tokens_per_s == pytest.approx(5)
    assert summary.output_tokens_per_s == pytest.approx(0.5)


def test_what_a_grammar_took_is_of_the_time_before_the_queue() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 4.0, clock)
    timings.add_compile_time(3.0, "batch")
    timings.start(4.0, clock)
    timings.token(6.0)
    timings.end(6.0, clock)
    summary = ended(timings)
    assert summary.queued_by["grammar"] == summary.queue_ms == summary.queued_behind["batch"] == 3000
    assert (summary.other_ms, summary.total_ms, summary.ttft_ms) == (1000, 6000, 6000)


def test_preempted_lasts_until_the_next_token() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 0.0, clock)
    timings.start(0.0, clock)
    timings.token(1.0)
    timings.preempt(3.0)
    clock.charge(3.0, "blocks", "interactive")
    timings.start(7.0, clock)
    timings.token(8.0)
    timings.end(8.0, clock)
    summary = ended(timings)
    assert (summary.decode_ms, summary.preempted_ms, summary.queue_ms, summary.total_ms) == (2000, 5000, 0, 8000)
    assert timings.ended == 8.0


def test_one_that_never_started_was_only_waiting() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    clock.charge(0.0, "blocks", "interactive")
    timings.arrive(2.0, 3.0, clock)
    timings.end(7.0, clock)
    summary = ended(timings, arrival=2.0, output=0)
    assert (summary.queue_ms, summary.other_ms, summary.total_ms) == (4000, 1000, 5000)
    assert summary.queued_by["blocks"] == summary.queued_behind["interactive"] == 4000
    assert (summary.ttft_ms, summary.prompt_tokens_per_s, summary.output_tokens_per_s) == (None, None, None)


def test_cached_tokens_are_not_prompt_speed() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 0.0, clock)
    timings.start(0.0, clock)
    timings.cached_tokens = 8
    timings.token(2.0)
    timings.end(2.0, clock)
    summary = ended(timings, output=1)
    assert summary.prompt_tokens_per_s == pytest.approx(1)
    assert summary.output_tokens_per_s is None


def test_json_is_rounded() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 1 / 3, clock)
    clock.charge(1 / 3, "blocks", "batch")
    timings.end(2 / 3, clock)
    written = ended(timings).to_json()
    assert (written["total_ms"], written["other_ms"]) == (666.667, 333.333)
    assert written["queued_by"] == {**dict.fromkeys(QUEUE_REASONS, 0.0), "blocks": 333.333}
    assert written["queued_behind"] == {"batch": 333.333}


def test_time_without_a_reason_is_behind_no_lane() -> None:
    clock, timings = QueueWaitMeter(), RequestTimings()
    timings.arrive(0.0, 0.0, clock)
    clock.charge(1.0, OTHER, "batch")
    clock.charge(2.0, "rows", "batch")
    timings.start(2.5, clock)
    timings.end(2.5, clock)
    summary = ended(timings, output=0)
    assert (summary.queued_behind, summary.other_ms) == ({"batch": 500}, 2000)
