"""Simulated steps are suspended as real ones are: at arrivals, between layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.observation import Observation
from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay
from inflight.simulate.simulation import SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import Affine, pool

# A prompt of 480 tokens takes 8 steps of 74 ms; a short one comes into each.
MIXED = Workload((Entry(0.0, 480, 4), *(Entry(0.03 + 0.08 * index, 8, 2) for index in range(6))), "mixed")


def run(share: float, record: Path | None = None, strategy: str = "chunked") -> list[Observation]:
    scheduling = SchedulingSettings.of(prefill_suspension=share, strategy=strategy)
    return list(simulate(MIXED, SimulationSetup(pool(scheduling, Affine())), record).observations)


@pytest.mark.parametrize("strategy", ["chunked", "continuous"])
def test_short_prompts_have_their_first_tokens_within_the_step_that_they_come_into(strategy: str) -> None:
    plain, suspended = run(0.0, strategy=strategy), run(1.0, strategy=strategy)
    for before, after in zip(plain[1:], suspended[1:], strict=True):
        assert before.ttft is not None and after.ttft is not None
        # The layer that is computed when it comes (480 tokens take 0.49 s in 24 layers), and its own step of 18 ms.
        assert after.ttft < 0.02 + 2 * 0.018 < before.ttft
    # What the long prompt loses are six steps, and steps that have none of the tokens that went before.
    assert suspended[0].ttft == pytest.approx(plain[0].ttft, abs=6 * 2 * 0.018)


def test_a_simulated_record_names_interim_steps_and_replays_alike(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    run(1.0, path)
    records = list(read_records(path))
    interim = [step for step in of_kind(records, "step") if step.plan.within is not None]
    assert len(interim) == 6
    suspended = {step.plan.step: step for step in of_kind(records, "step") if step.suspended_at}
    assert all(step.plan.within in suspended for step in interim)
    _, outcome = replay(records)
    assert outcome.difference is None and outcome.steps == len(of_kind(records, "step"))
