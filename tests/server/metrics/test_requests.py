"""Requests: tokens, ends and latencies on the page are those of the events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.builders import request
from core.harness import LaneSetup, Setup

from inflight.core.types.events import Finish, TokensEvent, finish_reason
from inflight.metrics.definitions import itl, tpot
from inflight.server.metrics.page import Metrics
from inflight.server.metrics.requests import MAX_PRIORITIES, OTHER_PRIORITIES

from .driven import ROOMY, STEP, Driven, Page, summed

PRIORITIES = replace(ROOMY, lanes=(LaneSetup("interactive", "priority"),))


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_ends_and_latencies_are_those_of_the_events(depth: int) -> None:
    driven = Driven(depth=depth)
    driven.add(request("a", [0] * 11, output=4), request("b", [1] * 3, output=6), request("c", [2] * 5, output=1))
    driven.drain()
    page, times = driven.page(), driven.token_times
    assert page.get("inflight_requests_accepted_total", lane="interactive") == 3
    assert page.get("inflight_requests_finished_total", lane="interactive", reason="length") == 3
    assert page.get("inflight_prompt_tokens_total", lane="interactive") == 11 + 3 + 5
    assert page.get("inflight_output_tokens_total", lane="interactive") == 4 + 6 + 1
    lane = {"lane": "interactive"}
    first = [one[0] for one in times.values()]
    assert page.histogram("inflight_time_to_first_token_seconds", **lane) == summed(first)
    gaps = [gap for one in times.values() for gap in itl(one)]
    assert page.histogram("inflight_inter_token_latency_seconds", **lane) == summed(gaps)
    per_token = [tpot(one[0], one[-1], len(one)) for one in times.values()]
    expected = summed(value for value in per_token if value is not None)
    assert page.histogram("inflight_time_per_output_token_seconds", **lane) == pytest.approx(expected)
    last = [one[-1] for one in times.values()]
    assert page.histogram("inflight_e2e_latency_seconds", **lane) == pytest.approx(summed(last))
    queued = [end.timings.queue_ms / 1e3 for end in driven.ends.values()]
    assert page.histogram("inflight_queue_time_seconds", **lane) == pytest.approx(summed(queued))
    assert page.histogram("inflight_request_prompt_tokens", **lane) == (3, 19)
    assert page.histogram("inflight_request_output_tokens", **lane) == (3, 11)


def test_time_counts_from_the_intended_send_time() -> None:
    driven = Driven()
    driven.clock.passed(2.0)
    driven.add(request("late", arrival=0.5, output=1))
    driven.drain()
    late = 2.0 + STEP - 0.5
    for name in ("inflight_time_to_first_token_seconds", "inflight_e2e_latency_seconds"):
        assert driven.page().histogram(name, lane="interactive") == (1, pytest.approx(late))


def test_lanes_are_counted_separately() -> None:
    driven = Driven()
    driven.add(request("a", output=2), request("b", output=3, lane="batch"))
    driven.drain()
    page = driven.page()
    assert page.get("inflight_output_tokens_total", lane="interactive") == 2
    assert page.get("inflight_output_tokens_total", lane="batch") == 3
    assert page.histogram("inflight_inter_token_latency_seconds", lane="batch")[0] == 2


def test_latencies_are_shown_by_priority_too() -> None:
    driven = Driven(PRIORITIES)
    driven.add(request("a", output=2, priority=-1), request("b", output=3), request("c", output=1, priority=-1))
    driven.drain()
    page, ends = driven.page(), driven.ends
    for name in ("inflight_priority_time_to_first_token_seconds", "inflight_priority_e2e_latency_seconds"):
        assert page.histogram(name, priority="-1")[0] == 2 and page.histogram(name, priority="0")[0] == 1
    queued = summed(ends[name].timings.queue_ms / 1e3 for name in ("a", "c"))
    assert page.histogram("inflight_priority_queue_time_seconds", priority="-1") == pytest.approx(queued)


def test_priorities_beyond_the_first_ones_share_a_label() -> None:
    driven = Driven(PRIORITIES)
    for number in range(MAX_PRIORITIES + 3):
        driven.add(request(f"r{number}", output=1, priority=number))
    driven.drain()
    page = driven.page()
    assert page.histogram("inflight_priority_e2e_latency_seconds", priority="0")[0] == 1
    assert page.histogram("inflight_priority_e2e_latency_seconds", priority=OTHER_PRIORITIES)[0] == 3


def test_an_unknown_lane_is_shown_from_its_first_request_on() -> None:
    driven = Driven(Setup(lanes=(LaneSetup("gold"),)))
    assert "gold" not in {
        sample.labels.get("lane")
        for one in driven.page().families
        for sample in one.samples
        if one.name == "inflight_output_tokens"
    }
    driven.add(request("a", output=2, lane="gold"))
    driven.drain()
    assert driven.page().get("inflight_output_tokens_total", lane="gold") == 2


def test_samples_share_a_request_and_have_gaps_of_their_own() -> None:
    driven = Driven()
    driven.add(request("a", [0] * 9, output=3, n=3, temperature=1.0))
    driven.drain()
    page = driven.page()
    assert page.get("inflight_requests_accepted_total", lane="interactive") == 1
    assert page.get("inflight_requests_finished_total", lane="interactive", reason="length") == 1
    assert page.get("inflight_prompt_tokens_total", lane="interactive") == 9
    assert page.get("inflight_output_tokens_total", lane="interactive") == 9
    assert page.histogram("inflight_time_to_first_token_seconds", lane="interactive")[0] == 1
    assert page.histogram("inflight_request_output_tokens", lane="interactive") == (3, 9)
    gaps = [gap for times in driven.token_times.values() for gap in itl(times)]
    assert page.histogram("inflight_inter_token_latency_seconds", lane="interactive") == summed(gaps)


def test_tokens_that_come_together_are_one_gap() -> None:
    driven = Driven()
    one = request("a", output=None, max_tokens=8)
    driven.metrics.observer.added(one, 0.0)
    driven.metrics.observer.events([TokensEvent("a", 0, (1,), None, None)], 1.0)
    driven.metrics.observer.events([TokensEvent("a", 0, (1, 2, 3), None, None)], 1.5)
    page = driven.page()
    assert page.histogram("inflight_inter_token_latency_seconds", lane="interactive") == (1, 0.5)
    assert page.total("inflight_output_tokens_total") == 4


def test_tokens_that_come_with_the_first_take_no_time_behind_it() -> None:
    driven = Driven()
    driven.metrics.observer.added(request("a", output=None, max_tokens=8), 0.0)
    driven.metrics.observer.events([TokensEvent("a", 0, (1, 2, 3), None, None)], 1.0)
    driven.metrics.observer.events([TokensEvent("a", 0, (4, 5), None, Finish("stop"))], 1.5)
    assert driven.page().histogram("inflight_time_per_output_token_seconds", lane="interactive") == (1, 0.25)


def test_who_was_there_before_the_watcher_is_not_counted() -> None:
    driven = Driven()
    late = Metrics("tiny", ROOMY.capacity, version="1.2.3")
    driven.add(request("a", output=4))
    driven.advance()
    driven.loop.add_observer(late.observer)
    driven.drain()
    page = Page(late.render(driven.loop.stats()))
    assert page.total("inflight_output_tokens_total") == 0
    assert page.get("inflight_step_seconds_count") == 3


def test_aborts_are_ends_but_no_latencies() -> None:
    driven = Driven()
    driven.add(request("runs", output=9), request("waits", output=9))
    driven.advance()
    driven.add(request("queued", output=9))
    for name in ("runs", "waits", "queued", "unknown"):
        driven.note(driven.loop.abort(name))
    driven.drain()
    page = driven.page()
    assert page.get("inflight_requests_finished_total", lane="interactive", reason="abort") == 3
    assert page.histogram("inflight_queue_time_seconds", lane="interactive")[0] == 3
    assert page.histogram("inflight_e2e_latency_seconds", lane="interactive") == (0, 0)
    assert page.get("inflight_output_tokens_total", lane="interactive") == 2


def test_a_broken_step_is_counted_with_its_requests() -> None:
    driven = Driven()
    driven.add(request("a", output=5), request("b", output=5))
    driven.executor.fail_next = True
    driven.drain()
    page = driven.page()
    assert page.get("inflight_steps_failed_total") == 1
    assert page.get("inflight_requests_finished_total", lane="interactive", reason="error") == 2
    assert page.get("inflight_prompt_tokens_total", lane="interactive") == 0


def test_the_worst_of_its_samples_is_how_a_request_ended() -> None:
    driven = Driven()
    driven.add(request("a", [0] * 3, output=None, n=2, temperature=1.0, max_tokens=3, ignore_eos=False))
    driven.drain()
    (end,) = driven.ends.values()
    assert finish_reason(end.finishes) == max((one.reason for one in end.finishes), key=["stop", "length"].index)
