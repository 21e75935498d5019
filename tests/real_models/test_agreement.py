"""Figures of agreement, computed for distributions whose values are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_models.agreement import agreement, difference, divergence
from benchmarks.real_models.answers import Answers, Collected, Questions

VOCABULARY = 2000


def answers(logits: np.ndarray, questions: Questions) -> tuple[Answers, np.ndarray]:
    """Collect rows in two parts; return the answers, and the chosen tokens where none were asked for."""
    collected = Collected(questions)
    collected.take(logits[:1])
    collected.take(logits[1:])
    return collected.answers(), questions.asked if questions.asked is not None else collected.chosen()


def drawn(seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(seed)
    texts = [random.integers(0, VOCABULARY, length).astype(np.int32) for length in (5, 3)]
    return texts, random.standard_normal((6, VOCABULARY)).astype(np.float32) * 3


def test_divergence_is_that_of_tokens_and_one_bucket() -> None:
    p, q = np.array([[0.5, 0.3]]), np.array([[0.4, 0.4]])
    expected = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4) + 0.2 * math.log(0.2 / 0.2)
    assert divergence(np.log(p), np.log(q))[0] == pytest.approx(expected)


def test_the_same_answers_agree_wholly() -> None:
    texts, logits = drawn()
    reference, asked = answers(logits, Questions(texts))
    found, _ = answers(logits + 5, Questions(texts, asked))
    whole = agreement(reference, found)
    assert whole.kl_mean == pytest.approx(0, abs=1e-6) and whole.same_best == 1
    assert whole.loss == pytest.approx(0, abs=1e-5) and whole.perplexity_ratio == pytest.approx(1, abs=1e-5)
    assert difference(reference, found) == (pytest.approx(0, abs=1e-5), 1)


def test_other_answers_are_measured_at_the_tokens_of_the_reference() -> None:
    texts, logits = drawn()
    other = logits.copy()
    other[2] = np.roll(other[2], 1)  # one of six positions has another likeliest token
    reference, asked = answers(logits, Questions(texts))
    found, _ = answers(other, Questions(texts, asked))
    exact = np.log(np.exp(logits[2].astype(np.float64)) / np.exp(logits[2].astype(np.float64)).sum())
    moved = np.roll(exact, 1)
    np.testing.assert_allclose(found.log_probs[2], moved[asked[2]], atol=1e-4)
    measured = agreement(reference, found)
    assert measured.positions == 6 and measured.same_best == pytest.approx(5 / 6)
    assert measured.loss == pytest.approx((exact - moved)[texts[0][3]] / 6, abs=1e-4)
    assert measured.kl_mean > 0.01 and measured.kl_median == pytest.approx(0, abs=1e-6)


def test_another_choice_is_counted_where_the_best_two_are_close() -> None:
    texts = [np.array([0, 1, 2, 3], np.int32)]
    logits = np.zeros((3, 8), np.float32)
    logits[:, 0], logits[:, 1] = 5, (4.8, 4.8, 2)  # two positions are close, the third is not
    other = logits.copy()
    other[1:, 1] = 6
    reference, asked = answers(logits, Questions(texts))
    found, _ = answers(other, Questions(texts, asked))
    assert agreement(reference, found).other_where_close == pytest.approx(0.5)


def test_answers_and_questions_come_back_from_their_files(tmp_path: Path) -> None:
    texts, logits = drawn()
    reference, asked = answers(logits, Questions(texts))
    reference.save(tmp_path / "answers.npz")
    Questions(texts, asked).save(tmp_path / "questions.npz")
    again, questions = Answers.load(tmp_path / "answers.npz"), Questions.load(tmp_path / "questions.npz")
    np.testing.assert_array_equal(again.log_probs, reference.log_probs)
    assert [text.tolist() for text in questions.texts] == [text.tolist() for text in texts]
    np.testing.assert_array_equal(questions.asked, asked)


def test_positions_without_an_answer_are_an_error() -> None:
    texts, logits = drawn()
    collected = Collected(Questions(texts))
    collected.take(logits[:4])
    with pytest.raises(ValueError, match="4 of 6 positions"):
        collected.answers()
