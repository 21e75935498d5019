"""Trials of long prompts in larger blocks than the engine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.slo import parse_slos
from inflight.planning import trial_runner
from inflight.planning.demand import Demand, traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.question import Question
from inflight.planning.simulated_blocks import LOSS, in_simulated_blocks
from inflight.planning.simulation import Trial
from inflight.planning.sizing import candidate_for
from inflight.planning.trial_runner import TrialRunner
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import Sessions, TrafficClass
from inflight.workload.lengths import Fixed, parse_lengths
from tests.planning.builders import drawn, machine

TOLERANCE = 0.05  # between figures of trials in blocks of both sizes


def agents(prompt: int = 6000, added: int = 3000) -> Mixed:
    """Return agents of eight calls each."""
    sessions = Sessions(turns=Fixed(8), think_s=5.0, added=Fixed(added))
    one = TrafficClass(
        name="", share=1.0, input=Fixed(prompt), output=parse_lengths("lognormal:50:200"), sessions=sessions
    )
    return Mixed.of([one], Poisson(0.1))


def roomy(**more: object) -> Machine:
    return machine(blocks=40_000, speed=50, max_model_len=1 << 16, **more)


def blocks_of(one: Machine, demand: Demand, **more: Any) -> Machine:
    return in_simulated_blocks(
        one, traffic_of(demand), EngineConfig(max_num_seqs=16, max_num_batched_tokens=512, **more)
    )


@pytest.fixture(scope="module")
def trials() -> tuple[Trial, Trial]:
    """Return the trial of one load in the engine's blocks, and in larger ones."""
    question = Question(machines=[roomy()], demand=agents(), slos=parse_slos(["ttft=5000(p95)"]))
    runner = TrialRunner(question, traffic_of(question.demand))
    candidate = replace(candidate_for(question, runner.traffic, roomy(), question.overrides), pooled=2)
    larger = runner.run(candidate, 0.8, reads=trial_runner.ROUGHLY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial_runner, "in_simulated_blocks", lambda machine, *others: machine)
        return runner.run(candidate, 0.8, reads=trial_runner.ROUGHLY), larger


def test_larger_blocks_give_the_figures_of_the_engines_own(trials: tuple[Trial, Trial]) -> None:
    own, larger = trials
    assert larger != own
    for name in ("ttft", "e2e"):
        assert larger.percentiles[name][0] == pytest.approx(own.percentiles[name][0], rel=TOLERANCE)
        assert larger.percentiles[name][1] == pytest.approx(own.percentiles[name][1], rel=2 * TOLERANCE)
    assert larger.spent.rows == pytest.approx(own.spent.rows, rel=TOLERANCE)
    computed = 1 - own.cached
    assert computed < 1 - larger.cached < (1 + 2 * LOSS) * computed


def test_blocks_grow_with_the_tokens_that_prompts_compute() -> None:
    sizes = [blocks_of(roomy(), agents(added=one)).block_size for one in (200, 3000, 12_000)]
    assert sizes == [16, 64, 256]


def test_memory_stays_as_large() -> None:
    own, made = roomy(host_blocks=400, block_bytes=3.0), blocks_of(roomy(), agents())
    assert made.blocks * made.block_size == own.blocks * own.block_size
    larger = own.in_larger_blocks(64)
    assert (larger.block_bytes, larger.host_blocks) == (12.0, 100)


@pytest.mark.parametrize("kept", [{"windows": (128, 0)}, {"state_snapshots": 4, "state_blocks": 2}])
def test_blocks_that_windows_and_states_depend_on_stay(kept: dict[str, object]) -> None:
    assert blocks_of(roomy(**kept), agents()).block_size == 16


def test_short_prompts_have_the_engines_blocks() -> None:
    assert blocks_of(machine(), drawn()).block_size == 16


def test_the_longest_request_fits_into_larger_blocks_too() -> None:
    """Memory that is just enough for it is not, once it is cut into whole larger blocks."""
    traffic = replace(traffic_of(agents()), longest=30_000)
    tight = replace(roomy(), blocks=1875)
    assert tight.in_larger_blocks(64).tokens < traffic.longest <= tight.tokens
    assert (
        in_simulated_blocks(tight, traffic, EngineConfig(max_num_seqs=16, max_num_batched_tokens=512)).tokens
        >= traffic.longest
    )


def test_trials_with_copies_have_the_engines_blocks_and_the_answer_has_no_others() -> None:
    swapping = SchedulingSettings(preemption="swap", swap_space=1.0)
    assert blocks_of(roomy(), agents(), scheduling=swapping).block_size == 16
    assert (
        in_simulated_blocks(
            roomy(), traffic_of(agents()), EngineConfig(max_num_seqs=16, max_num_batched_tokens=512), has_tiers=True
        ).block_size
        == 16
    )
