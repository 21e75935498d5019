"""all-MiniLM-L6-v2 in each precision, against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_models.passages import sentences
from benchmarks.real_models.sentence_vectors import closeness, reference_vectors, vectors

from .bounds import MIN_NEIGHBOURS, MIN_VECTOR_COSINE
from .conftest import pulled

pytestmark = pytest.mark.wide
SETTINGS = {"float32": {"dtype": "float32"}, "bf16": {}, "int8": {"quantization": "int8"}}


@pytest.fixture(scope="module")
def folder() -> Path:
    return pulled("all-minilm-l6-v2")


@pytest.fixture(scope="module")
def reference(folder: Path) -> np.ndarray:
    return reference_vectors(folder, sentences(200))


@pytest.mark.parametrize("precision", SETTINGS)
def test_vectors_and_neighbours(folder: Path, reference: np.ndarray, precision: str) -> None:
    one = closeness(reference, vectors(folder, sentences(200), SETTINGS[precision]))
    assert one.cosine_min > MIN_VECTOR_COSINE[precision]
    assert one.overlap >= MIN_NEIGHBOURS[precision]
