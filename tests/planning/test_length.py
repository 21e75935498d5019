"""How long a trial runs: long enough for its batch to fill, read only while it is full."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inflight.metrics.slo import Slo
from inflight.planning.engine_config import EngineConfig
from inflight.planning.simulation import try_out
from inflight.planning.steady import DRAIN, FILL, length

from .builders import drawn, machine


def test_the_batch_fills_before_it_is_read_and_stays_full() -> None:
    run = length(100, 400, math.inf)
    assert run.requests == round(400 + (FILL + DRAIN) * 100)
    assert run.begin * run.requests == pytest.approx(FILL * 100)
    assert (run.end - run.begin) * run.requests == pytest.approx(400)


@given(st.floats(0, 2000), st.floats(1, 3000), st.integers(60, 5000))
@example(0.0, 1.25, 60)
def test_no_run_is_longer_than_the_limit_and_something_is_read(residents: float, measured: float, limit: int) -> None:
    run = length(residents, measured, limit)
    assert run.requests <= limit + 1
    assert 0 < run.begin < run.end <= 1
    assert (run.end - run.begin) * run.requests >= min(measured, limit / 3) * 0.9 - 0.1 * run.requests


def test_an_emptier_beginning_would_look_better() -> None:
    """The whole of a run that is about as long as a request stays, against the part of a longer one that is steady."""
    demand = drawn(prompt="lognormal:20:60", answer="lognormal:200:600")
    config = EngineConfig(max_num_seqs=256, max_num_batched_tokens=512)
    slos = (Slo("itl", 1.0, 0.5),)
    short = try_out(machine(), config, demand.workload(2.0, 60, 0), slos)
    run = length(2.0 * 35, 60, math.inf)
    steady = try_out(machine(), config, demand.workload(2.0, run.requests, 0), slos, measured=(run.begin, run.end))
    assert steady.spent.rows > 1.2 * short.spent.rows
    assert steady.values[slos[0]] > short.values[slos[0]]
