"""Latencies that were simulated with steps at an end of what is uncertain are taken to their own end."""

from __future__ import annotations

import pytest

from inflight.metrics.observation import Observation, Targets
from inflight.models.known import known_model
from inflight.simulate.efficiency import Case, latency_spread, spread
from inflight.simulate.hardware import find_gpu
from inflight.simulate.roofline import Roofline
from inflight.simulate.widening import UNCHANGED, Widening, widening


def model(case: Case) -> Roofline:
    return Roofline(known_model("llama-3-8b"), find_gpu("a100-80"), 1, case=case)


def test_factors_leave_steps_and_latencies_at_their_own_ends() -> None:
    slow, fast = widening(model("low")), widening(model("high"))
    assert widening(model("typical")) is UNCHANGED
    for latency in ("ttft", "tpot"):
        of_steps = spread("a100-80", False, "low")
        assert (
            of_steps * getattr(slow, latency) >= latency_spread(latency, "low") * (1 - 1e-9)
            and getattr(slow, latency) >= 1
        )
        of_steps = spread("a100-80", False, "high")
        assert (
            of_steps * getattr(fast, latency) <= latency_spread(latency, "high") * (1 + 1e-9)
            and getattr(fast, latency) <= 1
        )


def answered(**more: object) -> Observation:
    times = (2.0, 2.1, 2.3)
    return Observation(
        "", 1.0, 2.3, first_token=2.0, last_token=2.3, token_times=times, output_tokens=3, longest_output=3, **more
    )


def test_other_latencies_follow_from_ttft_and_tpot() -> None:
    one, by = answered(targets=Targets(e2e=2.5)), Widening(2.0, 3.0)
    found = by.of_observation(one)
    assert found.ttft == pytest.approx(2.0) and found.tpot == pytest.approx(3 * 0.15)
    assert found.gaps == pytest.approx([0.3, 0.6])
    assert found.e2e == pytest.approx(2.0 + 2 * 3 * 0.15), "a first token, and two after it"
    assert one.attained and not found.attained
    assert found.ended == one.ended, "rates are those of the run"
    assert UNCHANGED.of_observation(one) is one


def test_a_vector_comes_whole() -> None:
    one = Observation("", 1.0, 1.5)
    assert Widening(2.0, 3.0).of_observation(one).e2e == pytest.approx(1.0)


def test_what_was_refused_stays() -> None:
    one = Observation("", 1.0, 1.5, outcome="rejected")
    assert Widening(2.0, 3.0).of_observation(one) is one
