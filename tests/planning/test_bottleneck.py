"""The bottleneck comes with ways to relieve it that the machine leaves open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.models.known import known_model
from inflight.planning.bottleneck import bottleneck
from inflight.planning.candidate import Candidate
from inflight.planning.demand import traffic_of
from inflight.planning.machine import Hardware, Machine
from inflight.planning.meter import Spent
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.simulation import Trial, try_out
from inflight.planning.sizing import candidate_for
from inflight.simulate.hardware import find_gpu

from .builders import Linear, drawn, machine


def looked_at(on: Machine) -> tuple[Candidate, Trial]:
    demand = drawn(1.0)
    question = Question(machines=(on,), demand=demand)
    candidate = candidate_for(question, traffic_of(demand), on, Overrides())
    return candidate, try_out(on, candidate.config, demand.workload(1.0, 40, 0))


def relief(on: Machine, bound: str) -> str:
    """With a step whose time goes into nothing else."""
    candidate, trial = looked_at(on)
    trial = replace(trial, spent=Spent(1.0, 0.01, {("linear", bound): 1.0}))
    found = bottleneck(candidate, trial, traffic_of(drawn(1.0)))
    assert found.bound == bound
    return found.relief


def small(gpu: str, weights: str = "bf16") -> Machine:
    return Hardware(model=known_model("llama-3-8b"), gpu=find_gpu(gpu), weights=weights).machine(1, 200)  # type: ignore[arg-type]


def test_what_a_gpu_cannot_compute_is_not_advised() -> None:
    assert "--weights int8, whose" in relief(small("a100-80"), "compute")
    assert "--weights fp8 or int8, whose" in relief(small("h100"), "compute")


def test_what_was_done_is_not_advised_again() -> None:
    assert "halves what each step reads" in relief(small("a100-80"), "bandwidth")
    assert "--weights" not in relief(small("h100", "int8"), "bandwidth")


@pytest.mark.parametrize("bound", ["link", "launch"])
def test_every_bound_has_a_relief(bound: str) -> None:
    assert relief(small("h100"), bound)


def test_a_box_without_gpus_is_advised_other_processors() -> None:
    box = small("epyc-9654")
    for bound in ("bandwidth", "compute", "launch"):
        assert "GPU" not in relief(box, bound)
    assert "processors with more bandwidth" in relief(box, "bandwidth")


def test_a_calibrated_machine_does_not_separate_its_parts() -> None:
    candidate, trial = looked_at(machine())
    found = bottleneck(candidate, trial, traffic_of(drawn(1.0)))
    assert (found.bound, found.relief) == ("steps", "")


def test_the_step_is_shared_out_whole() -> None:
    _, trial = looked_at(small("h100"))
    assert sum(trial.spent.by_kind.values()) == pytest.approx(1.0)


def test_memory_is_the_bottleneck_only_where_a_larger_batch_would_help() -> None:
    """Both hold few sequences and are full of them; the second one's steps are all arithmetic."""
    for token, bound in ((1e-5, "KV"), (1.0, "steps")):
        on = machine(blocks=64, cases=())
        on = replace(on, model=Linear(0.1, token))
        candidate, trial = looked_at(on)
        full = replace(trial, spent=Spent(on.sequences(150), 0.1, {}))
        assert bottleneck(candidate, full, traffic_of(drawn(1.0))).bound == bound
