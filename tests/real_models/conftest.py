"""Real models and what they are compared with: the reference's answers to passages, the same weights in a bf16 folder.

Each is skipped with the sentence of the download where no package index has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_models.agreement import Agreement, agreement
from benchmarks.real_models.answers import Answers, Questions
from benchmarks.real_models.passages import passages
from benchmarks.real_models.run_inflight import collect
from benchmarks.real_models.run_reference import oracle, reference, write_folder
from inflight import LLM
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.models.errors import ModelError
from inflight.text import Tokenizer

SECONDS = 900  # a test that downloads a model, or answers all questions on a busy machine
PASSAGES = (0, 4, 7, 12)  # English, code, German, Chinese


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("wide") and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(SECONDS))


def pulled(name: str) -> Path:
    """Return the file or folder of a model of the catalogue, or skip the test."""
    try:
        return pull(CATALOGUE[name])
    except ModelError as error:
        pytest.skip(str(error))


@dataclass(frozen=True, slots=True)
class RealModel:
    """A generative model, the questions to it, and what transformers answers in float32."""

    name: str
    file: Path
    folder: Path
    questions: Questions
    reference: Answers

    def answers(self, place: Path, **settings: Any) -> Answers:
        """Return what the engine answers, from the file or the folder."""
        longest = max(map(len, self.questions.texts)) + 1
        wanted = {"enable_prefix_caching": False, "max_num_seqs": 1, "max_model_len": longest, **settings}
        with LLM(str(place), **wanted) as llm:
            return collect(llm, self.questions).answers()

    def agreement(self, place: Path, **settings: Any) -> Agreement:
        return agreement(self.reference, self.answers(place, **settings))


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealModel]:
    """One model at a time: the reference holds a gigabyte."""
    file = pulled(request.param)
    texts = passages(Tokenizer.load(file))
    model = oracle(file)
    questions, answers = reference(model, [texts[index] for index in PASSAGES])
    folder = tmp_path_factory.mktemp(request.param)
    write_folder(model, file, folder)
    del model
    yield RealModel(request.param, file, folder, questions, answers)
