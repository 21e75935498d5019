"""Figures of sentence vectors, and the texts that models are asked about."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.real_models.passages import sentences
from benchmarks.real_models.sentence_vectors import closeness


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_same_vectors_are_as_close_as_can_be() -> None:
    vectors = unit(np.random.default_rng(0).standard_normal((12, 8)))
    one = closeness(vectors, vectors)
    assert one.cosine_mean == pytest.approx(1) and one.cosine_min == pytest.approx(1)
    assert (one.same_nearest, one.overlap, one.similarity_error) == (1, 1, 0)


def test_neighbours_are_compared_without_the_sentence_itself() -> None:
    angles = np.array([0.0, 0.1, 0.3, 1.0, 1.05, 2.0, 2.2])
    moved = angles.copy()
    moved[1] = 0.25  # now nearer to the third than to the first
    at = [np.stack([np.cos(one), np.sin(one)], axis=1) for one in (angles, moved)]
    one = closeness(*at)
    assert one.same_nearest == pytest.approx(6 / 7)
    assert one.cosine_min == pytest.approx(np.cos(0.15))
    pairs = [np.cos(one[:, None] - one) for one in (angles, moved)]
    assert one.similarity_error == pytest.approx(np.abs(pairs[0] - pairs[1]).max())


def test_sentences_are_many_and_differ() -> None:
    found = sentences(240)
    assert len(found) == len(set(found)) == 240
    assert any("геолог" in one or "станции" in one for one in found) and any("本屋" in one for one in found)
