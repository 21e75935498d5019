"""Steps: what the plans held, padding included."""

from __future__ import annotations

import pytest
from core.builders import request
from core.harness import Setup

from .driven import STEP, Driven


@pytest.mark.parametrize("strategy", ["chunked", "static"])
def test_token_slots_are_those_of_the_plans_padding_included(strategy: str) -> None:
    driven = Driven(Setup(num_blocks=40, block_size=4, max_rows=3, max_model_len=64, strategy=strategy, batch_size=3))
    driven.add(request("a", [0] * 9, output=2), request("b", [1] * 4, output=7), request("c", [2] * 6, output=4))
    driven.drain()
    page, plans = driven.page(), driven.plans
    padding = sum(sum(plan.padding) for plan in plans)
    assert bool(padding) == (strategy == "static")
    assert page.get("inflight_token_slots_total", kind="padding") == padding
    decodes = sum(chunk.length == 1 for plan in plans for chunk in plan.chunks)
    assert page.get("inflight_token_slots_total", kind="decode") == decodes
    assert page.total("inflight_token_slots_total") == sum(plan.tokens for plan in plans)
    assert page.histogram("inflight_step_seconds") == (len(plans), STEP * len(plans))
    assert page.histogram("inflight_step_tokens") == (len(plans), sum(plan.tokens for plan in plans))
    assert page.histogram("inflight_step_rows") == (len(plans), sum(len(plan.chunks) for plan in plans))


def test_answers_of_a_static_batch_come_at_its_end_and_all_at_once() -> None:
    driven = Driven(Setup(num_blocks=40, block_size=4, max_rows=2, max_model_len=64, strategy="static", batch_size=2))
    driven.add(request("short", output=2), request("long", output=5))
    driven.drain()
    page, end = driven.page(), driven.clock.now()
    assert page.histogram("inflight_time_to_first_token_seconds", lane="interactive") == (2, 2 * end)
    assert page.histogram("inflight_e2e_latency_seconds", lane="interactive") == (2, pytest.approx(2 * end))
    assert page.histogram("inflight_inter_token_latency_seconds", lane="interactive") == (1 + 4, 0)
