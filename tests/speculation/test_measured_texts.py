"""The texts that speculation is measured with: the corpus as its program makes it, halves, and the ratio of legs."""

from __future__ import annotations

import random

import pytest

from benchmarks.speculation.corpus import FOLDER, Kind, lines, read
from benchmarks.speculation.engine import MODEL_LEN
from benchmarks.speculation.legs import Leg, speed_up

KINDS: tuple[Kind, ...] = ("repeating", "different")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_what_the_program_makes(kind: Kind) -> None:
    assert (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines() == list(lines(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_is_in_both_halves_and_all_fit_the_model(kind: Kind) -> None:
    tuned, held_out = read(kind, "tuning"), read(kind, "held-out")
    assert len(tuned) + len(held_out) == len({one.prompt for one in (*tuned, *held_out)}) == 40
    assert min(len(tuned), len(held_out)) >= 19
    assert all(len(one.prompt) + len(one.answer) <= MODEL_LEN for one in (*tuned, *held_out))


def test_a_speed_up_is_of_all_tokens_over_all_seconds() -> None:
    """A long leg at twice the speed weighs more than a short one at the same."""
    found = speed_up([Leg(1.0, 100), Leg(50.0, 10_000)], [Leg(1.0, 100), Leg(100.0, 10_000)])
    assert found.mean == pytest.approx(101 / 51)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(200):
        ones, others = ([Leg(rng.uniform(0.5, 1.5) * each, 100) for _ in range(20)] for each in (1.0, 2.0))
        found = speed_up(ones, others)
        assert found.low is not None and found.high is not None
        covered += found.low <= 2.0 <= found.high
    assert 180 <= covered <= 199
