"""The timings: every second of a sequence is in one account, and the accounts sum to the whole."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.request_timings import OTHER, QueueWaitMeter, RequestTimings, Untimed
from inflight.core.types.timings import QUEUE_REASONS, Timings


def life(*verbs: tuple[str, Any], arrival: float = 0.0, output: int = 3) -> Timings:
    """Return the timings of a prompt of ten tokens. verbs: of its timings, or "charge" of the queue, with arguments."""
    meter, timings = QueueWaitMeter(), RequestTimings()
    for verb, *given in verbs:
        if verb == "charge":
            meter.charge(*given)
        elif verb == "cached":
            timings.cached_tokens = given[0]
        else:
            getattr(timings, verb)(*given, *([meter] if verb in ("arrive", "start", "end") else []))
    return timings.summary(arrival, 10, output, "interactive")


def test_a_life_without_trouble() -> None:
    summary = life(
        ("arrive", 0.0, 1.0),  # the engine took it up after a second
        *(("charge", 2.0, "rows", "batch"), ("charge", 5.0, "budget", "interactive")),
        *(("start", 6.0), ("token", 8.0), ("token", 9.0), ("token", 12.0), ("end", 12.0)),
    )
    assert summary.queued_by == {**dict.fromkeys(QUEUE_REASONS, 0), "rows": 3000, "budget": 1000}
    assert summary.queued_behind == {"batch": 3000, "interactive": 1000}
    assert (summary.queue_ms, summary.prefill_ms, summary.decode_ms) == (4000, 2000, 4000)
    assert (summary.preempted_ms, summary.other_ms, summary.total_ms) == (0, 2000, 12_000)
    assert summary.ttft_ms == 8000
    assert (summary.prompt_tokens_per_s, summary.output_tokens_per_s) == (pytest.approx(5), pytest.approx(0.5))


def test_what_a_grammar_took_is_of_the_time_before_the_queue() -> None:
    compiled = ("add_compile_time", 3.0, "batch")
    summary = life(("arrive", 0.0, 4.0), compiled, ("start", 4.0), ("token", 6.0), ("end", 6.0))
    assert summary.queued_by["grammar"] == summary.queue_ms == summary.queued_behind["batch"] == 3000
    assert (summary.other_ms, summary.total_ms, summary.ttft_ms) == (1000, 6000, 6000)


def test_preempted_lasts_until_the_next_token() -> None:
    begin = ("arrive", 0.0, 0.0), ("start", 0.0), ("token", 1.0), ("preempt", 3.0)
    summary = life(*begin, ("charge", 3.0, "blocks", "interactive"), ("start", 7.0), ("token", 8.0), ("end", 8.0))
    assert (summary.decode_ms, summary.preempted_ms, summary.queue_ms, summary.total_ms) == (2000, 5000, 0, 8000)


def test_one_that_never_started_was_only_waiting() -> None:
    charged = ("charge", 0.0, "blocks", "interactive")
    summary = life(charged, ("arrive", 2.0, 3.0), ("end", 7.0), arrival=2.0, output=0)
    assert (summary.queue_ms, summary.other_ms, summary.total_ms) == (4000, 1000, 5000)
    assert summary.queued_by["blocks"] == summary.queued_behind["interactive"] == 4000
    assert (summary.ttft_ms, summary.prompt_tokens_per_s, summary.output_tokens_per_s) == (None, None, None)


def test_cached_tokens_are_not_prompt_speed() -> None:
    summary = life(("arrive", 0.0, 0.0), ("start", 0.0), ("cached", 8), ("token", 2.0), ("end", 2.0), output=1)
    assert (summary.prompt_tokens_per_s, summary.output_tokens_per_s) == (pytest.approx(1), None)


def test_json_is_rounded() -> None:
    written = life(("arrive", 0.0, 1 / 3), ("charge", 1 / 3, "blocks", "batch"), ("end", 2 / 3)).to_json()
    assert (written["total_ms"], written["other_ms"]) == (666.667, 333.333)
    assert written["queued_by"] == {**dict.fromkeys(QUEUE_REASONS, 0.0), "blocks": 333.333}
    assert written["queued_behind"] == {"batch": 333.333}


def test_time_without_a_reason_is_behind_no_lane() -> None:
    charged = ("charge", 1.0, OTHER, "batch"), ("charge", 2.0, "rows", "batch")
    summary = life(("arrive", 0.0, 0.0), *charged, ("start", 2.5), ("end", 2.5), output=0)
    assert (summary.queued_behind, summary.other_ms) == ({"batch": 500}, 2000)


def test_untimed_accounts_have_tokens_alone() -> None:
    timings, meter = Untimed(), QueueWaitMeter()
    timings.arrive(0.0, 1.0, meter)
    timings.start(2.0, meter)
    timings.cached_tokens = 8
    timings.token(3.0)
    timings.preempt(4.0)
    timings.end(5.0, meter)
    summary = timings.summary(0.0, 10, 3, "batch")
    assert timings.ended == 5.0
    assert (summary.total_ms, summary.ttft_ms, summary.cached_tokens, summary.lane) == (0.0, None, 8, "batch")
