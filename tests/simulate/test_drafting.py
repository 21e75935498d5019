"""Simulated speculation: right drafts save steps, answers and their tokens are the same, and drafts' time is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from core.builders import sequence

from inflight.config.scheduling import SchedulingSettings
from inflight.core.sequence import SequenceView
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.records.schema import read_records
from inflight.simulate.compare import compare
from inflight.simulate.drafting import SimulatedDrafter, SimulatedDrafts, parse_acceptance
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Simulation, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import MODEL, chat, pool

LENGTH = 241
ONE = Workload((Entry(0.0, 20, LENGTH),), "one")


class Free:
    """A step model to which tokens cost next to nothing."""

    name = "free"

    def seconds(self, features: object) -> float:
        return 0.01

    def extrapolates(self, features: object) -> str | None:
        return None


def run(
    speculation: str, acceptance: str = "1", workload: Workload = ONE, seed: int = 0, pass_seconds: float = 0.0
) -> Simulation:
    scheduling = SchedulingSettings(speculation=speculation, speculation_max_tokens=5)
    drafts = SimulatedDrafts(parse_acceptance(acceptance), seed, pass_seconds)
    return simulate(workload, SimulationSetup(pool(scheduling, Free(), drafts=drafts)))


PLAIN = simulate(ONE, SimulationSetup(pool(model=Free())))


@pytest.mark.parametrize("speculation", ["suffix", "draft:small", "heads"])
def test_drafts_that_are_right_save_steps(speculation: str) -> None:
    drafted = run(speculation)
    assert PLAIN.steps == LENGTH and drafted.steps < PLAIN.steps / 2
    (one,), (plain,) = drafted.observations, PLAIN.observations
    assert one.output_tokens == plain.output_tokens == LENGTH
    assert one.tpot is not None and plain.tpot is not None and one.tpot < plain.tpot / 2
    assert one.gaps == pytest.approx([0.01] * len(one.gaps)), "a gap is a step, whatever it brings"


@pytest.mark.parametrize("speculation", ["suffix", "draft:small"])
def test_drafts_that_are_wrong_bring_nothing_and_change_nothing(speculation: str) -> None:
    drafted = run(speculation, "0")
    assert drafted.steps == PLAIN.steps
    assert drafted.observations == PLAIN.observations


def test_both_kinds_have_the_same_draws() -> None:
    """Of a sequence with `known` tokens: what is looked up for it, and what an executor makes."""
    drafts = SimulatedDrafts(parse_acceptance("0.7"), seed=3)
    drafter, executor = SimulatedDrafter("suffix", drafts), SimulatedExecutor(pool().capacity, Free(), drafts)
    seen = set()
    for known in range(5, 60):
        one = sequence(prompt=[1] * known)
        proposal = drafter.propose(SequenceView(one), 4)
        assert len(proposal.token_ids) == 4 and proposal.chances == (0.7,) * 4
        made = Chunk(0, 0, known - 1, 5, (), 5, num_drafts=4)
        looked_up = made._replace(draft_token_ids=proposal.token_ids)
        (told,), (of_executor,) = (
            executor.submit(BatchPlan(0, (chunk,))).result().sampled for chunk in (looked_up, made)
        )
        assert told == of_executor
        seen.add(len(told.token_ids))
    assert seen == {1, 2, 3, 4, 5}


def test_what_an_executor_takes_to_draft_is_part_of_its_steps() -> None:
    free, costly = run("draft:small"), run("draft:small", pass_seconds=0.002)
    assert costly.steps == free.steps
    assert costly.replicas[0].busy > free.replicas[0].busy
    assert costly.observations[0].ended == pytest.approx(costly.replicas[0].busy)


def test_replicas_draw_for_themselves() -> None:
    scheduling = SchedulingSettings(speculation="suffix")
    twice = Workload((ONE.entries[0], replace(ONE.entries[0])), "two")
    two = pool(scheduling, Free(), drafts=SimulatedDrafts(parse_acceptance("0.5")), replicas=2)
    one, other = simulate(twice, SimulationSetup(two)).observations
    assert list(one.token_times) != list(other.token_times)


@pytest.mark.parametrize("speculation", ["suffix", "draft:small"])
def test_a_record_with_drafts_is_modelled_with_drafts(tmp_path: Path, speculation: str) -> None:
    """Right as often as they were, so that times come out as they did."""
    path = tmp_path / "drafted.jsonl"
    scheduling = SchedulingSettings(speculation=speculation)
    drafts = SimulatedDrafts(parse_acceptance("0.8"), 5, 0.001 if speculation.startswith("draft") else 0.0)
    simulate(chat(60, 6.0), SimulationSetup(pool(scheduling, drafts=drafts)), path)
    records = list(read_records(path))
    again, outcome = replay(records)
    assert outcome.difference is None
    comparison = compare(records, again, MODEL)
    assert comparison.step_errors["all"][0] < 1e-9, "without the time that went into drafts"
    assert comparison.modelled.tpot.mean == pytest.approx(comparison.recorded.tpot.mean, rel=0.1)
