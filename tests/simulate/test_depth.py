"""Engines on GPUs are simulated with two steps in flight: a plan is made while the one before it is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.records.schema import read_records
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Pool, Setup, Simulation, simulate
from inflight.workload.workload import Entry, Workload

from .setups import chat, pool

STEP = 0.01


class Even:
    name = "every step takes as long"

    def seconds(self, held: Features) -> float:
        return STEP

    def extrapolates(self, held: Features) -> str | None:
        return None


def on(device: str, of: Pool | None = None) -> Pool:
    of = of or pool(SchedulingSettings().ending_early(0), Even())
    return replace(of, settings=replace(of.settings, device=device))


def ran(device: str, *entries: Entry) -> Simulation:
    return simulate(Workload(entries, "a few"), Setup(on(device)))


def test_who_comes_within_a_step_waits_for_the_one_that_is_planned_too() -> None:
    """The first answer takes steps at 0, 10, 20, … ms; the second request comes 5 ms after one has begun."""
    first, second = Entry(0.0, 20, 50), Entry(0.025, 20, 10)
    waited = {}
    for device in ("cpu", "cuda"):
        before, behind = ran(device, first, second).observations
        assert before.first_token is not None and before.ended is not None and behind.first_token is not None
        assert (before.first_token, before.ended) == pytest.approx((STEP, 50 * STEP)), "which nothing holds up"
        waited[device] = behind.first_token - 0.025
    assert waited == pytest.approx({"cpu": 0.015, "cuda": 0.025})


def test_an_answer_alone_takes_as_long() -> None:
    """Its tokens follow one another step by step, whoever plans ahead."""
    cpu, gpu = ran("cpu", Entry(0.0, 100, 40)), ran("cuda:0", Entry(0.0, 100, 40))
    assert [one.ended for one in gpu.observations] == pytest.approx([one.ended for one in cpu.observations])
    assert [one.token_times for one in gpu.observations] == [one.token_times for one in cpu.observations]


@pytest.mark.parametrize("strategy", ["chunked", "adaptive", "static"])
def test_its_record_replays(tmp_path: Path, strategy: str) -> None:
    scheduling = SchedulingSettings.of(strategy=strategy, policy="sjf", preemption="recompute")
    setup = Setup(on("cuda", pool(scheduling, num_blocks=30)))
    done = simulate(chat(40), setup, tmp_path / "record.jsonl")
    assert simulate(chat(40), setup).observations == done.observations
    again, outcome = replay(list(read_records(tmp_path / "record.jsonl")))
    assert outcome.difference is None and outcome.steps == done.steps and again.steps
