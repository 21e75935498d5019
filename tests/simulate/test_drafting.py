"""Simulated drafts: acceptance by chance and position, drafters, and what they bring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from core.builders import sequence
from msgspec import structs

from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.sequence import SequenceView
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.records.schema import RecordError, StepRecord, read_records
from inflight.simulate.compare import compare
from inflight.simulate.drafting import (
    MIN_DRAFTS,
    Acceptance,
    SimulatedDrafter,
    SimulatedDrafts,
    acceptance_of,
    parse_acceptance,
    pass_seconds_of,
)
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Simulation, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import MODEL, Affine, chat, pool


def test_drafts_are_right_as_often_as_was_said() -> None:
    acceptance = parse_acceptance("0.9,0.5")
    runs = [acceptance.accepted(3, sequence, 20, 3) for sequence in range(4000)]
    for index, chance in enumerate((0.9, 0.5, 0.5)):
        reached = [right for right in runs if right >= index]
        assert fmean(right > index for right in reached) == pytest.approx(chance, abs=0.04)


def test_acceptance_depends_on_the_position_alone() -> None:
    """However many are drafted at once, and in however many steps."""
    acceptance = parse_acceptance("0.6")
    for number in range(50):
        whole = acceptance.accepted(7, number, 10, 8)
        assert acceptance.accepted(7, number, 10, 3) == min(3, whole)
        for done in range(whole + 1):
            assert acceptance.accepted(7, number, 10 + done, 8 - done) == whole - done


@pytest.mark.parametrize(("chance", "right"), [("0", 0), ("1", 8)])
def test_the_ends_are_certain(chance: str, right: int) -> None:
    assert {parse_acceptance(chance).accepted(1, number, number, 8) for number in range(200)} == {right}


def test_another_seed_and_another_sequence_have_other_draws() -> None:
    acceptance = parse_acceptance("0.5")
    draws = {tuple(acceptance.accepted(seed, n, 5, 4) for n in range(60)) for seed in range(5)}
    assert len(draws) == 5
    assert len({tuple(acceptance.accepted(0, n, at, 4) for at in range(60)) for n in range(5)}) == 5


@pytest.mark.parametrize("text", ["", "often", "1.1", "-0.1", "0.5,", "nan", "0.5;0.4"])
def test_text_that_is_no_chance_is_refused(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"--speculation-acceptance is '.*'; give the chance that a draft is accepted"
    ):
        parse_acceptance(text)


def step(chunks: list[tuple[int, int]], draft_seconds: float = 0.0) -> StepRecord:
    """chunks: drafts, and how many were right."""
    made = (Chunk(n, n, 0, 1 + drafts, (), 1 + drafts, num_drafts=drafts) for n, (drafts, _) in enumerate(chunks))
    plan = BatchPlan(0, tuple(made))
    accepted = tuple((n, right) for n, (_, right) in enumerate(chunks))
    return StepRecord(plan, 0.0, 1.0, 1.0, features(plan), draft_seconds=draft_seconds, accepted=accepted)


def test_chances_are_of_the_drafts_that_were_reached() -> None:
    steps = [step([(3, 3), (3, 1), (1, 1), (1, 0)])] * MIN_DRAFTS
    assert acceptance_of(steps, "a record") == Acceptance((0.75, 0.5, 1.0), f"{8 * MIN_DRAFTS} drafts of a record")
    steps = [step([(2, 1)])] * MIN_DRAFTS + [step([(5, 5)])]
    assert acceptance_of(steps, "a record").chances == (1.0, 1 / (MIN_DRAFTS + 1))
    with pytest.raises(RecordError, match=r"a\.jsonl has drafts at 1 decode, too few to say how often"):
        acceptance_of([step([(2, 1)]), step([])], "a.jsonl")
    steps = [step([(4, 1), (2, 0)], 0.02), step([(1, 1)], 0.005), step([(9, 9)])]
    assert pass_seconds_of(steps) == pytest.approx(0.005)
    assert pass_seconds_of([step([(9, 9)])]) == 0.0


LENGTH = 241
ONE = Workload((Entry(0.0, 20, LENGTH),), "one")


FREE = Affine(token=0.0)


def run(
    speculation: str, acceptance: str = "1", workload: Workload = ONE, seed: int = 0, pass_seconds: float = 0.0
) -> Simulation:
    scheduling = SchedulingSettings(speculation=speculation, speculation_max_tokens=5)
    drafts = SimulatedDrafts(parse_acceptance(acceptance), seed, pass_seconds)
    return simulate(workload, SimulationSetup(pool(scheduling, FREE, drafts=drafts)))


PLAIN = simulate(ONE, SimulationSetup(pool(model=FREE)))


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
    """Proposals when a step is planned, and of an executor."""
    drafts = SimulatedDrafts(parse_acceptance("0.7"), seed=3)
    drafter, executor = SimulatedDrafter("suffix", drafts), SimulatedExecutor(pool().capacity, FREE, drafts)
    seen = set()
    for known in range(5, 60):
        one = sequence(prompt=[1] * known)
        proposal = drafter.propose(SequenceView(one), 4)
        assert len(proposal.token_ids) == 4 and proposal.chances == (0.7,) * 4
        made = Chunk(0, 0, known - 1, 5, (), 5, num_drafts=4)
        looked_up = structs.replace(made, draft_token_ids=proposal.token_ids)
        (proposed,), (of_executor,) = (
            executor.submit(BatchPlan(0, (chunk,))).result().sampled for chunk in (looked_up, made)
        )
        assert proposed == of_executor
        seen.add(len(proposed.token_ids))
    assert seen == {1, 2, 3, 4, 5}


def test_an_executors_drafting_is_part_of_its_steps() -> None:
    free, costly = run("draft:small"), run("draft:small", pass_seconds=0.002)
    assert costly.steps == free.steps
    assert costly.replicas[0].busy > free.replicas[0].busy
    assert costly.observations[0].ended == pytest.approx(costly.replicas[0].busy)


def test_replicas_draw_for_themselves() -> None:
    scheduling = SchedulingSettings(speculation="suffix")
    twice = Workload((ONE.entries[0], replace(ONE.entries[0])), "two")
    two = pool(scheduling, FREE, drafts=SimulatedDrafts(parse_acceptance("0.5")), replicas=2)
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
