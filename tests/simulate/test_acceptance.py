"""Acceptance of simulated drafts: by chance and position, the same in every run."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from inflight.config.setting import SettingsError
from inflight.records.schema import RecordError
from inflight.simulate.drafting import MIN_DRAFTS, Acceptance, acceptance_of, parse_acceptance, pass_seconds_of


def test_drafts_are_right_as_often_as_was_said() -> None:
    acceptance = parse_acceptance("0.9,0.5")
    runs = [acceptance.accepted(3, sequence, 20, 3) for sequence in range(4000)]
    for place, chance in enumerate((0.9, 0.5, 0.5)):
        reached = [right for right in runs if right >= place]
        assert fmean(right > place for right in reached) == pytest.approx(chance, abs=0.04)


def test_a_token_can_be_foreseen_or_it_cannot() -> None:
    """However many are drafted at once, and in however many steps."""
    acceptance = parse_acceptance("0.6")
    for sequence in range(50):
        whole = acceptance.accepted(7, sequence, 10, 8)
        assert acceptance.accepted(7, sequence, 10, 3) == min(3, whole)
        for done in range(whole + 1):
            assert acceptance.accepted(7, sequence, 10 + done, 8 - done) == whole - done


@pytest.mark.parametrize(("chance", "right"), [("0", 0), ("1", 8)])
def test_the_ends_are_certain(chance: str, right: int) -> None:
    assert {parse_acceptance(chance).accepted(1, number, number, 8) for number in range(200)} == {right}


def test_another_seed_and_another_sequence_have_other_draws() -> None:
    acceptance = parse_acceptance("0.5")
    draws = {tuple(acceptance.accepted(seed, n, 5, 4) for n in range(60)) for seed in range(5)}
    assert len(draws) == 5
    assert len({tuple(acceptance.accepted(0, n, at, 4) for at in range(60)) for n in range(5)}) == 5


@pytest.mark.parametrize("text", ["", "often", "1.1", "-0.1", "0.5,", "nan", "0.5;0.4"])
def test_what_is_no_chance_is_refused(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"--speculation-acceptance is '.*'; give the chance that a draft is accepted"
    ):
        parse_acceptance(text)


def step(chunks: list[tuple[int, int]], draft_seconds: float | None = None) -> Any:
    """chunks: drafts, and how many were right."""
    told = {} if draft_seconds is None else {"draft_seconds": draft_seconds}
    return {
        "chunks": [{"sequence": n, "num_drafts": drafts} for n, (drafts, _) in enumerate(chunks)],
        "accepted": [[n, right] for n, (_, right) in enumerate(chunks)],
        **told,
    }


def test_chances_are_of_the_drafts_that_were_reached() -> None:
    steps = [step([(3, 3), (3, 1), (1, 1), (1, 0)])] * MIN_DRAFTS
    assert acceptance_of(steps, "a record") == Acceptance((0.75, 0.5, 1.0), f"{8 * MIN_DRAFTS} drafts of a record")


def test_a_position_with_few_drafts_has_no_chance() -> None:
    steps = [step([(2, 1)])] * MIN_DRAFTS + [step([(5, 5)])]
    assert acceptance_of(steps, "a record").chances == (1.0, 1 / (MIN_DRAFTS + 1))


def test_a_record_without_drafts_is_refused() -> None:
    with pytest.raises(RecordError, match=r"a\.jsonl has 2 drafts, too few to say how often"):
        acceptance_of([step([(2, 1)]), {"chunks": []}], "a.jsonl")  # type: ignore[list-item]


def test_a_pass_takes_what_drafting_took_over_the_longest() -> None:
    steps = [step([(4, 1), (2, 0)], 0.02), step([(1, 1)], 0.005), step([(9, 9)])]
    assert pass_seconds_of(steps) == pytest.approx(0.005)
    assert pass_seconds_of([step([(9, 9)])]) == 0.0
