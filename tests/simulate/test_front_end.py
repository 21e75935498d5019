"""The front end of a simulated engine, and what engines cost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.engine_costs import EngineUnknown, all_engine_costs, engine_costs
from inflight.simulate.front_end import FrontEnd
from inflight.simulate.simulation import SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import pool


def test_requests_that_come_together_are_ready_when_all_are_done() -> None:
    front_end = FrontEnd(0.01, 0.02)
    front_end.take([(0, 0.0), (1, 0.0)], 0.0)
    assert front_end.next_time() == pytest.approx(0.04)
    assert front_end.pop() == (0, 0.0) and front_end.pop() == (1, 0.0)
    assert front_end.next_time() == math.inf
    front_end.take([(2, 0.9)], 1.0)
    assert front_end.next_time() == pytest.approx(1.03)
    assert FrontEnd(0, 0).free and not front_end.free


def test_a_request_that_sits_out_its_latency_is_no_work_for_others() -> None:
    front_end = FrontEnd(0.01, 1.0)
    front_end.take([(0, 0.0)], 0.0)
    front_end.take([(1, 0.5)], 0.5)
    assert front_end.pop() == (0, 0.0)
    assert front_end.next_time() == pytest.approx(1.51)
    front_end.take([(2, 0.505)], 0.505)
    front_end.pop()
    assert front_end.next_time() == pytest.approx(1.525), "two share the processor"


def test_engines_share_requests_evenly_among_their_front_ends() -> None:
    front_end = FrontEnd(0.01, 0.0)
    front_end.take([(index, 0.0) for index in range(5)], 0.0, engines=4)
    assert front_end.next_time() == pytest.approx(0.02), "one of the four has two"


@pytest.mark.parametrize(("max_local_tokens", "front_ends"), [(0, 1), (10_000, 4)])
def test_decode_engines_with_prompts_of_their_own_have_front_ends(max_local_tokens: int, front_ends: int) -> None:
    at_once = Workload((Entry(0.0, 40, 2),) * 40, "at once")
    costs = replace(engine_costs("vllm-sync"), request=10.0, request_latency=0.0)
    mode = DisaggMode(max_local_tokens=max_local_tokens)
    setup = SimulationSetup(
        pool(max_rows=40), pool(max_rows=40, replicas=3), Link(1.0, 1000.0, 0.0), disagg_mode=mode, front_end=costs
    )
    run = simulate(at_once, setup)
    assert min(one.ttft or 0.0 for one in run.observations) == pytest.approx(40 / front_ends * 10.0, rel=0.05)


def test_engines_cost_what_their_file_says() -> None:
    for costs in all_engine_costs().values():
        assert costs.source and 0.5 < costs.kernels < 2
        assert 0 < costs.step_seconds(1) < costs.step_seconds(256) < 0.05
    own, other = engine_costs(), engine_costs("tensorrt-llm")
    assert [own.padded(rows) for rows in (0, 1, 3, 8, 9, 32, 500, 513)] == [0, 1, 4, 8, 16, 32, 512, 513]
    assert [other.padded(rows) for rows in (0, 3, 129, 512, 600, 3000)] == [0, 4, 256, 512, 1024, 3000]
    sync = engine_costs("vllm-sync")
    assert sync.of_model("gpt_oss").request < sync.of_model("qwen3").request == sync.request
    assert not sync.overlapped and engine_costs("vllm").overlapped
    with pytest.raises(EngineUnknown, match=r"--engine is 'vlm'.*Did you mean vllm"):
        engine_costs("vlm")
